"""Describes this machine: processor, memory, GPUs. Imports without TensorFlow."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import linux, nvml
from results.environment import gpu_name

CPUINFO = Path("/proc/cpuinfo")
_ONE_ROOT_COMPLEX = ("PIX", "PXB", "PHB")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver names it, or the MIG instance that CUDA shows of it. None: unknown.

    Attributes:
        compute_capability: such as `9.0`.
        is_divided: whether it is divided into MIG instances.
        index: in the driver, as in nvidia-smi.
        has_ecc: whether its memory has error correction.
        pcie_generation: the largest that GPU and slot have in common; an idle GPU runs at a smaller one.
        pcie_width: the largest number of lanes that GPU and slot have in common.
        numa_node: the NUMA node of its slot.
        used_bytes: of its memory, by all processes, when it was described.
    """

    name: str
    memory_bytes: int
    compute_capability: str | None = None
    is_divided: bool = False
    index: int | None = None
    uuid: str | None = None
    has_ecc: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    numa_node: int | None = None
    used_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection:
    """What connects two GPUs.

    Attributes:
        nvlinks: NVLinks from one to the other, directly or through a switch; 0 without any.
        path: over PCIe, as `nvidia-smi topo -m` names it; None if unknown.
        has_peer_access: whether each reads the memory of the other; None if unknown.
    """

    nvlinks: int
    path: str | None
    has_peer_access: bool | None

    @property
    def name(self) -> str:
        """Its cell in the matrix of `nvidia-smi topo -m`."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.path or "?"


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The GPUs that CUDA shows, in the order of CUDA_VISIBLE_DEVICES.

    Attributes:
        driver_version: None without a driver.
        cuda_version: the newest CUDA that the driver supports, such as `12.8`.
        connections: by the positions of two GPUs, the smaller one first; empty unless `gpu_topology` has read them.
        problem: why GPUs of this machine are missing here; empty if none is known to be.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    connections: Mapping[tuple[int, int], Connection] = dataclasses.field(default_factory=dict)
    problem: str = ""

    def only(self, positions: Iterable[int]) -> Inventory:
        """Returns the inventory of some of the GPUs, in this order."""
        positions = [position for position in positions if position < len(self.gpus)]
        pairs = itertools.combinations(enumerate(positions), 2) if self.connections else ()
        connections = {(one, other): self.connections[min(a, b), max(a, b)] for (one, a), (other, b) in pairs}
        gpus = tuple(self.gpus[position] for position in positions)
        return dataclasses.replace(self, gpus=gpus, connections=connections)

    @property
    def has_nvlink(self) -> bool:
        """Whether NVLinks lead from each of several GPUs to each other, perhaps through a third one."""
        reached = {0}
        for _ in self.gpus:
            ends = (pair for pair, link in self.connections.items() if link.nvlinks and reached & set(pair))
            reached.update(*ends)
        return 1 < len(self.gpus) == len(reached)

    @property
    def has_peer_access(self) -> bool:
        """Whether each GPU reads the memory of each other."""
        return all(link.has_peer_access for link in self.connections.values())

    @property
    def is_one_root_complex(self) -> bool:
        """Whether no path between two GPUs leaves a PCIe root complex."""
        return all(link.path in _ONE_ROOT_COMPLEX for link in self.connections.values())

    def matrix(self) -> list[list[str]]:
        """Returns the matrix of `nvidia-smi topo -m`: a row per GPU, `X` on the diagonal."""
        places = range(len(self.gpus))
        return [
            ["X" if row == column else self.connections[min(row, column), max(row, column)].name for column in places]
            for row in places
        ]


def gpu_inventory(environment: Mapping[str, str] = os.environ) -> Inventory:
    """Asks the NVIDIA driver; a machine without one has no GPUs."""
    return inventory_of(nvml.opened(environment))


def inventory_of(driver: nvml.Driver, root: Path = Path("/")) -> Inventory:
    """Describes the GPUs of an open driver, without what connects them; `root` holds `sys`."""
    gpus = tuple(_describe_gpu(gpu, root) for gpu in driver.gpus)
    return Inventory(gpus, driver.version, driver.cuda_version, problem=driver.problem)


def count_gpus() -> int:
    """Returns how many GPUs this process may see."""
    return len(gpu_inventory().gpus)


def _describe_gpu(gpu: nvml.DriverGpu, root: Path) -> Gpu:
    part = gpu if gpu.instance is None else dataclasses.replace(gpu, handle=gpu.instance)
    memory = part.ask("nvmlDeviceGetMemoryInfo")  # memory that is shared with the host has no size of its own
    name = gpu.ask("nvmlDeviceGetName") or "unknown GPU"
    capability, ecc = gpu.ask("nvmlDeviceGetCudaComputeCapability"), gpu.ask("nvmlDeviceGetEccMode")
    bus = nvml.bus_id(gpu.ask("nvmlDeviceGetPciInfo"))
    return Gpu(
        # A slice has not the peak of the whole, so it must not carry its name.
        f"{name} MIG" if gpu.is_divided and "MIG" not in name else name,
        memory.total if memory else psutil.virtual_memory().total,
        capability and ".".join(map(str, capability)),
        gpu.is_divided,
        index=gpu.index,
        uuid=gpu.ask("nvmlDeviceGetUUID"),
        has_ecc=ecc and bool(ecc[0]),
        pcie_generation=gpu.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=gpu.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        numa_node=linux.number(root / f"sys/bus/pci/devices/{bus}/numa_node"),
        used_bytes=memory.used if memory else 0,
    )


def usable_cores() -> int:
    """Returns how many cores this process may run on."""
    return len(linux.own_cores())


def _cpu_fields(cpuinfo: Path) -> dict[str, str]:
    first = (linux.text(cpuinfo) or "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in fields}


def cpu_instructions(cpuinfo: Path = CPUINFO) -> frozenset[str] | None:
    """Returns Linux' names of the CPU's extensions, such as `avx2`, from its description; None if they are unknown."""
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
    limit = min((cores for cores, _ in linux.cpu_limits()), default=math.inf)
    return {
        "cpu_model": _cpu_model(),
        "cpu_cores_usable": usable_cores(),
        **({"container_cores": round(limit, 2)} if limit < usable_cores() else {}),
        # Rounded, since kernels reserve a little more or less.
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": [f"{gpu.name} {round(gpu.memory_bytes / 2**30)} GiB" for gpu in inventory.gpus],
    }


def in_words(facts: Mapping[str, Any], used: Sequence[int], *, shows_unused: bool) -> str:
    """Returns what computes: `1 x NVIDIA H200 (of 8; 7 unused)`, or the CPU's model if no GPU is used.

    Args:
        facts: those of `describe_hardware`.
        used: which of its GPUs; those that no driver shows have no name.
        shows_unused: whether to add how many there are; other processes of the same run may use them.
    """
    gpus = facts["gpus"]
    names = collections.Counter(gpu_name(gpus[number]) for number in used if number < len(gpus))
    if not used:
        return str(facts["cpu_model"])
    what = ", ".join(f"{count} x {name}" for name, count in names.items()) or "of unknown name"
    unused = len(gpus) - names.total()
    return f"{what} (of {len(gpus)}{f'; {unused} unused' if unused else ''})" if shows_unused and gpus else what


def _cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """Returns the processor's name with family, model and stepping, since clouds shorten the name alone.

    On Arm, Linux has no name, and the numbers of implementer, part and revision.
    """
    fields = _cpu_fields(cpuinfo)
    if not fields:
        return platform.processor() or platform.machine()
    of_arm = ("cpu implementer", "cpu part", "cpu revision")
    names = of_arm if "cpu part" in fields else ("cpu family", "model", "stepping")
    numbers = "/".join(fields.get(name, "?") for name in names)
    return f"{fields.get('model name', platform.machine())} ({numbers})"
