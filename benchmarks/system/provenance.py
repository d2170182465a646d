"""The environment of a run, for the record: versions, environment variables, load. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.system import hardware
from benchmarks.system.hardware import Inventory
from results.record import Identity, identify

_RELEVANT_VARIABLES = ("TF_", "XLA_", "OMP_", "KMP_", "MKL_", "NCCL_", "CUDA_", "NVIDIA_", "MALLOC_", "LD_PRELOAD")

# A git hook sets these for its own repository; they would override the one that is named.
_GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")


def describe_software() -> dict[str, Any]:
    """Returns the versions that can move a number, as installed: TensorFlow need not have been imported."""
    return {
        "python_version": platform.python_version(),
        "tensorflow_version": _installed("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
        "keras_version": _installed("keras", "keras-nightly"),
        "numpy_version": _installed("numpy"),
        "cuda_version": _installed("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        "cudnn_version": _installed("nvidia-cudnn-cu12", "nvidia-cudnn"),
        "nccl_version": _installed("nvidia-nccl-cu12", "nvidia-nccl"),
    }


def _installed(*names: str) -> str | None:
    """Returns the version of the first of these packages that is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _describe_surroundings(inventory: Inventory) -> dict[str, Any]:
    """Returns what may explain an odd number: TensorFlow's build, operating system, driver, environment variables."""
    tensorflow = sys.modules.get("tensorflow")
    build: dict[str, Any] = {}
    if tensorflow is not None:
        info = dict(tensorflow.sysconfig.get_build_info())
        found = {name: info.get(name) for name in ("is_cuda_build", "cuda_version", "cudnn_version")}
        build = {"tensorflow_git_version": tensorflow.version.GIT_VERSION, "tensorflow_build": found}
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_RELEVANT_VARIABLES)}
    return {
        **build,
        "operating_system": platform.platform(),
        "gpu_driver_version": inventory.driver_version,
        "variables": variables,
    }


def suite_commit() -> str | None:
    """Returns the commit of this suite's checkout, with '+' if it has been changed; None if it is no checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def git(root: Path, *words: str, timeout_seconds: float = 10.0) -> str:
    """Runs git in a directory, in a session that Ctrl-C does not reach, and returns its stripped stdout.

    Raises:
        OSError: git cannot be started.
        subprocess.SubprocessError: it fails, or takes too long.
    """
    done = subprocess.run(
        ["git", "-C", str(root), *words],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=True,
        env={name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return done.stdout.strip()


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a record comes from. Made before a run; read after it, when TensorFlow's build is known."""

    command: Sequence[str]
    inventory: hardware.Inventory
    load_1min: float
    session_id: str = ""

    def identity(self, config: Mapping[str, Any]) -> Identity:
        """Returns the identity of a run; `config` holds only what can change the result."""
        return identify(
            command=self.command,
            suite_commit=self._commit,
            config=config,
            hardware=hardware.describe_hardware(self.inventory),
            software=describe_software(),
            session_id=self.session_id,
        )

    @functools.cached_property  # a process may write many records
    def _commit(self) -> str | None:
        return suite_commit()

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """Returns the description of machine and software."""
        described = {**hardware.describe_hardware(self.inventory), **describe_software()}
        return {**described, **_describe_surroundings(self.inventory), "load_1min_before": self.load_1min}

    @property
    def load_per_core(self) -> float:
        """The machine's load before the run, per usable core."""
        return self.load_1min / hardware.usable_cores()


def of_this_run(command: Sequence[str], *, on_gpus: bool, session_id: str = "") -> Provenance:
    """Looks at the machine before a run; at its GPUs only if the run is to use them."""
    inventory = hardware.gpu_inventory() if on_gpus else hardware.Inventory()
    return Provenance(command, inventory, os.getloadavg()[0], session_id)
