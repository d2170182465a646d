"""What a fault may need of the machine: why it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.commands import ROOT


def memory_root() -> Path:
    """Returns the directory in which control groups with a memory limit can be made."""
    old = Path("/sys/fs/cgroup/memory")
    return old if old.is_dir() else Path("/sys/fs/cgroup")


def _without_memory_groups() -> str:
    root = memory_root()
    if root.name == "memory":
        return "" if os.access(root, os.W_OK) else f"{root} cannot be written"
    try:
        delegated = "memory" in (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        delegated = False
    return "" if delegated and os.access(root, os.W_OK) else "no control group with a memory limit can be made"


def _without_user_namespaces() -> str:
    done = subprocess.run(["unshare", "-Ur", "true"], capture_output=True) if shutil.which("unshare") else None
    return "" if done is not None and done.returncode == 0 else "no user namespace can be made"


def _without_tracing() -> str:
    done = (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True) if shutil.which("strace") else None
    )
    return "" if done is not None and done.returncode == 0 else "strace is missing or not permitted"


def _without(program: str) -> Callable[[], str]:
    return lambda: "" if shutil.which(program) else f"the program {program} is missing"


# What a fault may need: functions that return why it is missing, or nothing.
NEEDS: Mapping[str, Callable[[], str]] = dict(
    root=lambda: "" if os.geteuid() == 0 else "needs root",
    memory_groups=_without_memory_groups,
    user_namespaces=_without_user_namespaces,
    strace=_without_tracing,
    ssh=_without("ssh"),
    git=lambda: "" if (ROOT / ".git").exists() and shutil.which("git") else "this is no git checkout",
)


def missing(needs: Sequence[str]) -> str:
    """Returns why something cannot be injected here; empty if it can."""
    return next((why for need in needs if (why := NEEDS[need]())), "")
