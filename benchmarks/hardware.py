"""What this machine is: processor, memory, GPUs. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from typing import Any

import psutil


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
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Inventory()
    try:
        gpus = [_describe_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return Inventory()
    finally:
        pynvml.nvmlShutdown()
    return Inventory(tuple(gpus[i] for i in visible_indices(len(gpus), environment)), driver)


def _describe_gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    except pynvml.NVMLError:  # memory that is shared with the host has no size of its own
        memory_bytes = psutil.virtual_memory().total
    return Gpu(_text(pynvml.nvmlDeviceGetName(handle)), memory_bytes)


def visible_indices(count: int, environment: Mapping[str, str]) -> list[int]:
    """Returns which of `count` GPUs CUDA would show: as CUDA does, it stops at the first index that is no GPU."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(range(count))
    indices: list[int] = []
    for word in setting.split(","):
        if word.strip().startswith(("GPU-", "MIG-")):  # names, which only CUDA can resolve: assume that they exist
            indices.append(min(len(indices), max(count - 1, 0)))
        elif word.strip().isdigit() and int(word) < count:
            indices.append(int(word))
        else:
            break
    return indices[:count]


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


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
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.partition(":")
                fields[key.strip()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    numbers = "/".join(fields.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', platform.machine())} ({numbers})"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
