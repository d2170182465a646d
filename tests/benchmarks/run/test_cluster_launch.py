"""What the process that starts a cluster does itself: the network it needs, and the record that no leader has saved."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.errors import ExitStatus, Terminated, UsageError
from benchmarks.machine import contention
from benchmarks.process import private_network, subprocesses
from benchmarks.run import cluster_launch
from benchmarks.run.cluster_launch import Outcome
from results.record import Status
from results.store import Store
from tests.support.commands import Records, RunBench
from tests.support.records import make_record

LOCAL = ("--local_cluster=worker:2", "--noprivate_network")
HOSTS = ("--hosts=host_0,host_1", "--ssh")
FLAGS = (
    "--variable_update=collective_all_reduce",
    "--device=cpu",
    "--num_gpus=1",
    "--model=trivial",
    "--output_dir=out",
)
KILLED = Outcome(ExitStatus.CLUSTER, False, ["worker 0 ended by signal 9 (Killed)"])
ENDED_WELL = Outcome(ExitStatus.OK, True, [], leader_succeeded=True)
KILLED_AFTERWARDS = Outcome(ExitStatus.CLUSTER, True, ["worker 1 ended by signal 9 (Killed)"], leader_succeeded=True)
FAILED = Outcome(ExitStatus.RUN_FAILED, True, ["worker 0 ended with status 4"])


def no_record(cluster: Cluster) -> list[Any]:
    return []


@pytest.fixture
def clusters_that(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has the next clusters end in certain ways, after records of certain workers were saved.

    Returns the words of their leaders, in a list that grows as they are started.
    """
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for name in ("_PAUSE_SECONDS", "_PAUSE_OVER_SSH_SECONDS"):
        monkeypatch.setattr(cluster_launch, name, 0)

    def set_up(*ends: Outcome, records_of: Callable[[Cluster], list[Any]] = no_record) -> list[str]:
        started: list[str] = []

        def run(cluster: Cluster, words: Mapping[Task, Sequence[str]], logs: Path) -> Outcome:
            started.append(" ".join(words[cluster.leader]))
            says_what_others_used = "CNN_BENCH_CORES_USED_BY_OTHERS=" in started[-1]
            assert says_what_others_used == cluster.local, "as tasks here load the host themselves"
            configs = ({"model": "trivial", "cluster": value} for value in records_of(cluster))
            Store(logs.parent).append(*(make_record(config=config) for config in configs))
            return ends[len(started) - 1]

        monkeypatch.setattr(cluster_launch, "launch", run)
        return started

    return set_up


def own_record(cluster: Cluster) -> list[Any]:
    return [{"ps": list(cluster.ps), "workers": list(cluster.workers)}]


def records_of_others(cluster: Cluster) -> list[Any]:
    return [{"ps": [], "workers": ["127.0.0.1:1", "127.0.0.1:2"]}, None, "a text"]


@pytest.mark.fault(
    "R7",
    "kill -9 of the leader, in a directory with and without records of other runs",
    survives="status 6; one more record, which names the leader",
)
@pytest.mark.parametrize(
    ("flags", "ends", "left", "status", "reason"),
    [
        (LOCAL, KILLED, no_record, 6, "left no record. worker 0 ended by signal 9 (Killed)."),
        (HOSTS, KILLED, records_of_others, 6, "left no record. worker 0 ended by signal 9 (Killed)."),
        (LOCAL, ENDED_WELL, no_record, 6, "left no record."),  # a success without a record is a failure
        (LOCAL, KILLED, own_record, 6, ""),
        (HOSTS, KILLED, own_record, 6, ""),
        (LOCAL, FAILED, own_record, 4, ""),
        (HOSTS, FAILED, no_record, 4, ""),  # where the leader runs, its record may be saved
        (HOSTS, ENDED_WELL, no_record, 0, ""),
    ],
)
def test_a_row_says_so_if_the_leader_has_left_none(
    clusters_that: Callable[..., list[str]],
    run_bench: RunBench,
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    ends: Outcome,
    left: Callable[[Cluster], list[Any]],
    status: int,
    reason: str,
) -> None:
    looks = iter([0.5])  # at what others use, once, before the cluster starts
    monkeypatch.setattr(contention, "used_before_run", lambda: next(looks))
    clusters_that(ends, records_of=left)
    assert run_bench(*flags, *FLAGS).status == status
    assert [record["reason"] for record in records() if record["status"] == Status.CRASH] == (
        [f"The leader of the cluster, worker 0, {reason}"] if reason else []
    )
    if reason:
        assert records()[-1]["environment"]["cores_used_by_others_before"] == 0.5


def test_a_launcher_that_is_terminated_says_so_by_its_status(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: object) -> None:
        raise Terminated

    monkeypatch.setattr(cluster_launch, "launch", terminated)
    done = run_bench(*LOCAL, *FLAGS)
    assert done.status == ExitStatus.TERMINATED and "Traceback" not in done.stderr


def test_a_verb_without_a_record_gets_none(
    clusters_that: Callable[..., list[str]], run_bench: RunBench, records: Records
) -> None:
    clusters_that(KILLED)
    assert run_bench("verify", *LOCAL, "--device=cpu", "--num_gpus=1").status == 6
    assert records() == []


@pytest.mark.parametrize("words", [("--num_gpus=8",), ("--num_gpus=2", "--gpus=6,7"), ("--all_reduce_spec=nccl",)])
def test_hosts_may_have_gpus_that_the_host_of_the_command_lacks(
    clusters_that: Callable[..., list[str]], run_bench: RunBench, words: tuple[str, ...]
) -> None:
    clusters_that(FAILED)
    flags = ("--model=resnet50", "--variable_update=collective_all_reduce", "--output_dir=out")
    assert run_bench(*HOSTS, *flags, *words).status == FAILED.status, "the tasks were started"
    assert run_bench(*LOCAL, *flags, *words).status == ExitStatus.USAGE, "here they cannot run"


def test_without_ssh_there_is_a_sentence(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = run_bench(*HOSTS, *FLAGS)
    assert done.status == 2
    assert "the program ssh is missing" in done.stderr and "by hand" in done.stderr


@pytest.mark.parametrize(
    ("verb", "flags"), [("run", FLAGS), ("verify", ("--device=cpu",)), ("doctor", ("--device=cpu",))]
)
def test_the_network_is_entered_unless_the_user_declines(
    clusters_that: Callable[..., list[str]],
    run_bench: RunBench,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    flags: tuple[str, ...],
) -> None:
    """Every verb that starts a local cluster; a process that has been moved neither moves nor warns again."""

    clusters_that(ENDED_WELL, ENDED_WELL, records_of=own_record)
    command = (verb, LOCAL[0], *flags)
    assert "the command replaces its process" in run_bench(*command).stderr
    declined = run_bench(*command, "--noprivate_network")
    assert declined.status == 0 and declined.stderr.count("can execute code as you") == 1
    monkeypatch.setattr(private_network, "is_entered", lambda: True)
    moved = run_bench(*command)
    assert (moved.status, moved.stderr) == (0, "")


@pytest.mark.parametrize(
    ("ends", "flags", "attempts", "status"),
    [
        ([KILLED, KILLED, ENDED_WELL], LOCAL, 3, ExitStatus.OK),
        ([KILLED, ENDED_WELL], HOSTS, 2, ExitStatus.OK),
        ([KILLED] * 3, LOCAL, 3, ExitStatus.CLUSTER),
        ([KILLED, FAILED], LOCAL, 2, ExitStatus.RUN_FAILED),
        ([FAILED], LOCAL, 1, ExitStatus.RUN_FAILED),
        ([KILLED_AFTERWARDS], LOCAL, 1, ExitStatus.CLUSTER),
        (
            [Outcome(ExitStatus.USAGE, True, ["worker 0 ended with status 2"])],
            LOCAL,
            1,
            ExitStatus.USAGE,
        ),
    ],
)
def test_a_cluster_is_started_again_only_after_a_task_was_lost(
    clusters_that: Callable[..., list[str]],
    run_bench: RunBench,
    ends: list[Outcome],
    flags: tuple[str, ...],
    attempts: int,
    status: ExitStatus,
) -> None:
    started = clusters_that(*ends, records_of=own_record)
    done = run_bench(*flags, *FLAGS, "--train_dir=train", "--max_restarts=2")
    assert (done.status, len(started)) == (status, attempts)
    assert [words.count("worker 0 ended by signal 9 (Killed)") for words in started] == list(range(attempts))
    assert done.stderr.count("from the newest checkpoint of --train_dir=train") == attempts - 1


# What is started.

TWO_WORKERS = launch_plan.on_this_host("ps:1,worker:2")
ADDRESSES = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0), local=True)


def test_each_worker_has_gpus_of_its_own() -> None:
    assert cluster_launch.divide_gpus(TWO_WORKERS, 2, (0, 2, 4, 5, 7)) == {
        Task("worker", 0): "0,2",
        Task("worker", 1): "4,5",
    }


@pytest.mark.parametrize(("per_worker", "words"), [(1, "2 workers with 1 GPU each need 2"), (2, "2 GPUs each need 4")])
def test_too_few_gpus_are_refused(per_worker: int, words: str) -> None:
    with pytest.raises(UsageError, match=f"{words}, and 1 may be used here. Ask for fewer, or use --device=cpu.$"):
        cluster_launch.divide_gpus(TWO_WORKERS, per_worker, (3,))


def test_a_task_is_told_its_role_after_the_words_of_the_user() -> None:
    words = cluster_launch.words_of_tasks(ADDRESSES, ["--model=trivial"], {Task("worker", 1): "2,3"}, {"A": "b c"})
    program = ["/usr/bin/env", "A=b c", sys.executable, str(subprocesses.RUN_BENCH), "--model=trivial"]
    hosts = ["--worker_hosts=h:2,h:3", "--ps_hosts=h:1"]
    assert words[Task("ps", 0)] == [*program, "--job_name=ps", "--task_index=0", *hosts]
    assert words[Task("worker", 1)] == [*program, "--job_name=worker", "--task_index=1", *hosts, "--gpus=2,3"]


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
    for told in cluster_launch.words_of_tasks(ADDRESSES, words, {Task("worker", 0): "1"}, {}).values():
        assert cluster_launch.command_of_user(told[3:], STARTED) == words


@pytest.mark.parametrize(
    "words",
    [[], ["--model=trivial"], ["--job_name=worker", "--task_index=1", "--worker_hosts=a:1,b:1", "--model=trivial"]],
)
def test_a_command_that_started_no_cluster_is_as_the_user_gave_it(words: list[str]) -> None:
    assert cluster_launch.command_of_user(words, {"local_cluster": None, "hosts": None}) == words
