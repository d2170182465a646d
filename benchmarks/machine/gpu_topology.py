"""The GPUs of this machine and what connects them, as NVIDIA's driver reports it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import hardware, linux, nvml
from benchmarks.machine.nvml import DriverGpu

# The longest path between two GPUs by the driver's number, under the names of `nvidia-smi topo -m`.
PATHS = {
    0: ("PIX", "at most one PCIe bridge"),  # two GPUs of one board, such as a K80
    10: ("PIX", "at most one PCIe bridge"),
    20: ("PXB", "several PCIe bridges"),
    30: ("PHB", "a PCIe host bridge (the CPU)"),
    40: ("NODE", "several host bridges of one NUMA node"),
    50: ("SYS", "the connection between NUMA nodes"),
}
_ONE_ROOT_COMPLEX = ("PIX", "PXB", "PHB")
_SWITCH = "NVSwitch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU. What the driver does not report is None.

    Attributes:
        index: in the driver, as in nvidia-smi.
        compute_capability: such as `9.0`.
        has_ecc: whether its memory has error correction.
        is_divided: whether it is divided into MIG instances.
        pcie_generation: the largest that GPU and slot have in common; an idle GPU runs at a smaller one.
        pcie_width: lanes, likewise.
        numa_node: the NUMA node of its slot.
    """

    index: int
    uuid: str | None
    name: str
    memory_bytes: int
    compute_capability: str | None
    has_ecc: bool | None
    is_divided: bool
    pcie_generation: int | None
    pcie_width: int | None
    numa_node: int | None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuTopology:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in that order, and what connects each two of them.

    Attributes:
        connections: by the positions of two GPUs, the smaller one first.
        driver_version: None without a driver.
        cuda_version: the newest that the driver supports.
    """

    gpus: tuple[GpuFacts, ...] = ()
    connections: Mapping[tuple[int, int], Connection] = dataclasses.field(default_factory=dict)
    driver_version: str | None = None
    cuda_version: str | None = None

    def only(self, positions: Sequence[int]) -> GpuTopology:
        """Returns the topology of some of the GPUs, in this order."""
        kept = [position for position in positions if position < len(self.gpus)]
        pairs = itertools.combinations(enumerate(kept), 2)
        connections = {(one, other): self.connections[min(a, b), max(a, b)] for (one, a), (other, b) in pairs}
        return dataclasses.replace(self, gpus=tuple(self.gpus[position] for position in kept), connections=connections)

    @property
    def has_nvlink(self) -> bool:
        """Whether NVLinks lead from each of several GPUs to each other, perhaps through a third one."""
        reached = {0}
        for _ in self.gpus:
            ends = (pair for pair, found in self.connections.items() if found.nvlinks and reached & set(pair))
            reached.update(*ends)
        return 1 < len(self.gpus) == len(reached)

    @property
    def has_peer_access(self) -> bool:
        """Whether each GPU reads the memory of each other."""
        return all(one.has_peer_access for one in self.connections.values())

    @property
    def is_one_root_complex(self) -> bool:
        """Whether no path between two GPUs leaves a PCIe root complex."""
        return all(one.path in _ONE_ROOT_COMPLEX for one in self.connections.values())

    def matrix(self) -> list[list[str]]:
        """Returns the matrix of `nvidia-smi topo -m`: a row per GPU, `X` on the diagonal."""
        places = range(len(self.gpus))
        return [
            ["X" if row == column else self.connections[min(row, column), max(row, column)].name for column in places]
            for row in places
        ]


def read_gpu_links(
    environment: Mapping[str, str] = os.environ, driver: Any = None, root: Path = Path("/")
) -> GpuTopology:
    """Asks NVIDIA's driver; without one there are no GPUs.

    Args:
        environment: the environment variables.
        driver: a module like pynvml; None for pynvml.
        root: holds `sys`.

    Raises:
        BenchError: the driver hangs.
    """
    with nvml.opened(environment, driver) as opened:
        gpus = list({gpu.index: gpu for gpu in opened.gpus}.values())
        ends = [list(_nvlink_ends(gpu)) for gpu in gpus]
        return GpuTopology(
            gpus=tuple(_describe(gpu, root) for gpu in gpus),
            connections={
                (one, other): _connection(gpus[one], gpus[other], ends[one], ends[other])
                for one, other in itertools.combinations(range(len(gpus)), 2)
            },
            driver_version=opened.version,
            cuda_version=opened.cuda_version,
        )


def _describe(gpu: DriverGpu, root: Path) -> GpuFacts:
    named = hardware.describe_gpu(gpu)
    ecc = gpu.ask("nvmlDeviceGetEccMode")
    uuid, bus = gpu.ask("nvmlDeviceGetUUID"), _bus_id(gpu.ask("nvmlDeviceGetPciInfo"))
    return GpuFacts(
        index=gpu.index,
        uuid=uuid and nvml.text(uuid),
        name=named.name,
        memory_bytes=named.memory_bytes,
        compute_capability=named.compute_capability,
        has_ecc=ecc and bool(ecc[0]),
        is_divided=named.is_divided,
        pcie_generation=gpu.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=gpu.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        # Linux writes the domain with four digits, the driver with eight.
        numa_node=linux.number(root / f"sys/bus/pci/devices/{bus[-12:]}/numa_node"),
    )


def _bus_id(info: Any) -> str:
    """Returns a PCI address in lower case, such as `00000000:17:00.0`; empty if it is unknown."""
    return nvml.text(info.busId).lower() if info else ""


def _nvlink_ends(gpu: DriverGpu) -> Iterator[str]:
    """Yields what is at the other end of each active NVLink: a PCI address, or `_SWITCH`."""
    for link in range(gpu.driver.NVML_NVLINK_MAX_LINKS):
        if not gpu.ask("nvmlDeviceGetNvLinkState", link):
            continue
        if gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == gpu.driver.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield _SWITCH
        else:
            yield _bus_id(gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))


def _connection(one: DriverGpu, other: DriverGpu, ends: list[str], other_ends: list[str]) -> Connection:
    bus, path = _bus_id(other.ask("nvmlDeviceGetPciInfo")), one.ask("nvmlDeviceGetTopologyCommonAncestor", other.handle)
    direct = ends.count(bus) if bus else 0
    read_caps = 0  # NVML_P2P_CAPS_INDEX_READ, which pynvml defines as a tuple
    access = [
        first.ask("nvmlDeviceGetP2PStatus", second.handle, read_caps) for first, second in ((one, other), (other, one))
    ]
    return Connection(
        nvlinks=direct or min(ends.count(_SWITCH), other_ends.count(_SWITCH)),
        path=PATHS[path][0] if path in PATHS else None,
        has_peer_access=None if None in access else access == [one.driver.NVML_P2P_STATUS_OK] * 2,
    )
