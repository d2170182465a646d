"""What this machine is: processor, memory, GPUs. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.system import linux, nvml

CPUINFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver names it."""

    name: str
    memory_bytes: int


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The driver's GPUs that CUDA_VISIBLE_DEVICES leaves visible, in that order, and the driver's version."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None


def gpu_inventory(environment: Mapping[str, str] = os.environ) -> Inventory:
    """Asks the NVIDIA driver; a machine without one has no GPUs."""
    with nvml.opened(environment) as driver:
        return Inventory(tuple(_describe_gpu(gpu) for gpu in driver.gpus), driver.version)


def count_gpus() -> int:
    """Returns how many GPUs this process may see."""
    return len(gpu_inventory().gpus)


def _describe_gpu(gpu: nvml.DriverGpu) -> Gpu:
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")  # memory that is shared with the host has no size of its own
    memory_bytes = memory.total if memory else psutil.virtual_memory().total
    return Gpu(nvml.text(gpu.ask("nvmlDeviceGetName") or "unknown GPU"), memory_bytes)


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_instructions(cpuinfo: Path = CPUINFO) -> frozenset[str] | None:
    """Returns the names that Linux has for the CPU's extensions, such as `avx2`; None if it does not say.

    Args:
        cpuinfo: what the kernel says of the CPU.
    """
    lines = (linux.text(cpuinfo) or "").splitlines()
    return next((frozenset(line.split()) for line in lines if line.lower().startswith(("flags", "features"))), None)


def describe_hardware(inventory: Inventory) -> dict[str, Any]:
    """Returns what decides speed, and no name of a host: equal dictionaries are equal hardware."""
    return {
        "cpu_model": _cpu_model(),
        "cpu_cores_usable": usable_cores(),
        # Rounded, since kernels reserve a little more or less.
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": [f"{gpu.name} {round(gpu.memory_bytes / 2**30)} GiB" for gpu in inventory.gpus],
    }


def _cpu_model() -> str:
    """Returns the processor's name with family, model and stepping, since clouds shorten the name alone."""
    fields: dict[str, str] = {}
    try:
        with CPUINFO.open(encoding="utf-8") as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                fields[key.strip()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    numbers = "/".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', platform.machine())} ({numbers})"
