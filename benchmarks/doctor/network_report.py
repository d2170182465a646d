"""What `doctor` found out of a cluster, what is odd about it, and how it is shown. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models import specs
from variable_mgr.traffic import FLOAT32_BYTES

_SLOW_SHARE = 0.5
_LATE_FACTOR = 3.0
_GRADIENTS_OF = "resnet50"


@dataclasses.dataclass(frozen=True)
class Member:
    """A task that answered, and what it said of itself."""

    task: str
    address: str
    host: str
    pid: int
    tensorflow: str
    devices: str


@dataclasses.dataclass(frozen=True)
class Link:
    """What is between two tasks: a round trip, and the bandwidth from `first` to `second` and back."""

    first: str
    second: str
    round_trip_seconds: float
    there_bytes_per_second: float
    back_bytes_per_second: float

    def ways(self) -> tuple[Way, Way]:
        """Returns both directions."""
        return (
            Way(self.first, self.second, self.there_bytes_per_second),
            Way(self.second, self.first, self.back_bytes_per_second),
        )


@dataclasses.dataclass(frozen=True)
class Way:
    """One direction between two tasks."""

    source: str
    target: str
    bytes_per_second: float

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def member_table(members: Sequence[Member]) -> list[str]:
    """Returns a header and a line per task."""
    rows = [("task", "address", "host", "pid", "TensorFlow", "devices")]
    rows += [(m.task, m.address, m.host, str(m.pid), m.tensorflow, m.devices) for m in members]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def link_heading(width: int) -> str:
    """Returns the header over `link_row`; `width` is that of a task's name."""
    return f"{'a':{width}}  {'b':{width}}  round trip ms  a -> b GB/s  b -> a GB/s"


def link_row(link: Link, width: int) -> str:
    """Returns a line on the way from a to b and back."""
    there, back = (way.bytes_per_second / 1e9 for way in link.ways())
    times = f"{link.round_trip_seconds * 1e3:13.3f}  {there:11.3g}  {back:11.3g}"
    return f"{link.first:{width}}  {link.second:{width}}  {times}"


def doubts(links: Sequence[Link], host_of: Mapping[str, str]) -> list[str]:
    """Returns sentences on links that stand out among those of their kind: within a host, or between hosts.

    Args:
        links: of all pairs of tasks.
        host_of: each task's host.
    """
    sentences, named = [], []
    for within in (True, False):
        kind = [link for link in links if (host_of[link.first] == host_of[link.second]) == within]
        for pair, sentence in [*_slow(kind), *_late(kind)]:
            named.append(frozenset(pair))
            sentences.append(f"{sentence}: {_where_to_look(host_of[pair[0]], host_of[pair[1]])}.")
    common = frozenset.intersection(*named) if named else frozenset()
    if len(set(named)) > 1 and len(common) == 1:
        (task,) = common
        sentences.append(f"All of them have {task} in common ({host_of[task]}): look there first.")
    return sentences


def _slow(links: Sequence[Link]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yields the tasks at the ends, and what is odd."""
    ways = [way for link in links for way in link.ways()]
    for way in ways:
        if way.bytes_per_second < _SLOW_SHARE * statistics.median(other.bytes_per_second for other in ways):
            others = statistics.median(other.bytes_per_second for other in ways if other is not way)
            yield (
                (way.source, way.target),
                f"{way} carries {way.bytes_per_second / 1e9:.3g} GB/s, others {others / 1e9:.3g}",
            )


def _late(links: Sequence[Link]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yields the tasks at the ends, and what is odd."""
    for link in links:
        if link.round_trip_seconds > _LATE_FACTOR * statistics.median(other.round_trip_seconds for other in links):
            others = statistics.median(other.round_trip_seconds for other in links if other is not link)
            yield (
                (link.first, link.second),
                f"A round trip {link.first} -> {link.second} -> {link.first} takes "
                f"{link.round_trip_seconds * 1e3:.3g} ms, others {others * 1e3:.3g}",
            )


def _where_to_look(host: str, other: str) -> str:
    if host == other:
        return f"look at what else runs on {host}"
    return (
        f"look at the network between {host} and {other} (which interfaces, their speed), and at what else runs there"
    )


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """The slowest direction of all, and how long a model's gradients take over it at least."""

    way: Way
    gradient_bytes: int

    @property
    def seconds(self) -> float:
        """How long one step's gradients take."""
        return self.gradient_bytes / self.way.bytes_per_second

    def sentence(self) -> str:
        """Returns the closing line."""
        return (
            f"One step's gradients of {specs.find(_GRADIENTS_OF).title} ({self.gradient_bytes / 1e6:.0f} MB) take at "
            f"least {self.seconds:.3g} s over the slowest link, {self.way} with "
            f"{self.way.bytes_per_second / 1e9:.3g} GB/s."
        )


def bottleneck(links: Sequence[Link]) -> Bottleneck | None:
    """Returns the slowest direction; None if there is no link."""
    ways = [way for link in links for way in link.ways()]
    if not ways:
        return None
    slowest = min(ways, key=lambda way: way.bytes_per_second)
    return Bottleneck(slowest, FLOAT32_BYTES * specs.find(_GRADIENTS_OF).parameters)


def to_dict(members: Sequence[Member], links: Sequence[Link]) -> dict[str, Any]:
    """Returns everything, as JSON can hold it."""
    slowest = bottleneck(links)
    return {
        "tasks": [dataclasses.asdict(member) for member in members],
        "links": [dataclasses.asdict(link) for link in links],
        "slowest": slowest
        and dataclasses.asdict(slowest.way) | {"model": _GRADIENTS_OF, "gradient_seconds": slowest.seconds},
        "doubts": doubts(links, {member.task: member.host for member in members}),
    }
