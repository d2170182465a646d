"""What `doctor` measured in a cluster, which links stand out, and how it is printed. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.console import say
from benchmarks.topology.cluster import Cluster
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


def _slowest(links: Sequence[Link]) -> dict[str, Any]:
    """Returns the slowest direction of at least one link, and how long a step's gradients take over it."""
    (source, target), rate = min(_rates(links).items(), key=lambda item: item[1])
    seconds = _GRADIENT_BYTES / rate
    found = {"source": source, "target": target, "bytes_per_second": rate, "gradient_seconds": seconds}
    return {**found, "model": _GRADIENTS_OF}


def bottleneck(links: Sequence[Link]) -> str:
    """Returns what the slowest direction of at least one link means for training."""
    found = _slowest(links)
    return (
        f"One step's gradients of {specs.find(_GRADIENTS_OF).title} ({_GRADIENT_BYTES / 1e6:.0f} MB) take at least "
        f"{found['gradient_seconds']:.3g} s over the slowest link, {found['source']} -> {found['target']} with "
        f"{found['bytes_per_second'] / 1e9:.3g} GB/s."
    )


def show(output_format: str, cluster: Cluster, members: Sequence[Member], links: Iterable[Link]) -> None:
    """Prints the tasks, and if this task is the leader, which measures, the links as they come; or one JSON object.

    Only the leader takes from `links`, which measures them.
    """
    is_leader = cluster.own == cluster.leader
    if output_format == "json":
        if is_leader:
            say(json.dumps(to_dict(members, list(links))))
        return
    say(f"All {len(members)} tasks answer, with the same TensorFlow:\n")
    rows = [(one.task, one.address, one.host, str(one.pid), one.tensorflow, one.devices) for one in members]
    for line in table([("task", "address", "host", "pid", "TensorFlow", "devices"), *rows]):
        say(line)
    if not is_leader:
        say(f"\n{cluster.leader} measures the links between tasks and prints them.")
        return
    if len(members) == 1:
        say("\nThere is only one task, so there is no link to measure.")
        return
    width = max(len(member.task) for member in members)
    say("\nBetween host memories, through TensorFlow's gRPC; medians, GB are 1e9 bytes:\n")
    say(f"{'a':{width}}  {'b':{width}}  round trip ms  a -> b GB/s  b -> a GB/s")
    measured = []
    for link in links:
        measured.append(link)
        rates = f"{link.there_bytes_per_second / 1e9:11.3g}  {link.back_bytes_per_second / 1e9:11.3g}"
        say(f"{link.first:{width}}  {link.second:{width}}  {link.round_trip_seconds * 1e3:13.3f}  {rates}")
    host_of = {member.task: member.host for member in members}
    for line in ["", *quality_warnings(measured, host_of), bottleneck(measured)]:
        say(line)


def quality_warnings(links: Sequence[Link], host_of: Mapping[str, str]) -> list[str]:
    """Returns sentences on links that stand out among those of their kind: within a host, or between hosts."""
    sentences, named = [], []
    for within in (True, False):
        kind = [link for link in links if (host_of[link.first] == host_of[link.second]) == within]
        for first, second, sentence in _outliers(kind):
            host, other = host_of[first], host_of[second]
            between = (
                f"check the network between {host} and {other} (which interfaces, their speed), and what else runs"
            )
            named.append(frozenset((first, second)))
            sentences.append(f"{sentence}: " + (f"check what else runs on {host}." if within else f"{between} there."))
    common = frozenset.intersection(*named) if named else frozenset()
    if len(set(named)) > 1 and len(common) == 1:
        (task,) = common
        sentences.append(f"All of them have {task} in common ({host_of[task]}): check it first.")
    return sentences


def _outliers(links: Sequence[Link]) -> Iterator[tuple[str, str, str]]:
    """Yields two tasks, and what is odd between them: a value far from the median of all."""
    rates = _rates(links)
    for (source, target), rate in rates.items():
        if rate < _SLOW_SHARE * statistics.median(rates.values()):
            others = _median_of_others(rates, (source, target)) / 1e9
            yield source, target, f"{source} -> {target} carries {rate / 1e9:.3g} GB/s, others {others:.3g}"
    times = {(link.first, link.second): link.round_trip_seconds for link in links}
    for (first, second), seconds in times.items():
        if seconds > _LATE_FACTOR * statistics.median(times.values()):
            takes = f"takes {seconds * 1e3:.3g} ms, others {_median_of_others(times, (first, second)) * 1e3:.3g}"
            yield first, second, f"A round trip {first} -> {second} -> {first} {takes}"


def _median_of_others(measured: Mapping[tuple[str, str], float], pair: tuple[str, str]) -> float:
    return statistics.median(value for key, value in measured.items() if key != pair)


def to_dict(members: Sequence[Member], links: Sequence[Link]) -> dict[str, Any]:
    """Returns everything in JSON's types."""
    return {
        "tasks": [dataclasses.asdict(member) for member in members],
        "links": [dataclasses.asdict(link) for link in links],
        "slowest": _slowest(links) if links else None,
        "doubts": quality_warnings(links, {member.task: member.host for member in members}),
    }
