from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.cluster import rendezvous
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.liveness import GrpcProbe, Sign
from benchmarks.cluster.member import start_server
from benchmarks.cluster.rendezvous import TaskLists, difference
from benchmarks.errors import UsageError
from tests.support.clusters import free_addresses

MINE = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0))


def started(hosts: Mapping[str, Sequence[str]], own: Task = MINE.own) -> tf.distribute.Server:
    return start_server(hosts, own, tf.compat.v1.ConfigProto(device_count={"GPU": 0}))


def message(cluster: Cluster) -> dict[str, Any]:
    return json.loads(json.dumps({"task": str(cluster.own), "address": cluster.address, "tasks": cluster.spec()}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"workers": ("h:4", "h:3")},
            "worker 1 (h:3) has worker = h:4, h:3; worker 0 (h:2) has worker = h:2, h:3. "
            "Start all tasks with the same --worker_hosts (or --cluster_spec, or TF_CONFIG).",
        ),
        (
            {"ps": (), "controller": "h:9"},
            "worker 1 (h:3) has ps = nothing, controller = h:9; worker 0 (h:2) has ps = h:1, controller = nothing. "
            "Start all tasks with the same --ps_hosts and --controller_host (or --cluster_spec, or TF_CONFIG).",
        ),
        ({}, None),
    ],
)
def test_what_differs_is_named_with_its_flag(change: dict[str, Any], sentence: str | None) -> None:
    other = dataclasses.replace(MINE, own=Task("worker", 1), **change)
    assert difference(message(MINE), message(other)) == sentence


def test_a_process_that_is_another_task_than_its_address_is_told_which_to_be() -> None:
    other = message(dataclasses.replace(MINE, own=Task("worker", 1)))
    assert difference(message(MINE), other, Task("worker", 1)) is None
    assert difference(message(MINE), other, Task("ps", 0)) == (
        "In the lists of all tasks h:1 is ps 0, and the process there was started as worker 1: "
        "give it --job_name=ps --task_index=0, or list its host under one name only."
    )


@pytest.fixture(scope="module")
def two() -> tuple[Cluster, Cluster, TaskLists, TaskLists]:
    """Two servers in this process, whose lists differ in a third task, which does not run."""
    first, second, third, fourth = free_addresses(4)
    clusters = [
        Cluster(ps=(), workers=(first, second, other), own=Task("worker", index))
        for index, other in enumerate((third, fourth))
    ]
    now = iter(range(10**6))
    lists = [
        TaskLists(cluster, started(cluster.spec(), cluster.own).target, clock=lambda: float(next(now)))
        for cluster in clusters
    ]
    return (*clusters, *lists)  # type: ignore[return-value]


def test_both_learn_of_a_difference_and_wait_a_while_for_the_third(
    two: tuple[Cluster, Cluster, TaskLists, TaskLists],
) -> None:
    first, second, of_first, of_second = two
    reply = GrpcProbe()(second.address, 30.0).reply
    others = {Task("worker", 1), Task("worker", 2)}
    assert of_first.compare({}) == of_first.compare({Task("worker", 1): reply}) == others, "neither was told"
    assert of_first.problem is not None
    assert of_first.problem.startswith(
        f"worker 1 ({second.address}) has worker = {', '.join(second.workers)}; worker 0 "
    )
    assert of_second.compare({}) == {Task("worker", 2)}, "the first has left its lists there"
    assert of_second.problem is not None
    assert of_second.problem.startswith(
        f"worker 0 ({first.address}) has worker = {', '.join(first.workers)}; worker 1 "
    )
    with pytest.raises(UsageError, match="Start all tasks with the same --worker_hosts"):
        for _ in range(round(rendezvous._TELLING_SECONDS) + 2):
            of_first.compare({Task("worker", 1): reply})


def test_a_server_answers_a_probe_alike_until_it_is_started_anew() -> None:
    addresses, probe = free_addresses(2), GrpcProbe()
    servers = [started({"worker": [address]}) for address in addresses]
    first, again, other = (probe(address, 30.0) for address in (addresses[0], *addresses))
    assert first == again and first.sign is other.sign is Sign.ALIVE
    assert b"/job:worker/replica:0/task:0" in first.reply and first.reply != other.reply
    del servers


def test_a_server_that_publishes_nothing_is_no_task_of_a_run() -> None:
    own, bare = free_addresses(2)
    cluster = Cluster(ps=(), workers=(own, bare), own=Task("worker", 0))
    lists, keep = TaskLists(cluster, started(cluster.spec()).target), started({"wk": [bare]}, Task("wk", 0))
    other = Task("worker", 1)
    assert lists.compare({other: GrpcProbe()(bare, 30.0).reply}) == {other}
    del keep


def test_a_session_that_does_not_close_in_time_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def close(session: tf.compat.v1.Session) -> None:
        raise tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded")

    (own,) = free_addresses(1)
    target = started({"worker": [own]}).target
    with monkeypatch.context() as patched:
        patched.setattr(tf.compat.v1.Session, "close", close)
        with rendezvous._session(target, [Task("worker", 0).device], 5.0) as session:
            assert session.run(tf.constant(7)) == 7
    assert "Traceback" not in capfd.readouterr().err
