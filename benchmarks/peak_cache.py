"""Peaks that were measured before. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.roofline import Peak
from benchmarks.system.cache import CacheFile
from results.record import key_of

FILE = CacheFile("peaks.json", "measured peaks")
_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib")


def key(hardware: Mapping[str, Any], tensorflow_version: str | None, precision: str) -> str:
    """Returns what a peak is kept under.

    Args:
        hardware: as of `benchmarks.system.inventory.describe_hardware`, or more. Of its GPUs the first counts, for that is
            whose peak is measured, however many there are.
        tensorflow_version: of the package.
        precision: of the arithmetic.
    """
    one_device = {**{name: hardware[name] for name in _HARDWARE}, "gpus": hardware["gpus"][:1]}
    return f"{key_of(one_device)} {tensorflow_version} {precision}"


def find(wanted: str) -> Peak | None:
    """Returns the peak that is kept under a key; None if there is none."""
    entry = FILE.find(wanted)
    if entry is None:
        return None
    try:
        peak = Peak(flops_per_sec=float(entry["flops_per_sec"]), bytes_per_sec=float(entry["bytes_per_sec"]))
        if not all(0 < value < math.inf for value in dataclasses.astuple(peak)):
            raise ValueError("a peak is not a positive number")
    except (KeyError, TypeError, ValueError) as error:
        FILE.ignore(error)
        return None
    return peak


def keep(wanted: str, peak: Peak) -> None:
    """Keeps a peak under a key."""
    FILE.keep(wanted, dataclasses.asdict(peak))
