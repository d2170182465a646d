"""What connects the GPUs of this machine, and which variable manager that suggests before anything is measured."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.machine import hardware, nvml
from benchmarks.machine.hardware import Connection, Inventory
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
_SWITCH = "NVSwitch"


def read_gpu_links(
    environment: Mapping[str, str] = os.environ, driver: Any = None, root: Path = Path("/")
) -> Inventory:
    """Asks NVIDIA's driver, a module like pynvml, and `sys` below `root`; without a driver there are no GPUs.

    Raises:
        BenchError: the driver hangs.
    """
    opened = nvml.opened(environment, driver)
    gpus = opened.gpus
    ends = [list(_nvlink_ends(gpu, root / "sys/bus/pci/devices")) for gpu in gpus]
    connections = {
        (one, other): _connection(gpus[one], gpus[other], ends[one], ends[other])
        for one, other in itertools.combinations(range(len(gpus)), 2)
    }
    return dataclasses.replace(hardware.inventory_of(opened, root), connections=connections)


def _nvlink_ends(gpu: DriverGpu, devices: Path) -> Iterator[str]:
    """Yields what is at the other end of each active NVLink: a PCI address, or `_SWITCH`.

    In a virtual machine the driver may name an address that is none of its PCI `devices`: that of a switch outside it.
    NCCL takes it for one, too (src/graph/xml.cc).
    """
    are_known = (devices / nvml.bus_id(gpu.ask("nvmlDeviceGetPciInfo"))).exists()
    for link in range(gpu.driver.NVML_NVLINK_MAX_LINKS):
        if not gpu.ask("nvmlDeviceGetNvLinkState", link):
            continue
        if gpu.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == gpu.driver.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield _SWITCH
            continue
        address = nvml.bus_id(gpu.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
        yield _SWITCH if are_known and not (devices / address).exists() else address


def _connection(one: DriverGpu, other: DriverGpu, ends: list[str], other_ends: list[str]) -> Connection:
    bus = nvml.bus_id(other.ask("nvmlDeviceGetPciInfo"))
    path = one.ask("nvmlDeviceGetTopologyCommonAncestor", other.handle)
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


_GUIDE = "TensorFlow's performance guide, 2017"
NOT_MEASURED = "a rule of thumb, not measured"
ACROSS_HOSTS = (
    "Across hosts: --variable_update=collective_all_reduce for equal hosts and a fast network, or "
    "distributed_replicated with parameter servers (TensorFlow's benchmarks, 2017: EC2)."
)


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """Flags for machines of one topology.

    Attributes:
        holds: whether the topology is such.
        where: the topology in words.
        flags: of a run.
        because: why, as a clause.
        source: who recommended it, and for which GPUs.
    """

    holds: Callable[[Inventory], bool]
    where: str
    flags: tuple[str, ...]
    because: str
    source: str = ""


# The first one that holds.
SUGGESTIONS = (
    Suggestion(
        lambda inventory: not inventory.gpus,
        "no GPU of this machine can be used",
        ("--device=cpu",),
        "one CPU device uses all cores",
    ),
    Suggestion(
        lambda inventory: len(inventory.gpus) == 1,
        "there is one GPU",
        ("--variable_update=parameter_server",),
        "nothing is exchanged, so any manager will do",
    ),
    Suggestion(
        lambda inventory: inventory.has_nvlink,
        "NVLinks connect all GPUs",
        ("--variable_update=replicated", "--all_reduce_spec=nccl"),
        "gradients travel between GPUs past PCIe and the host",
        f"{_GUIDE}: P100, for models with many weights",
    ),
    Suggestion(
        lambda inventory: inventory.has_peer_access and inventory.is_one_root_complex,
        "all GPUs are below one PCIe root complex, with peer access and without NVLink",
        ("--variable_update=parameter_server", "--local_parameter_device=gpu"),
        "GPUs read variables of each other without the host",
        f"{_GUIDE}: K80",
    ),
    Suggestion(
        lambda inventory: inventory.has_peer_access,
        "GPUs have peer access, but are below several PCIe root complexes and without NVLink",
        ("--variable_update=parameter_server", "--local_parameter_device=cpu"),
        "what they exchange crosses the host anyway; for alexnet and vgg16 try --variable_update=replicated "
        "--all_reduce_spec=nccl",
        f"{_GUIDE}: Titan X, M40, P100",
    ),
    Suggestion(
        lambda inventory: True,
        "not all GPUs have access to each other's memory",
        ("--variable_update=parameter_server", "--local_parameter_device=cpu"),
        "what they exchange is copied through the host anyway",
        f"{_GUIDE}: K80",
    ),
)


def suggestion_for(inventory: Inventory) -> Suggestion:
    """Returns what these GPUs, whose connections are known, suggest."""
    return next(suggestion for suggestion in SUGGESTIONS if suggestion.holds(inventory))


def advice(inventory: Inventory) -> str:
    """Returns what these GPUs suggest, as a line for people."""
    suggested, count = suggestion_for(inventory), len(inventory.gpus)
    flags = " ".join([*([f"--num_gpus={count}"] if count else []), *suggested.flags])
    source = f" ({suggested.source})" if suggested.source else ""
    return f"By topology ({NOT_MEASURED}): {flags}, since {suggested.where}: {suggested.because}{source}."
