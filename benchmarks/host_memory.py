"""How much host memory may still be taken, by the machine and by the container around this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil


def available_bytes(root: Path = Path("/")) -> int:
    """Returns what is available now: the least of what the kernel says and what control groups leave.

    Args:
        root: of the file system.
    """
    return min([psutil.virtual_memory().available, *_left_by_groups(root)])


def _left_by_groups(root: Path) -> Iterator[int]:
    top = root / "sys/fs/cgroup"
    lines = (_text(root / "proc/self/cgroup") or "").splitlines()
    own = [Path(line[3:].lstrip("/")) for line in lines if line.startswith("0::") and ".." not in line]
    groups = {top, *(top / group for path in own for group in (path, *path.parents))}  # each limits all below it
    for group, limit, used in (
        *((group, "memory.max", "memory.current") for group in groups),
        (top / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit_text, used_text = _text(group / limit), _text(group / used)
        if limit_text and used_text and limit_text.strip().isdigit():  # else it is "max"
            # What is kept of files counts as used, and goes as soon as it is in the way.
            stat = dict(line.split() for line in (_text(group / "memory.stat") or "").splitlines())
            yield max(0, int(limit_text) - int(used_text) + int(stat.get("inactive_file", 0)))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None
