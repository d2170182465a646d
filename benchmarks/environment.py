"""What surrounds a run: versions, relevant environment variables, load. For the record. Imports no TensorFlow."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.hardware import Inventory

_RELEVANT_VARIABLES = (
    "TF_",
    "XLA_",
    "OMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "CUDA_",
    "NVIDIA_",
    "MALLOC_",
    "LD_PRELOAD",
)


def describe_software() -> dict[str, Any]:
    """Returns the versions that can move a number; None where TensorFlow has not been imported."""
    tensorflow = sys.modules.get("tensorflow")
    build = dict(tensorflow.sysconfig.get_build_info()) if tensorflow else {}
    return {
        "python_version": platform.python_version(),
        "tensorflow_version": tensorflow.__version__ if tensorflow else None,
        "tensorflow_git_version": tensorflow.version.GIT_VERSION if tensorflow else None,
        "keras_version": importlib.metadata.version("keras"),
        "numpy_version": importlib.metadata.version("numpy"),
        "cuda_version": build.get("cuda_version"),
        "cudnn_version": build.get("cudnn_version"),
    }


def describe_surroundings(inventory: Inventory) -> dict[str, Any]:
    """Returns what may explain an odd number: operating system, driver, and variables that tools react to."""
    return {
        "operating_system": platform.platform(),
        "gpu_driver_version": inventory.driver_version,
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_RELEVANT_VARIABLES)
        },
    }


def suite_commit() -> str | None:
    """Returns the commit of this suite's checkout, with '+' if it has been changed; None if it is no checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
