from __future__ import annotations

import socket

import pytest

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Task
from benchmarks.errors import UsageError

# What is asked for.


@pytest.mark.parametrize(
    ("text", "ps", "workers"),
    [
        ("ps:1,worker:2", 1, 2),
        (" worker : 2 , ps = 1 ", 1, 2),
        ("worker:1,ps:1,worker:2", 1, 3),
        ("PS:1,Worker:2", 1, 2),
        ("ps:4,worker:60", 4, 60),
    ],
)
def test_a_text_plans_a_cluster(text: str, ps: int, workers: int) -> None:
    cluster = launch_plan.on_this_host(text)
    assert (cluster.num_ps, cluster.num_workers) == (ps, workers)
    assert (cluster.own, cluster.leader, cluster.num_hosts) == (Task("worker", 0), Task("worker", 0), 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not part of a cluster"),
        ("ps:1,", "'' is not part of a cluster"),
        ("chief:1,worker:1", "'chief:1' is not part of a cluster"),
        ("worker:\u0662", "is not part of a cluster"),
        ("wor\u212aer:2", "is not part of a cluster"),
        ("worker:99999", "'worker:99999' is not part of a cluster"),
        ("worker:0,ps:1", "has no worker, and nothing else trains"),
        ("worker:65", "more than 64 processes on one host"),
    ],
)
def test_a_text_that_plans_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        launch_plan.on_this_host(text)
    sentence = str(raised.value)
    assert sentence.startswith(f"--local_cluster={text}") and words in sentence
    assert sentence.endswith("give the number of tasks of each job, such as --local_cluster=ps:1,worker:2.")


def test_ports_are_free_and_all_different() -> None:
    cluster = launch_plan.with_free_ports(launch_plan.on_this_host("ps:20,worker:40"))
    assert (cluster.num_ps, cluster.num_workers, cluster.own, cluster.local) == (20, 40, Task("worker", 0), True)
    assert len(set(cluster.tasks.values())) == 60
    for address in cluster.tasks.values():
        host, port = address.split(":")
        with socket.socket() as trial:
            trial.bind((host, int(port)))
