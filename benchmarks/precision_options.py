"""In which numbers is computed: decided once, from a flag. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError

PRECISIONS = ("fp32", "tf32", "bf16")
_BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is Arm's


def resolve(
    given: Mapping[str, Any], *, on_gpu: bool, divides_layers: bool, cpuinfo: Path = Path("/proc/cpuinfo")
) -> tuple[str, tuple[str, ...]]:
    """Returns the precision, and sentences on what to expect of it.

    Args:
        given: flag values; None: not given.
        on_gpu: whether GPUs compute.
        divides_layers: whether the dense layers are divided over towers.
        cpuinfo: what the kernel says of the CPU.

    Raises:
        UsageError: it is not to be had here.
    """
    precision = given["precision"] or "fp32"
    if precision == "tf32" and not on_gpu:
        raise UsageError(
            "--precision=tf32 is a mode of NVIDIA GPUs from Ampere on, and a CPU has none: say bf16 or fp32."
        )
    if precision == "bf16" and divides_layers:
        raise UsageError("--precision=bf16 and --fc_model_parallel: divided layers compute in fp32 only: drop one.")
    if precision == "bf16" and not on_gpu and not _has_bfloat16(cpuinfo):
        return precision, ("--precision=bf16: this CPU has no instructions for bfloat16, so expect it to be slower.",)
    return precision, ()


def _has_bfloat16(cpuinfo: Path) -> bool:
    """Returns whether the CPU says so; also if it says nothing."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    flags = next((set(line.split()) for line in lines if line.lower().startswith(("flags", "features"))), None)
    return flags is None or bool(flags & _BFLOAT16_INSTRUCTIONS)
