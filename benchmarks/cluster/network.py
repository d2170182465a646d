"""Measures the network of a cluster: round trip time and bandwidth between every two tasks, in TensorFlow's steps.

One client, the leader, runs graphs on the other tasks. A short and a long step have the same overhead, so the
difference of their times is free of it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.agreement import hello
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.member import ClusterTeam, joined, with_collectives
from benchmarks.console import progress, say
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import watched
from results.text import Table
from variable_mgr.place import HOST

# With this manager only the leader runs steps; the other tasks serve.
_MANAGER = "distributed_all_reduce"
_PAIR_SECONDS = 300.0
# Of what each task tells about itself, all that is shown; a member is that, its task and its address, by name.
_TOLD = ("host", "pid", "TensorFlow", "devices")
_FEW_ROUNDS, _MANY_ROUNDS = 1, 21
_SMALL_BYTES, _LARGE_BYTES = 2**20, 2**24
# If the small message takes longer, the large one is not sent.
_SLOW_SECONDS = 0.25
_REPETITIONS = 5
_TOO_LONG_SECONDS = 5.0
# A link stands out if it has a smaller share of the usual rate, or takes so many times as long.
_SLOW_SHARE = 0.5
_LATE_FACTOR = 3.0


@dataclasses.dataclass(frozen=True)
class Link:
    """A pair of tasks: their round trip time, and the bandwidth from `first` to `second` and back."""

    first: str
    second: str
    round_trip_seconds: float
    there_bytes_per_second: float
    back_bytes_per_second: float


def take_part(
    cluster: Cluster,
    devices: str,
    server_config: tf.compat.v1.ConfigProto,
    output_format: str,
    *,
    start_timeout_seconds: float,
) -> None:
    """Joins the cluster, lets the leader measure and print, and ends together with all other tasks.

    Raises:
        ClusterError: tasks are missing, or one has gone.
        UsageError: tasks differ in their addresses or software.
    """
    with (
        watched() as watchdog,
        joined(cluster, _MANAGER, Deadlines(watchdog).silent(), server_config, start_timeout_seconds) as team,
    ):
        # Nothing is compared but addresses and software: tasks of a run may differ in what they compute.
        messages = team.agree(hello({}, devices))
        members = [
            {"task": str(task), "address": address, **{name.lower(): told[name] for name in _TOLD}}
            for (task, address), told in zip(cluster.tasks.items(), messages.values(), strict=True)
        ]
        show(output_format, cluster, members, links(cluster, team))
        if team.is_leader:
            team.end()
        else:
            team.serve()
    if not team.is_leader and output_format == "text":
        say("The leader has finished, and so has this task.")


def links(cluster: Cluster, team: ClusterTeam) -> Iterator[Link]:
    """Measures every pair of tasks, one pair at a time."""
    pairs = list(itertools.combinations(cluster.tasks, 2))
    with progress.counted("measuring pairs of tasks", len(pairs)):
        for first, second in pairs:
            team.deadlines.within(_PAIR_SECONDS, f"Measuring between {first} and {second}")
            progress.measure()
            link = measure(team.target, cluster.leader, first, second)
            progress.end()
            team.deadlines.none()
            progress.advance()
            yield link


def measure(target: str, client: Task, first: Task, second: Task) -> Link:
    """Measures the link between two tasks; `target` is that of the server of `client`, which may be one of them."""
    with tf.Graph().as_default() as graph, graph.container("doctor"):
        hops = [chain(first, second, rounds) for rounds in (_FEW_ROUNDS, _MANY_ROUNDS)]
        variables = [[_variable(task, size) for size in (_SMALL_BYTES, _LARGE_BYTES)] for task in (first, second)]
        carried = [[carry(each, to) for each in own] for own, to in zip(variables, (second, first), strict=True)]
        config = session_config({client, first, second})
        with tf.compat.v1.Session(target, graph=graph, config=config) as session:
            session.run([variable.initializer for own in variables for variable in own])
            few, many = map(session.make_callable, hops)
            rates = [bandwidth(*map(session.make_callable, operations)) for operations in carried]
            return Link(str(first), str(second), round_trip(few, many), *rates)


def round_trip(few: Callable[[], object], many: Callable[[], object]) -> float:
    """Returns seconds per round trip, from a step with few round trips and one with many."""
    short, long = typical_seconds(few), typical_seconds(many)
    if long <= short:  # noise; the result then includes the overhead of a step
        return long / _MANY_ROUNDS
    return (long - short) / (_MANY_ROUNDS - _FEW_ROUNDS)


def bandwidth(small: Callable[[], object], large: Callable[[], object]) -> float:
    """Returns bytes per second, from steps that transfer a small and a large tensor."""
    small_seconds = typical_seconds(small)
    if small_seconds > _SLOW_SECONDS:
        return _SMALL_BYTES / small_seconds
    large_seconds = typical_seconds(large)
    if large_seconds < 2 * small_seconds:  # noise; the result then includes the overhead of a step
        return _LARGE_BYTES / large_seconds
    return (_LARGE_BYTES - _SMALL_BYTES) / (large_seconds - small_seconds)


def typical_seconds(run: Callable[[], object]) -> float:
    """Returns the median time of five calls after the first, which sets things up; the first alone if it is long."""
    once = functools.partial(timeit.timeit, run, number=1, timer=time.perf_counter)
    first = once()
    return first if first > _TOO_LONG_SECONDS else statistics.median(once() for _ in range(_REPETITIONS))


def chain(first: Task, second: Task, rounds: int) -> tf.Tensor:
    """Returns a number that travels to the second task and back so often; each task adds 1.

    The receiver requests a tensor when the step begins, so each hop is one message and a round trip is two.
    """
    with tf.device(first.device + HOST):
        number = tf.zeros([])
    for task in (second, first) * rounds:
        with tf.device(task.device + HOST):
            number = number + 1.0
    return number


def carry(variable: tf.Variable, to: Task) -> tf.Operation:
    """Returns an operation that needs the whole tensor on a task."""
    with tf.device(variable.device):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    with tf.device(to.device + HOST):
        return tf.identity(value)[0].op


def _variable(task: Task, size_bytes: int) -> tf.Variable:
    """Returns a vector of random numbers that the task itself generates."""
    with tf.device(task.device + HOST):
        numbers = tf.random.stateless_uniform([size_bytes // tf.float32.size], (1, 2))
        return tf.Variable(numbers, trainable=False, name=f"{task.job}_{task.index}_{size_bytes}")


def session_config(tasks: set[Task]) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a session that sees only these tasks, and does not optimize the graph."""
    config = with_collectives(tf.compat.v1.ConfigProto(allow_soft_placement=False))
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    config.device_filters.extend(sorted(task.device for task in tasks))
    return config


def show(output_format: str, cluster: Cluster, members: Sequence[Mapping[str, Any]], links: Iterable[Link]) -> None:
    """Prints the tasks, and if this task is the leader, which measures, the links as they come; or one JSON object.

    Only the leader takes from `links`, which measures them.
    """
    is_leader = cluster.own == cluster.leader
    if output_format == "json":
        if is_leader:
            say(json.dumps(to_dict(members, list(links))))
        return
    say(f"All {len(members)} tasks answer, with the same TensorFlow:\n")
    rows = [tuple(map(str, member.values())) for member in members]
    say(*Table(("task", "address", *_TOLD), rows, ("pid",)).text(rule=False))
    if not is_leader:
        say(f"\n{cluster.leader} measures the links between tasks and prints them.")
        return
    if len(members) == 1:
        say("\nThere is only one task, so there is no link to measure.")
        return
    width = max(len(member["task"]) for member in members)
    say("\nBetween host memories, through TensorFlow's gRPC; medians, GB are 1e9 bytes:\n")
    numbers = ("round trip ms", "a -> b GB/s", "b -> a GB/s")
    table = Table(("a", "b", *numbers), numbers=numbers, widths=(width, width, *map(len, numbers)))
    say(table.line())
    measured = []
    for link in links:
        measured.append(link)
        rates = [f"{rate / 1e9:.3g}" for rate in (link.there_bytes_per_second, link.back_bytes_per_second)]
        say(table.line([link.first, link.second, f"{link.round_trip_seconds * 1e3:.3f}", *rates]))
    host_of = {member["task"]: member["host"] for member in members}
    for sentence in quality_warnings(measured, host_of):
        say(f"\n{sentence}")


def quality_warnings(links: Sequence[Link], host_of: Mapping[str, str]) -> list[str]:
    """Returns sentences on links that stand out among those of their kind: within a host, or between hosts."""
    sentences = []
    for within in (True, False):
        kind = [link for link in links if (host_of[link.first] == host_of[link.second]) == within]
        for first, second, sentence in _outliers(kind):
            host, other = host_of[first], host_of[second]
            between = (
                f"check the network between {host} and {other} (which interfaces, their speed), and what else runs"
            )
            sentences.append(f"{sentence}: " + (f"check what else runs on {host}." if within else f"{between} there."))
    return sentences


def _outliers(links: Sequence[Link]) -> Iterator[tuple[str, str, str]]:
    """Yields two tasks, and what is odd between them: a value far from the median of all."""
    rates = [(link.first, link.second, link.there_bytes_per_second / 1e9) for link in links]
    rates += [(link.second, link.first, link.back_bytes_per_second / 1e9) for link in links]
    for source, target, rate in rates:
        usual = statistics.median(other for *_, other in rates)
        if rate < _SLOW_SHARE * usual:
            yield source, target, f"{source} -> {target} carries {rate:.3g} GB/s, and the median is {usual:.3g}"
    for link in links:
        seconds, usual = link.round_trip_seconds, statistics.median(other.round_trip_seconds for other in links)
        if seconds > _LATE_FACTOR * usual:
            takes = f"takes {seconds * 1e3:.3g} ms, and the median is {usual * 1e3:.3g}"
            yield link.first, link.second, f"A round trip {link.first} -> {link.second} -> {link.first} {takes}"


def to_dict(members: Sequence[Mapping[str, Any]], links: Sequence[Link]) -> dict[str, Any]:
    """Returns everything in JSON's types."""
    return {
        "tasks": list(members),
        "links": [dataclasses.asdict(link) for link in links],
        "warnings": quality_warnings(links, {member["task"]: member["host"] for member in members}),
    }
