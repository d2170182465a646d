"""What the process that starts a cluster does itself: the network it needs, and the record that no leader has saved."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import launcher
from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.errors import ExitStatus
from benchmarks.process import private_network
from benchmarks.run import cluster_launch
from results.record import Status
from results.store import Store
from tests.support.commands import Finished
from tests.support.records import make_record

RunBench = Callable[..., Finished]
Records = Callable[[], list[dict[str, Any]]]

LOCAL = ("--local_cluster=worker:2", "--noprivate_network")
HOSTS = ("--hosts=host_0,host_1", "--ssh")
FLAGS = (
    "--variable_update=collective_all_reduce",
    "--device=cpu",
    "--num_gpus=1",
    "--model=trivial",
    "--output_dir=out",
)
KILLED = launcher.Outcome(ExitStatus.CLUSTER, False, ["worker 0 was killed by SIGKILL"])
ENDED_WELL = launcher.Outcome(ExitStatus.OK, True, [])
FAILED = launcher.Outcome(ExitStatus.RUN_FAILED, True, ["worker 0 ended with status 4"])


@pytest.fixture
def cluster_that(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the next cluster end in a certain way, after records of certain workers were saved."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")

    def set_up(ends: launcher.Outcome, records_of: Callable[[Cluster], list[Any]] = lambda cluster: []) -> None:
        def run(cluster: Cluster, command: launcher.Command, logs: Path) -> launcher.Outcome:
            configs = ({"model": "trivial", "cluster": value} for value in records_of(cluster))
            Store(logs.parent).append(*(make_record(config=config) for config in configs))
            return ends

        monkeypatch.setattr(launcher, "launch", run)

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
@pytest.mark.parametrize("flags", [LOCAL, HOSTS])
@pytest.mark.parametrize("before", [lambda cluster: [], records_of_others])
def test_a_leader_that_was_killed_leaves_a_row_that_says_so(
    cluster_that: Callable[..., None], run_bench: RunBench, records: Records, flags: tuple[str, ...], before: Any
) -> None:
    cluster_that(KILLED, before)
    assert run_bench(*flags, *FLAGS).status == 6
    last = records()[-1]
    assert last["status"] == Status.CRASH
    assert last["reason"] == "The leader of the cluster, worker 0, left no record. worker 0 was killed by SIGKILL."


@pytest.mark.parametrize("flags", [LOCAL, HOSTS])
@pytest.mark.parametrize("ends", [KILLED, FAILED])
def test_a_leader_that_has_saved_its_record_needs_no_other(
    cluster_that: Callable[..., None],
    run_bench: RunBench,
    records: Records,
    flags: tuple[str, ...],
    ends: launcher.Outcome,
) -> None:
    cluster_that(ends, own_record)
    assert run_bench(*flags, *FLAGS).status == ends.status
    assert len(records()) == 1


def test_a_success_without_a_record_is_a_failure(
    cluster_that: Callable[..., None], run_bench: RunBench, records: Records
) -> None:
    cluster_that(launcher.Outcome(ExitStatus.OK, True, []))
    assert run_bench(*LOCAL, *FLAGS).status == 6
    assert records()[-1]["reason"] == "The leader of the cluster, worker 0, left no record."


@pytest.mark.parametrize("ends", [FAILED, launcher.Outcome(ExitStatus.OK, True, [])])
def test_the_record_of_a_leader_elsewhere_may_be_there(
    cluster_that: Callable[..., None], run_bench: RunBench, records: Records, ends: launcher.Outcome
) -> None:
    cluster_that(ends)
    assert run_bench(*HOSTS, *FLAGS).status == ends.status
    assert records() == []


def test_a_verb_without_a_record_gets_none(
    cluster_that: Callable[..., None], run_bench: RunBench, records: Records
) -> None:
    cluster_that(KILLED)
    assert run_bench("verify", *LOCAL, "--device=cpu", "--num_gpus=1").status == 6
    assert records() == []


def test_without_ssh_there_is_a_sentence(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = run_bench(*HOSTS, *FLAGS)
    assert done.status == 2
    assert "the program ssh is missing" in done.stderr and "by hand" in done.stderr


@pytest.mark.parametrize(
    ("verb", "flags"), [("run", FLAGS), ("verify", ("--device=cpu",)), ("doctor", ("--device=cpu",))]
)
def test_the_network_is_entered_unless_the_user_declines(
    cluster_that: Callable[..., None],
    run_bench: RunBench,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    flags: tuple[str, ...],
) -> None:
    """Every verb that starts a local cluster; a process that has been moved neither moves nor warns again."""

    class EnteredError(Exception):
        """Takes the place of `exec`."""

    def enter(command: list[str]) -> None:
        raise EnteredError(command)

    monkeypatch.setattr(launcher, "enter_private_network", enter)
    cluster_that(launcher.Outcome(ExitStatus.OK, True, []), own_record)
    command = (verb, LOCAL[0], *flags)
    assert "EnteredError" in run_bench(*command).stderr
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
        ([launcher.Outcome(ExitStatus.USAGE, True, ["worker 0 ended with status 2"])], LOCAL, 1, ExitStatus.USAGE),
    ],
)
def test_a_cluster_is_started_again_only_after_a_task_was_lost(
    run_bench: RunBench,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[launcher.Outcome],
    flags: tuple[str, ...],
    attempts: int,
    status: ExitStatus,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cluster_launch, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(cluster_launch, "_PAUSE_OVER_SSH_SECONDS", 0)
    started = []

    def run(cluster: Cluster, command: launcher.Command, logs: Path) -> launcher.Outcome:
        started.append(" ".join(command(cluster.leader, cluster)))
        ended = ends[len(started) - 1]
        if ended.status == ExitStatus.OK:
            Store(logs.parent).append(*(make_record(config={"cluster": value}) for value in own_record(cluster)))
        return ended

    monkeypatch.setattr(launcher, "launch", run)
    done = run_bench(*flags, *FLAGS, "--train_dir=train", "--max_restarts=2")
    assert (done.status, len(started)) == (status, attempts)
    assert [words.count("worker 0 was killed by SIGKILL") for words in started] == list(range(attempts))
    assert done.stderr.count("from the newest checkpoint of --train_dir=train") == attempts - 1
