"""Describes this machine: processor, memory, GPUs. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import linux, nvml

CPUINFO = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver names it, or the MIG instance that CUDA shows of it.

    `compute_capability` is such as `9.0`; None: unknown.
    """

    name: str
    memory_bytes: int
    compute_capability: str | None = None
    is_divided: bool = False


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The GPUs that CUDA shows, in the order of CUDA_VISIBLE_DEVICES, the driver's version and its newest CUDA's."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None

    def only(self, positions: Iterable[int]) -> Inventory:
        """Returns the inventory of some of the GPUs, in this order."""
        kept = (position for position in positions if position < len(self.gpus))
        return dataclasses.replace(self, gpus=tuple(self.gpus[position] for position in kept))


def gpu_inventory(environment: Mapping[str, str] = os.environ) -> Inventory:
    """Asks the NVIDIA driver; a machine without one has no GPUs."""
    with nvml.opened(environment) as driver:
        return Inventory(tuple(describe_gpu(gpu) for gpu in driver.gpus), driver.version, driver.cuda_version)


def count_gpus() -> int:
    """Returns how many GPUs this process may see."""
    return len(gpu_inventory().gpus)


def describe_gpu(gpu: nvml.DriverGpu) -> Gpu:
    """Describes one GPU of the driver."""
    part = gpu if gpu.instance is None else dataclasses.replace(gpu, handle=gpu.instance)
    memory = part.ask("nvmlDeviceGetMemoryInfo")  # memory that is shared with the host has no size of its own
    memory_bytes = memory.total if memory else psutil.virtual_memory().total
    name = nvml.text(gpu.ask("nvmlDeviceGetName") or "unknown GPU")
    capability = gpu.ask("nvmlDeviceGetCudaComputeCapability")
    return Gpu(
        # A slice has not the peak of the whole, so it must not carry its name.
        f"{name} MIG" if gpu.is_divided and "MIG" not in name else name,
        memory_bytes,
        capability and ".".join(map(str, capability)),
        gpu.is_divided,
    )


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def _cpu_fields(cpuinfo: Path) -> dict[str, str]:
    """Returns what the kernel reports of the first processor, by lower-case name."""
    first = (linux.text(cpuinfo) or "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in fields}


def cpu_instructions(cpuinfo: Path = CPUINFO) -> frozenset[str] | None:
    """Returns Linux' names of the CPU's extensions, such as `avx2`; None if they are not known.

    Args:
        cpuinfo: the kernel's description of the CPU.
    """
    fields = _cpu_fields(cpuinfo)
    names = fields.get("flags", fields.get("features"))
    return None if names is None else frozenset(names.split())


# Extensions of the instruction set that convolutions gain from, and Linux' names of them: x86, then Arm.
_EXTENSIONS = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16",
    "AVX-512 FP16": "avx512_fp16",
    "AMX BF16": "amx_bf16",
    "AMX INT8": "amx_int8",
    "NEON FP16": "asimdhp",
    "SVE": "sve",
    "BF16": "bf16",
}


def describe_host(root: Path = Path("/")) -> dict[str, Any]:
    """Returns the processors and the memory of this machine, and what its control groups leave of them.

    Args:
        root: holds `proc` and `sys`. What cannot be read there is None.
    """
    cpuinfo = root / "proc/cpuinfo"
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)", linux.text(cpuinfo) or "", re.MULTILINE))
    known, nodes = cpu_instructions(cpuinfo), list((root / "sys/devices/system/node").glob("node[0-9]*"))
    limits, memory = linux.cpu_limits(root), psutil.virtual_memory().total
    return {
        "cpu_model": _cpu_model(cpuinfo),
        "sockets": len(sockets) or None,
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "threads_usable": usable_cores(),
        "container_cores": min(limits)[0] if limits else None,
        "numa_nodes": len(nodes) or None,
        "extensions": None
        if known is None
        else [name for name, linux_name in _EXTENSIONS.items() if linux_name in known],
        "memory_bytes": memory,
        "container_memory_bytes": next((limit for limit in linux.memory_limits(root) if limit < memory), None),
    }


def describe_hardware(inventory: Inventory) -> dict[str, Any]:
    """Returns what determines speed, without the host's name: equal dictionaries are equal hardware."""
    return {
        "cpu_model": _cpu_model(),
        "cpu_cores_usable": usable_cores(),
        # Rounded, since kernels reserve a little more or less.
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": [f"{gpu.name} {round(gpu.memory_bytes / 2**30)} GiB" for gpu in inventory.gpus],
    }


def _cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """Returns the processor's name with family, model and stepping, since clouds shorten the name alone."""
    fields = _cpu_fields(cpuinfo)
    if not fields:
        return platform.processor() or platform.machine()
    numbers = "/".join(fields.get(name, "?") for name in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', platform.machine())} ({numbers})"
