"""What `doctor` measured in a cluster, which links stand out, and how it is printed. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.console import table
from models import specs
from variable_mgr.traffic import FLOAT32_BYTES

_SLOW_SHARE = 0.5
_LATE_FACTOR = 3.0
_GRADIENTS_OF = "resnet50"
_GRADIENT_BYTES = FLOAT32_BYTES * specs.find(_GRADIENTS_OF).parameters


@dataclasses.dataclass(frozen=True)
class Member:
    """A task that answered, and what it reported about itself."""

    task: str
    address: str
    host: str
    pid: int
    tensorflow: str
    devices: str


@dataclasses.dataclass(frozen=True)
class Link:
    """A pair of tasks: their round trip time, and the bandwidth from `first` to `second` and back."""

    first: str
    second: str
    round_trip_seconds: float
    there_bytes_per_second: float
    back_bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class Direction:
    """The bandwidth from one task to another."""

    source: str
    target: str
    bytes_per_second: float


def _directions(links: Sequence[Link]) -> Iterator[Direction]:
    for link in links:
        yield Direction(link.first, link.second, link.there_bytes_per_second)
        yield Direction(link.second, link.first, link.back_bytes_per_second)


def _slowest(links: Sequence[Link]) -> Direction:
    return min(_directions(links), key=lambda direction: direction.bytes_per_second)


def bottleneck(links: Sequence[Link]) -> str:
    """Returns what the slowest direction of at least one link means for training."""
    slowest = _slowest(links)
    return (
        f"One step's gradients of {specs.find(_GRADIENTS_OF).title} ({_GRADIENT_BYTES / 1e6:.0f} MB) take at least "
        f"{_GRADIENT_BYTES / slowest.bytes_per_second:.3g} s over the slowest link, {slowest.source} -> "
        f"{slowest.target} with {slowest.bytes_per_second / 1e9:.3g} GB/s."
    )


def member_table(members: Sequence[Member]) -> list[str]:
    """Returns a header and a line per task."""
    rows = [(one.task, one.address, one.host, str(one.pid), one.tensorflow, one.devices) for one in members]
    return table([("task", "address", "host", "pid", "TensorFlow", "devices"), *rows])


def link_heading(width: int) -> str:
    """Returns the header above `link_row`; `width` is that of the task names."""
    return f"{'a':{width}}  {'b':{width}}  round trip ms  a -> b GB/s  b -> a GB/s"


def link_row(link: Link, width: int) -> str:
    """Returns a line about a link."""
    rates = f"{link.there_bytes_per_second / 1e9:11.3g}  {link.back_bytes_per_second / 1e9:11.3g}"
    return f"{link.first:{width}}  {link.second:{width}}  {link.round_trip_seconds * 1e3:13.3f}  {rates}"


def quality_warnings(links: Sequence[Link], host_of: Mapping[str, str]) -> list[str]:
    """Returns sentences on links that stand out among those of their kind: within a host, or between hosts.

    Args:
        links: of all pairs of tasks.
        host_of: the host of each task.
    """
    sentences, named = [], []
    for within in (True, False):
        kind = [link for link in links if (host_of[link.first] == host_of[link.second]) == within]
        for first, second, sentence in _outliers(kind):
            named.append(frozenset((first, second)))
            sentences.append(f"{sentence}: {_where_to_look(host_of[first], host_of[second])}.")
    common = frozenset.intersection(*named) if named else frozenset()
    if len(set(named)) > 1 and len(common) == 1:
        (task,) = common
        sentences.append(f"All of them have {task} in common ({host_of[task]}): check it first.")
    return sentences


def _outliers(links: Sequence[Link]) -> Iterator[tuple[str, str, str]]:
    """Yields two tasks, and what is odd between them."""
    directions = list(_directions(links))
    rates = [direction.bytes_per_second for direction in directions]
    for number, others in _beyond(rates, lambda rate, typical: rate < _SLOW_SHARE * typical):
        source, target = directions[number].source, directions[number].target
        sentence = f"{source} -> {target} carries {rates[number] / 1e9:.3g} GB/s, others {others / 1e9:.3g}"
        yield source, target, sentence
    times = [link.round_trip_seconds for link in links]
    for number, others in _beyond(times, lambda seconds, typical: seconds > _LATE_FACTOR * typical):
        first, second = links[number].first, links[number].second
        takes = f"takes {times[number] * 1e3:.3g} ms, others {others * 1e3:.3g}"
        yield first, second, f"A round trip {first} -> {second} -> {first} {takes}"


def _beyond(values: Sequence[float], is_odd: Callable[[float, float], bool]) -> Iterator[tuple[int, float]]:
    """Yields the numbers of values that are odd beside the median of all, with the median of the others."""
    for number, value in enumerate(values):
        if is_odd(value, statistics.median(values)):
            yield number, statistics.median([*values[:number], *values[number + 1 :]])


def _where_to_look(host: str, other: str) -> str:
    if host == other:
        return f"check what else runs on {host}"
    return f"check the network between {host} and {other} (which interfaces, their speed), and what else runs there"


def to_dict(members: Sequence[Member], links: Sequence[Link]) -> dict[str, Any]:
    """Returns everything in JSON's types."""
    slowest: dict[str, Any] = {}
    if links:
        slowest = dataclasses.asdict(_slowest(links)) | {"model": _GRADIENTS_OF}
        slowest["gradient_seconds"] = _GRADIENT_BYTES / slowest["bytes_per_second"]
    return {
        "tasks": [dataclasses.asdict(member) for member in members],
        "links": [dataclasses.asdict(link) for link in links],
        "slowest": slowest or None,
        "doubts": quality_warnings(links, {member.task: member.host for member in members}),
    }
