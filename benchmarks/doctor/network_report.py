"""What `doctor` measured in a cluster, which links stand out, and how it is printed. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from models import specs
from results.text import table
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


def _rates(links: Sequence[Link]) -> dict[tuple[str, str], float]:
    """Returns the bytes per second of both directions of each link, by source and target."""
    rates = {}
    for link in links:
        rates[link.first, link.second] = link.there_bytes_per_second
        rates[link.second, link.first] = link.back_bytes_per_second
    return rates


def _slowest(links: Sequence[Link]) -> tuple[str, str, float, float]:
    """Returns source, target and bytes per second of the slowest direction, and the seconds of a step's gradients."""
    (source, target), rate = min(_rates(links).items(), key=lambda item: item[1])
    return source, target, rate, _GRADIENT_BYTES / rate


def bottleneck(links: Sequence[Link]) -> str:
    """Returns what the slowest direction of at least one link means for training."""
    source, target, rate, seconds = _slowest(links)
    return (
        f"One step's gradients of {specs.find(_GRADIENTS_OF).title} ({_GRADIENT_BYTES / 1e6:.0f} MB) take at least "
        f"{seconds:.3g} s over the slowest link, {source} -> {target} with {rate / 1e9:.3g} GB/s."
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
    slow = _beyond(_rates(links), lambda rate, typical: rate < _SLOW_SHARE * typical)
    for source, target, rate, others in slow:
        yield source, target, f"{source} -> {target} carries {rate / 1e9:.3g} GB/s, others {others / 1e9:.3g}"
    times = {(link.first, link.second): link.round_trip_seconds for link in links}
    late = _beyond(times, lambda seconds, typical: seconds > _LATE_FACTOR * typical)
    for first, second, seconds, others in late:
        takes = f"takes {seconds * 1e3:.3g} ms, others {others * 1e3:.3g}"
        yield first, second, f"A round trip {first} -> {second} -> {first} {takes}"


def _beyond(
    measured: Mapping[tuple[str, str], float], is_odd: Callable[[float, float], bool]
) -> Iterator[tuple[str, str, float, float]]:
    """Yields the pairs whose value is odd beside the median of all, with the value and the median of the others."""
    for pair, value in measured.items():
        if is_odd(value, statistics.median(measured.values())):
            yield *pair, value, statistics.median(other for key, other in measured.items() if key != pair)


def _where_to_look(host: str, other: str) -> str:
    if host == other:
        return f"check what else runs on {host}"
    return f"check the network between {host} and {other} (which interfaces, their speed), and what else runs there"


def to_dict(members: Sequence[Member], links: Sequence[Link]) -> dict[str, Any]:
    """Returns everything in JSON's types."""
    names = ("source", "target", "bytes_per_second", "gradient_seconds")
    slowest = {**dict(zip(names, _slowest(links), strict=True)), "model": _GRADIENTS_OF} if links else None
    return {
        "tasks": [dataclasses.asdict(member) for member in members],
        "links": [dataclasses.asdict(link) for link in links],
        "slowest": slowest,
        "doubts": quality_warnings(links, {member.task: member.host for member in members}),
    }
