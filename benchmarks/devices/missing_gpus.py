"""Why TensorFlow sees fewer GPUs than the driver. Imports no TensorFlow."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

from benchmarks.machine import gpu_support
from benchmarks.machine.hardware import Gpu
from benchmarks.process import subprocesses

_LIMIT_SECONDS = 120.0
# TensorFlow reports why it cannot use a GPU when it looks for GPUs, below the level that a run shows.
_LOOK = "import os, tensorflow as tf; os.write(2, b'\\0'); tf.config.list_physical_devices('GPU')"


def causes(shown: Sequence[Gpu], *, is_cuda_build: bool) -> str:
    """Returns the causes that are known, and what TensorFlow itself reports, as sentences.

    Args:
        shown: the GPUs that the driver shows.
        is_cuda_build: whether TensorFlow was built with CUDA.
    """
    return " ".join(_causes(shown, is_cuda_build))


def _causes(shown: Sequence[Gpu], is_cuda_build: bool) -> Iterator[str]:
    if not is_cuda_build:
        yield "This TensorFlow was built without CUDA: pip install -e '.[cuda]' in an environment without it."
        return
    if missing := gpu_support.missing_libraries():
        yield f"The extra 'cuda' is not installed (pip install -e '.[cuda]'); missing are {', '.join(missing)}."
    if any(gpu.is_divided for gpu in shown):
        yield "A GPU is divided (MIG): without an instance (nvidia-smi -L lists them) CUDA does not show it."
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        yield f"CUDA_VISIBLE_DEVICES={names} (--gpus sets it, too) may name a GPU that does not exist."
    if said := _reported():
        yield f"TensorFlow reports: {' | '.join(said)}."


def _reported() -> list[str]:
    """Returns the messages of TensorFlow while it looks for GPUs, in a process that shows all of them."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as output:
        command = subprocesses.Command(
            words=(sys.executable, "-P", "-c", _LOOK),
            stdout=output,
            stderr=errors,
            variables={"TF_CPP_MIN_LOG_LEVEL": "0"},
        )
        subprocesses.supervise(command, timeout_seconds=_LIMIT_SECONDS)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").rpartition("\0")[2].splitlines()
    return [line.partition("] ")[2].rstrip(".") for line in lines if "] " in line]
