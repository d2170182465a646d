"""What a step sends between devices, or between processes: transfers by formula, and sums of them. No TensorFlow.

Payload only, counted once, where it is sent. What the runtime moves within one device and what a protocol adds are not
counted. On logical CPU devices nothing is copied; the figures are those of the same setting on real devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from variable_mgr.place import Place, balance_by_bytes

if TYPE_CHECKING:
    from variable_mgr.manager import VariableSpec

FLOAT32_BYTES = 4  # every weight and statistic is float32
# The ends of a link within a process: the host, and any of the towers' devices, none of which is the host.
HOST, DEVICE = "host", "device"
# The kinds of links between two devices: within a process, and between processes.
TO_DEVICE, TO_HOST, BETWEEN_DEVICES, NETWORK = "host to device", "device to host", "device to device", "network"
# The number of transfers and their bytes, by kind of link.
ByKind = Mapping[str, tuple[float, float]]
What = Literal["read", "gradient", "weight", "activation", "statistic"]
_Key = TypeVar("_Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Tensors that a step sends over one link.

    Attributes:
        source: `HOST`, `DEVICE`, or a process of a cluster, such as `worker 0` or `ps 1`.
        target: the other end of the link.
        size_bytes: of these tensors together; NaN if unknown.
        number: of these tensors; NaN if unknown. Both are means per step if not every step sends the same.
        what: `read`: values that towers fetch; `gradient`: gradients on their way to where they are reduced, and their
            means on the way back; `weight`: weights that towers exchange with each other; `activation`: activations,
            and gradients of them; `statistic`: moving averages on their way to where they are kept.
        variable: the name of the variable of which they are; empty: of several.
    """

    source: str
    target: str
    size_bytes: float
    number: float = 1
    what: What = "gradient"
    variable: str = ""

    @property
    def kind(self) -> str:
        """Returns the kind of the link."""
        return f"{self.source} to {self.target}" if self.source in (HOST, DEVICE) else NETWORK


UNKNOWN = Transfer(DEVICE, DEVICE, math.nan, math.nan)


def total_bytes(sent: Iterable[Transfer], what: What | None = None) -> int | None:
    """Returns the bytes of all transfers, or of those of one sort; None if unknown."""
    return _known(sum(transfer.size_bytes for transfer in sent if what in (None, transfer.what)))


def total_number(sent: Iterable[Transfer]) -> int | None:
    """Returns the number of tensors that are sent; None if unknown."""
    return _known(sum(transfer.number for transfer in sent))


def _known(number: float) -> int | None:
    return None if math.isnan(number) else int(number)


def summed(parts: Iterable[tuple[_Key, float, float]]) -> dict[_Key, tuple[float, float]]:
    """Returns the sums of numbers and of bytes by key."""
    sums: dict[_Key, tuple[float, float]] = {}
    for key, number, size in parts:
        before = sums.get(key, (0, 0))
        sums[key] = (before[0] + number, before[1] + size)
    return sums


def by_kind(sent: Iterable[Transfer]) -> ByKind | None:
    """Returns the number and the bytes of transfers by kind of link; None if some are unknown."""
    sums = summed((transfer.kind, transfer.number, transfer.size_bytes) for transfer in sent)
    return None if any(math.isnan(size) for _, size in sums.values()) else sums


def by_link(sent: Iterable[Transfer]) -> dict[str, int]:
    """Returns the bytes between processes by link, such as `worker 0 -> ps 1`; empty if there are none, or unknown."""
    sums = summed(
        (f"{transfer.source} -> {transfer.target}", transfer.number, transfer.size_bytes)
        for transfer in sent
        if transfer.kind == NETWORK
    )
    return {link: round(size) for link, (_, size) in sums.items()}


def busiest_server(links: Mapping[str, int]) -> int | None:
    """Returns the bytes in and out of the parameter server that has most of them; None without servers."""
    of_server: Counter[str] = Counter()
    for link, size in links.items():
        for end in link.split(" -> "):
            if end.startswith("ps "):
                of_server[end] += size
    return max(of_server.values(), default=None)


def over_servers(
    variables: Iterable[VariableSpec], place: Place, wire_dtype: str, *, training: bool = True, exchanges: int = 1
) -> list[Transfer]:
    """Returns what parameter servers and workers send each other in a step.

    All shared variables go to every worker. A weight's gradient comes back from each, moving averages from worker 0.
    The variables are in the order of their creation. Gradients travel as `wire_dtype`, and `exchanges` is how often a
    worker fetches and sends in a step.
    """
    shared = [variable for variable in variables if variable.kind != "tower_state"]
    elements = [math.prod(variable.shape) for variable in shared]
    homes = balance_by_bytes([FLOAT32_BYTES * count for count in elements], range(len(place.ps)))
    workers = len(place.by_worker()) if place.hosts else place.workers
    wire_bytes = FLOAT32_BYTES if wire_dtype == "float32" else 2
    sent = []
    for variable, count, home in zip(shared, elements, homes, strict=True):
        name = variable.name
        for number in range(workers):
            server, worker = f"ps {home}", f"worker {number}"
            sent.append(Transfer(server, worker, exchanges * FLOAT32_BYTES * count, exchanges, "read", name))
            if training and variable.kind == "weight":
                sent.append(Transfer(worker, server, exchanges * wire_bytes * count, exchanges, "gradient", name))
            elif training:
                times = 1 if number == 0 else 0  # a link without bytes is listed, too
                sent.append(Transfer(worker, server, times * FLOAT32_BYTES * count, times, "statistic", name))
    return sent


def around_ring(size_bytes: float, place: Place) -> list[Transfer]:
    """Returns what workers send each other to reduce this many bytes around a ring of all their towers.

    Each tower sends 2 (n-1)/n of them to the next one, and the last tower of a worker sends to the next worker.
    """
    towers, workers = place.towers_in_total, place.workers
    sent = 2 * (towers - 1) / towers * size_bytes
    return [Transfer(f"worker {i}", f"worker {(i + 1) % workers}", sent, math.nan) for i in range(workers)]


def weight_elements(variables: Iterable[VariableSpec]) -> list[int]:
    """Returns the number of elements of each weight."""
    return [math.prod(variable.shape) for variable in variables if variable.kind == "weight"]
