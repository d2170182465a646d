"""Measures the network of a cluster: round trip time and bandwidth between every two tasks, in TensorFlow's steps.

One client, the leader, runs graphs on the other tasks. A short and a long step have the same overhead, so the
difference of their times is free of it.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
import timeit
from collections.abc import Callable, Iterator

import tensorflow as tf

from benchmarks.cluster.member import ClusterTeam, hello, joined, with_collectives
from benchmarks.console import progress, say
from benchmarks.doctor import network_report
from benchmarks.doctor.network_report import Link, Member
from benchmarks.process.watchdog import watched
from benchmarks.topology.cluster import Cluster, Task
from benchmarks.topology.placement import HOST

# With this manager only the leader runs steps; the other tasks serve.
_MANAGER = "distributed_all_reduce"
_AGREEING_SECONDS = 60.0
_PAIR_SECONDS = 300.0
_FEW_ROUNDS, _MANY_ROUNDS = 1, 21
_SMALL_BYTES, _LARGE_BYTES = 2**20, 2**24
# If the small message takes longer, the large one is not sent.
_SLOW_SECONDS = 0.25
_FEWEST_REPETITIONS, _MOST_REPETITIONS = 3, 11
_ENOUGH_SECONDS, _TOO_LONG_SECONDS = 0.5, 5.0


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
        joined(cluster, _MANAGER, watchdog, server_config, start_timeout_seconds) as team,
    ):
        try:
            # Nothing is compared but addresses and software: tasks of a run may differ in what they compute.
            messages = team.agree(hello({}, devices), _AGREEING_SECONDS)
            members = [
                Member(str(task), address, said["host"], said["pid"], said["TensorFlow"], said["devices"])
                for (task, address), said in zip(cluster.tasks.items(), messages.values(), strict=True)
            ]
            network_report.show(output_format, cluster, members, links(cluster, team))
            if team.is_leader:
                team.end()
            else:
                team.serve()
        except tf.errors.OpError as error:
            raise team.explain(error) or error from error
    if not team.is_leader and output_format == "text":
        say("The leader has finished, and so has this task.")


def links(cluster: Cluster, team: ClusterTeam) -> Iterator[Link]:
    """Measures every pair of tasks, one pair at a time."""
    pairs = list(itertools.combinations(cluster.tasks, 2))
    with progress.counted("measuring pairs of tasks", len(pairs)):
        for first, second in pairs:
            team.expect(f"Measuring between {first} and {second}", _PAIR_SECONDS)
            progress.measure()
            link = measure(team.target, cluster.leader, first, second)
            progress.end()
            team.expect_nothing()
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
    """Returns the median time of 3 to 11 calls, without the first call, which sets things up.

    If calls take more than 0.5 s, the shorter of two; if the first takes more than 5 s, its time.
    """
    once = functools.partial(timeit.timeit, run, number=1, timer=time.perf_counter)
    first = once()
    if first > _TOO_LONG_SECONDS:
        return first
    second = once()
    if min(first, second) > _ENOUGH_SECONDS:
        return min(first, second)
    taken = [second]
    while len(taken) < _FEWEST_REPETITIONS or len(taken) < _MOST_REPETITIONS and sum(taken) < _ENOUGH_SECONDS:
        taken.append(once())
    return statistics.median(taken)


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
