from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tensorflow as tf

from benchmarks.cluster import liveness, member
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.cluster.rendezvous import Rendezvous
from benchmarks.errors import ClusterError, ExitStatus
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import Watchdog
from results.record import Status
from tests.support.clusters import free_addresses
from tests.support.watchdogs import NotedWatchdog

CLUSTER = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0))
LEADER = "worker 0"


# The port.


@pytest.fixture
def listening() -> Iterator[int]:
    """A port at which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def at(port: int) -> tuple[Task, str]:
    return Task("worker", 1), f"h:{port}"


@pytest.mark.fault(
    "R12", "another process listens at the task's port", survives="status 6, naming the port and the process"
)
def test_a_port_that_is_taken_is_named_with_who_has_it(listening: int) -> None:
    with pytest.raises(ClusterError) as raised:
        member.require_port(*at(listening))
    sentence = str(raised.value)
    assert sentence.startswith(f"worker 1 cannot listen on port {listening} (Address already in use)")
    assert f": process {os.getpid()} ({psutil.Process().name()}) has it. End what uses it" in sentence
    assert raised.value.exit_status == ExitStatus.CLUSTER


@pytest.mark.parametrize(("pid", "holder"), [(None, ": another user's process has it"), ("denied", "")])
def test_another_users_process_has_no_number(
    listening: int, monkeypatch: pytest.MonkeyPatch, pid: str | None, holder: str
) -> None:
    def connections(kind: str) -> list[SimpleNamespace]:
        if pid == "denied":
            raise psutil.AccessDenied
        return [SimpleNamespace(laddr=("0.0.0.0", listening), status=psutil.CONN_LISTEN, pid=None)]

    monkeypatch.setattr(psutil, "net_connections", connections)
    with pytest.raises(ClusterError) as raised:
        member.require_port(*at(listening))
    assert f"port {listening} (Address already in use){holder}. End what uses it" in str(raised.value)


def test_a_connection_that_has_the_port_is_named_with_its_process(listening: int) -> None:
    with socket.create_connection(("127.0.0.1", listening)) as connection:
        with pytest.raises(ClusterError, match=rf": process {os.getpid()} \(.*\) has it"):
            member.require_port(*at(connection.getsockname()[1]))


def test_a_free_port_stays_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()  # which leaves a connection that lingers
    for _ in range(2):
        member.require_port(*at(port))


@pytest.mark.fault(
    "R12",
    "the port is taken after it was found free and before the server binds it",
    survives="the same sentence as for a taken port",
)
def test_who_loses_the_race_for_a_port_says_the_same(listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's own error, since the port was still free when it was tried."""
    monkeypatch.setattr(member, "require_port", lambda own, address: None)
    with pytest.raises(ClusterError) as raised:
        member.start_server(
            {"worker": ["127.0.0.1:1", f"127.0.0.1:{listening}"]},
            Task("worker", 1),
            tf.compat.v1.ConfigProto(device_count={"GPU": 0}),
        )
    sentence = str(raised.value)
    assert sentence.startswith(f"worker 1 cannot listen on port {listening} (Could not start gRPC server)")
    assert f": process {os.getpid()} (" in sentence and "another port" in sentence


# Why a step failed.

MEMBERS = Cluster(ps=(), workers=("h:2", "h:3"), own=Task("worker", 0))
ENDED = liveness.Lost(Task("worker", 1), "h:3", liveness.How.ENDED, 6.0)


class FakeRendezvous:
    """What tasks that have failed have reported."""

    def __init__(self, **reported: Any) -> None:
        self.reported = {task.replace("_", " "): message for task, message in reported.items()}

    def report_failure(self, message: Any = None) -> None:
        self.reported[LEADER] = message

    def failures(self) -> dict[str, Any]:
        return self.reported


DAMAGED = [5, "invalid", "file f: record 3 is damaged"]


class FakeWatcher:
    """Gives one verdict after another; notes how long each was waited for."""

    def __init__(self, *verdicts: liveness.Lost | None) -> None:
        self.verdicts, self.waited = list(verdicts), []

    def wait_for_verdict(self, seconds: float) -> liveness.Lost | None:
        self.waited.append(seconds)
        return self.verdicts.pop(0)

    def stop(self) -> None:
        pass


def team(rendezvous: FakeRendezvous, watcher: FakeWatcher, watchdog: Watchdog) -> member.ClusterTeam:
    deadlines = Deadlines(watchdog).silent()
    return member.ClusterTeam(
        MEMBERS, "collective_all_reduce", target="", rendezvous=rendezvous, watcher=watcher, deadlines=deadlines
    )  # type: ignore[arg-type]


ABORTED = tf.errors.InternalError(None, None, "From worker 0:\nCollective ops is aborted by: Delete called on ...")
UNAVAILABLE = tf.errors.UnavailableError(None, None, "Socket closed")


@pytest.mark.parametrize("error", [ABORTED, UNAVAILABLE])
def test_who_fails_because_of_another_waits_for_its_reason(error: tf.errors.OpError) -> None:
    watcher = FakeWatcher(None, ENDED)
    cause = team(FakeRendezvous(worker_1=DAMAGED), watcher, Watchdog(print)).explain(error)
    assert cause is not None and (cause.exit_status, cause.record_status) == (ExitStatus.DATA, Status.INVALID)
    assert str(cause) == "worker 1 (h:3): file f: record 3 is damaged"
    assert watcher.waited[1] > 600 + watcher.waited[0], "the other looks for a lost task first, then for a record"


def test_a_connection_that_broke_is_reported_if_none_has_failed() -> None:
    watcher = FakeWatcher(None)
    cause = team(FakeRendezvous(), watcher, Watchdog(print)).explain(UNAVAILABLE)
    assert isinstance(cause, ClusterError) and "connection to another task broke" in str(cause)


@pytest.mark.parametrize("kind", [tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.InternalError])
def test_who_fails_itself_announces_it_and_does_not_wait_for_others(kind: type[tf.errors.OpError]) -> None:
    rendezvous, watcher = FakeRendezvous(worker_1=None), FakeWatcher(None)
    assert team(rendezvous, watcher, Watchdog(print)).explain(kind(None, None, "it failed")) is None
    assert rendezvous.reported == {LEADER: None, "worker 1": None}


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (lambda team: team.agree({}), ("Agreeing with the other tasks, all of which worker 0 must reach,", 60)),
        (lambda team: team.meet("measured"), ("Waiting for the other tasks (measured)", 600)),
        (lambda team: team.meet("results", patient=True), ("", 0)),
        (lambda team: team.end(), ("Ending together with the other tasks", 30)),
    ],
    ids=["agree", "meet", "meet patiently", "end"],
)
def test_a_wait_for_the_others_says_so_and_has_its_deadline(
    waits: Callable[[member.ClusterTeam], object], expected: tuple[str, float]
) -> None:
    watchdog = NotedWatchdog()
    rendezvous: Any = SimpleNamespace(exchange=lambda *_: {}["no reply"])
    with pytest.raises(KeyError):
        waits(team(rendezvous, FakeWatcher(), watchdog))
    assert watchdog.expected == [expected]


def test_a_task_that_serves_waits_for_the_end_without_a_deadline_and_for_the_others_with_one() -> None:
    watchdog, noted = NotedWatchdog(), []
    rendezvous: Any = SimpleNamespace(
        exchange=lambda *_: noted.extend(watchdog.expected), part=lambda *_: noted.append(watchdog.expected[-1])
    )
    team(rendezvous, FakeWatcher(), watchdog).serve()
    assert noted == [("Ending together with the other tasks", 30)]


def test_a_deadline_is_moved_once_for_each_task_that_has_failed() -> None:
    rendezvous, watchdog = FakeRendezvous(), Watchdog(print)
    team(rendezvous, FakeWatcher(), watchdog)
    moved = []
    for failed in (0, 1, 1, 2, 2):
        rendezvous.reported = dict.fromkeys(map(str, range(failed)))
        moved.append(watchdog.extension() > 600)
    assert moved == [False, True, False, True, False]


def test_a_leader_that_does_not_answer_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "_ANSWER_SECONDS", 0.1)
    rendezvous, watchdog = FakeRendezvous(), Watchdog(print)
    answered = threading.Event()
    rendezvous.failures = lambda: answered.wait(60) and {"worker 1": None}  # type: ignore[method-assign]
    team(rendezvous, FakeWatcher(), watchdog)
    assert watchdog.extension() == 0
    answered.set()


def test_a_task_that_failed_is_known_and_then_its_reason() -> None:
    cluster = Cluster(ps=(), workers=tuple(free_addresses(1)), own=Task("worker", 0))
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    leader = Rendezvous(member.start_server(cluster.spec(), cluster.own, config).target, cluster.own, cluster.leader)
    assert leader.failures() == {}
    for message in (None, [5, "invalid", "a sentence"]):
        leader.report_failure(message)
        assert [leader.failures() for _ in range(2)] == [{"worker 0": message}] * 2, "asking does not change it"


# Waiting for the others.


def test_without_a_terminal_a_line_says_for_whom_we_wait_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    both = {Task("ps", 0): "h:1", Task("worker", 1): "h:3"}
    with member.waiting_lines() as show:
        show(both, 300.0)
        assert capsys.readouterr().err == "run_bench: Waiting for ps 0 (h:1), worker 1 (h:3), up to 300 s.\n"
        for left in (299.5, 290.0, 270.0):
            show(both, left)
        assert capsys.readouterr().err == "", "only half a minute has passed"
        show({Task("worker", 1): "h:3"}, 269.5)
        assert capsys.readouterr().err == "run_bench: Waiting for worker 1 (h:3), up to 270 s.\n"
        show({Task("worker", 1): "h:3"}, 250.0)
    assert capsys.readouterr() == ("", "")
