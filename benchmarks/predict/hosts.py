"""Hosts to predict for: what their data sheets state of GPUs and links, and the share of it that training reaches.

A host is a TOML file; those of `hardware/` come with the suite. Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from benchmarks.errors import UsageError, did_you_mean
from benchmarks.explain.known_gpus import LINKS, NAMES, KnownGpu, find_gpu, link_bytes_per_sec
from benchmarks.outside_text import parse_toml
from results.environment import published_table
from results.loading import read_small

_SHIPPED = sorted((Path(__file__).parent / "hardware").glob("*.toml"))
SHIPPED_NAMES = tuple(path.stem for path in _SHIPPED)
# The links of a host, as the exchange names them; those of devices are one per device.
PCIE_DOWN, PCIE_UP, BETWEEN_GPUS = "host to device", "device to host", "device to device"
NCCL_1 = "device to device, NCCL 1"
HOST_MEMORY, LOOPBACK = "host memory", "between processes of a host"
COPIES = "copies by the device"  # of a host without GPUs, whose cores also compute
NETWORK_IN, NETWORK_OUT = "network in", "network out"
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Latency = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=256)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; other fields than these are refused."""

    source: str


class Pcie(_Strict, frozen=True, kw_only=True):
    """The links between the host and its GPUs; `link` is one of `results/data/links.csv`."""

    link: str
    gpus_per_switch: _Count


class GpuLink(_Strict, frozen=True, kw_only=True):
    """The links between GPUs, if they do not use PCIe."""

    link: str
    latency_microseconds: _Latency


class Memory(_Strict, frozen=True, kw_only=True):
    """The memory of a host, all sockets together, 1e9 bytes/s."""

    gbytes_per_second: _Positive


class Network(_Strict, frozen=True, kw_only=True):
    """A host's network, 1e9 bytes/s in each direction."""

    gbytes_per_second: _Positive
    latency_microseconds: _Latency


class Cpu(_Strict, frozen=True, kw_only=True):
    """The cores of a host without GPUs: 1e9 bytes/s that they send, receive and add while they do not compute."""

    copies_gbytes_per_second: _Positive


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host, of which there may be several.

    Attributes:
        title: its name.
        gpu: of `results/data/peaks.csv`; empty: the host's CPU is its one device.
        gpus: in a host.
        gpus_per_board: that share the power of one board.
        testbed: the first words of its name in `results/data/guide2017.csv`; empty if it is none of them.
        gpu_link: None: GPUs send to each other by PCIe.
        pcie, cpu: one of them; `pcie` goes with GPUs.
    """

    title: str
    memory: Memory
    network: Network
    gpu: str = ""
    gpus: _Count = 1
    pcie: Pcie | None = None
    cpu: Cpu | None = None
    gpu_link: GpuLink | None = None
    gpus_per_board: _Count = 1
    testbed: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError if tables and fields of a host with GPUs and of one without are mixed."""
        if self.gpu and (not self.pcie or self.cpu):
            raise ValueError("a host with a gpu needs the table [pcie], and none named [cpu]")
        if not self.gpu and (not self.cpu or self.pcie or self.gpu_link or self.gpus > 1):
            raise ValueError("a host without gpu needs the table [cpu], and no gpus, [pcie] or [gpu_link]")


@dataclasses.dataclass(frozen=True)
class Reached:
    """What training reaches of a data sheet, as `results/data/reached.csv` explains.

    Attributes:
        pcie, gpu_link, network, memory: shares of the bytes/s of these links.
        nccl_1: that of the links between GPUs with NCCL 1, of 2017.
        loopback_gbytes_per_second: between two processes of a host, 1e9 bytes/s.
        board: rate of each of two GPUs of a board, over that of one alone.
        spread: of the times that devices need for one step, standard deviation over mean.
    """

    pcie: float
    gpu_link: float
    nccl_1: float
    network: float
    memory: float
    loopback_gbytes_per_second: float
    board: float
    spread: float


@dataclasses.dataclass(frozen=True)
class LinkRate:
    """What a link sends, in bytes/s, and the time until a message arrives."""

    bytes_per_sec: float
    latency_seconds: float = 0.0


def reached(column: str = "usual") -> Reached:
    """Returns what training reaches, by a column of the table.

    That is `usual`, the slow (`low`) or fast end (`high`) of what is plausible, or `without_TESTBED`: the usual shares
    fitted without this testbed.
    """
    return Reached(**{row["name"]: float(row[column]) for row in published_table("reached")})


def link_rates(hardware: Hardware, shares: Reached, devices: int) -> dict[str, LinkRate]:
    """Returns the rate of each link, of so many devices per host that send at the same time.

    GPUs behind a PCIe switch share its link to the host.
    """
    network = LinkRate(
        1e9 * hardware.network.gbytes_per_second * shares.network, 1e-6 * hardware.network.latency_microseconds
    )
    common = {
        HOST_MEMORY: LinkRate(1e9 * hardware.memory.gbytes_per_second * shares.memory),
        LOOPBACK: LinkRate(1e9 * shares.loopback_gbytes_per_second),
        NETWORK_IN: network,
        NETWORK_OUT: network,
    }
    if hardware.cpu:
        return common | {COPIES: LinkRate(1e9 * hardware.cpu.copies_gbytes_per_second)}
    assert hardware.pcie, "__post_init__"
    pcie, own = link_bytes_per_sec(hardware.pcie.link) * shares.pcie, hardware.gpu_link
    down = LinkRate(pcie / min(devices, hardware.pcie.gpus_per_switch))
    crossing = 1 if devices <= hardware.pcie.gpus_per_switch else hardware.pcie.gpus_per_switch
    between = {BETWEEN_GPUS: LinkRate(pcie / crossing), NCCL_1: LinkRate(pcie)}
    if own:
        whole, latency = link_bytes_per_sec(own.link), 1e-6 * own.latency_microseconds
        reached_by = {BETWEEN_GPUS: shares.gpu_link, NCCL_1: shares.nccl_1}
        between = {link: LinkRate(whole * share, latency) for link, share in reached_by.items()}
    return common | {PCIE_DOWN: down, PCIE_UP: down} | between


@functools.cache
def shipped() -> Mapping[str, Hardware]:
    """Returns the hosts that come with the suite, by the names of their files."""
    return {path.stem: load(path) for path in _SHIPPED}


def find_hardware(text: str) -> Hardware:
    """Returns the host that a name, a GPU or a file means.

    Raises:
        UsageError: nothing has such a name, or the file cannot be used.
    """
    if text.endswith(".toml") or "/" in text:
        return load(Path(text))
    known = shipped()
    if text.lower() in known:
        return known[text.lower()]
    try:
        gpu = find_gpu(text)
    except UsageError as error:
        names = ", ".join(known)
        raise UsageError(
            f"--hardware={text}: there is no such host, and no such GPU.{did_you_mean(text.lower(), known)} Hosts: "
            f"{names}; or name a GPU of one of them, or a file that ends in .toml (see docs/prediction.md)."
        ) from error
    return host_of(gpu)


def host_of(gpu: KnownGpu) -> Hardware:
    """Returns the host that comes with the suite with this GPU; or that of its chip, with this GPU and its links.

    Raises:
        UsageError: the suite has neither.
    """
    own = [hardware for hardware in shipped().values() if find_gpu(hardware.gpu).is_like(gpu)]
    if own:
        return next((hardware for hardware in own if hardware.gpu == gpu.name), own[0])
    for hardware in shipped().values():
        if find_gpu(hardware.gpu).chip == gpu.chip and gpu.link:
            pcie, between = hardware.pcie, None
            assert pcie, "hosts that come with the suite have GPUs"
            if not gpu.link.startswith("nvlink"):
                pcie = msgspec.structs.replace(pcie, link=gpu.link)
            elif hardware.gpu_link:
                between = msgspec.structs.replace(hardware.gpu_link, link=gpu.link)
            title = f"{hardware.title.partition(',')[0]}, as if with {hardware.gpus} x {gpu.name}"
            return msgspec.structs.replace(hardware, title=title, gpu=gpu.name, pcie=pcie, gpu_link=between)
    raise UsageError(
        f"--hardware={gpu.name}: the suite has no host with such a GPU. Hosts: {', '.join(shipped())}. Describe yours "
        "in a TOML file, see docs/prediction.md, and pass its path."
    )


def load(path: Path) -> Hardware:
    """Reads the description of a host.

    Raises:
        UsageError: the file cannot be read, is no TOML, or a field is missing, unknown, misspelled or out of range.
    """
    try:
        table: dict[str, Any] = parse_toml(read_small(path).decode("utf-8-sig"))
        hardware = msgspec.convert(table, Hardware)
    except OSError as error:
        raise UsageError(f"--hardware={path}: the file cannot be read: {error.strerror or error}.") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(
            f"--hardware={path}: {str(error).rstrip('.')}. See docs/prediction.md for the fields and their units."
        ) from error
    for link in (table.link for table in (hardware.pcie, hardware.gpu_link) if table):
        if link not in LINKS:
            raise UsageError(f"--hardware={path}: there is no link '{link}'. Links: {', '.join(LINKS)}.")
    if hardware.gpu and hardware.gpu not in NAMES:
        hardware = msgspec.structs.replace(hardware, gpu=find_gpu(hardware.gpu).name)
    return hardware
