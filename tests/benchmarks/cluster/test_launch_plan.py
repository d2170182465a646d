from __future__ import annotations

import socket
import sys

import pytest

from benchmarks.cluster import launch_plan, launcher
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.errors import UsageError
from benchmarks.process import subprocesses
from benchmarks.run import cluster_launch

# What is asked for.


@pytest.mark.parametrize(
    ("text", "ps", "workers"),
    [
        ("ps:1,worker:2", 1, 2),
        ("ps=1,worker=2", 1, 2),
        ("worker:3", 0, 3),
        (" worker : 2 , ps = 1 ", 1, 2),
        ("ps:0,worker:1", 0, 1),
        ("worker:1,ps:1,worker:2", 1, 3),
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
        ("2", "'2' is not part of a cluster"),
        ("ps:1,", "'' is not part of a cluster"),
        ("worker:", "'worker:' is not part of a cluster"),
        ("worker:-1", "'worker:-1' is not part of a cluster"),
        ("worker:1.5", "'worker:1.5' is not part of a cluster"),
        ("chief:1,worker:1", "'chief:1' is not part of a cluster"),
        ("worker:2;ps:1", "'worker:2;ps:1' is not part of a cluster"),
        ("worker:99999", "'worker:99999' is not part of a cluster"),
        ("ps:1", "has no worker, and nothing else trains"),
        ("worker:0,ps:1", "has no worker, and nothing else trains"),
        ("worker:65", "more than 64 processes on one host"),
        ("ps:5,worker:60", "more than 64 processes on one host"),
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


# What is started.

TWO_WORKERS = launch_plan.on_this_host("ps:1,worker:2")


def test_each_worker_has_gpus_of_its_own() -> None:
    assert launcher.divide_gpus(TWO_WORKERS, 2, (0, 2, 4, 5, 7)) == {
        Task("worker", 0): "0,2",
        Task("worker", 1): "4,5",
    }


@pytest.mark.parametrize(("per_worker", "words"), [(1, "2 workers with 1 GPU each need 2"), (2, "2 GPUs each need 4")])
def test_too_few_gpus_are_refused(per_worker: int, words: str) -> None:
    with pytest.raises(UsageError, match=f"{words}, and 1 may be used here. Ask for fewer, or use --device=cpu.$"):
        launcher.divide_gpus(TWO_WORKERS, per_worker, (3,))


def test_a_task_is_told_its_role_after_the_words_of_the_user() -> None:
    command = launcher.local_command(["--model=trivial"], {Task("worker", 1): "2,3"})
    cluster = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0))
    program = [sys.executable, str(subprocesses.RUN_BENCH), "--model=trivial"]
    hosts = ["--worker_hosts=h:2,h:3", "--ps_hosts=h:1"]
    assert command(Task("ps", 0), cluster) == [*program, "--job_name=ps", "--task_index=0", *hosts]
    assert command(Task("worker", 1), cluster) == [
        *program, "--job_name=worker", "--task_index=1", *hosts, "--gpus=2,3",
    ]  # fmt: skip
    without_ps = Cluster(ps=(), workers=("h:2", "h:3"), own=Task("worker", 0))
    assert not any(word.startswith("--ps_hosts") for word in command(Task("worker", 0), without_ps))


STARTED = {"local_cluster": "ps:1,worker:2", "hosts": None}


@pytest.mark.parametrize(
    "words",
    [
        ["--flagfile=that_has_the_cluster"],
        ["--local_cluster=ps:1,worker:2", "--model=trivial"],
        ["--model=trivial", "--local_cluster", "ps:1,worker:2"],
        ["--local_cluster=worker:2", "--job_name=ps"],
    ],
)
def test_the_words_of_the_user_are_found_again(words: list[str]) -> None:
    command = launcher.local_command(words, {Task("worker", 0): "1"})
    cluster = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0))
    for task in cluster.tasks:
        assert cluster_launch.command_of_user(command(task, cluster)[2:], STARTED) == words


@pytest.mark.parametrize(
    "words",
    [[], ["--model=trivial"], ["--job_name=worker", "--task_index=1", "--worker_hosts=a:1,b:1", "--model=trivial"]],
)
def test_a_command_that_started_no_cluster_is_as_the_user_gave_it(words: list[str]) -> None:
    assert cluster_launch.command_of_user(words, {"local_cluster": None, "hosts": None}) == words
