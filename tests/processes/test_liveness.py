from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from benchmarks.cluster import Task
from benchmarks.errors import ClusterError
from benchmarks.liveness import (
    WHILE_RUNNING,
    WHILE_WAITING,
    GrpcProbe,
    How,
    Limits,
    Lost,
    MissingTasksError,
    Watcher,
    wait_for_all,
)
from benchmarks.probe import Answer, Sign

PS, FIRST, SECOND = Task("ps", 0), Task("worker", 0), Task("worker", 1)
REFUSED, SILENT, BUSY = Answer(Sign.REFUSED), Answer(Sign.SILENT), Answer(Sign.BUSY)
ALIVE, RESTARTED = Answer(Sign.ALIVE, b"one"), Answer(Sign.ALIVE, b"two")
QUICK = Limits(interval_seconds=0.001, timeout_seconds=1.0, refused=3, unanswered=4)
# No test waits so long, unless it fails.
SECONDS = 60.0


class Script:
    """A probe that gives each address's answers one after the other, and the last one for ever."""

    def __init__(self, answers: Mapping[str, list[Answer]]) -> None:
        self._answers = {address: list(of_one) for address, of_one in answers.items()}

    def __call__(self, address: str, timeout_seconds: float) -> Answer:
        answers = self._answers[address]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Clock:
    """Time passes only when somebody sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def wait(answers: Mapping[Task, list[Answer]], deadline_seconds: float = 60.0) -> tuple[dict[Task, bytes], list[str]]:
    """Returns the replies, and what was told meanwhile."""
    told: list[str] = []
    clock = Clock()
    replies = wait_for_all(
        {task: str(task) for task in answers},
        deadline_seconds=deadline_seconds,
        probe=Script({str(task): of_one for task, of_one in answers.items()}),
        on_wait=lambda missing, left: told.append(f"{', '.join(map(str, missing))}: {left:g}"),
        clock=clock,
        sleep=clock.sleep,
    )
    return replies, told


def test_all_that_answer_at_once_are_not_waited_for() -> None:
    assert wait({PS: [ALIVE], FIRST: [RESTARTED]}) == ({PS: b"one", FIRST: b"two"}, [])
    assert wait({}) == ({}, [])


def test_who_is_waited_for_is_told() -> None:
    replies, told = wait({PS: [REFUSED, ALIVE], FIRST: [REFUSED, BUSY, SILENT, ALIVE]})
    assert replies == {PS: b"one", FIRST: b"one"}
    assert told == ["ps 0, worker 0: 60", "worker 0: 59.5", "worker 0: 59"]


def test_who_never_answered_is_named_when_the_time_is_over() -> None:
    foreign = Answer(Sign.SILENT, reason="Domain name not found")
    with pytest.raises(MissingTasksError) as raised:
        wait({PS: [ALIVE], FIRST: [REFUSED], SECOND: [foreign]}, deadline_seconds=1.2)
    assert str(raised.value).startswith(
        "2 of the 3 other tasks did not answer within 1.2 s. worker 0 (worker 0): nothing listens there; worker 1 "
        "(worker 1): Domain name not found. Start every task"
    )
    assert isinstance(raised.value, ClusterError)


def test_a_task_may_be_away_or_start_anew_while_others_are_awaited() -> None:
    away = [REFUSED] * (WHILE_WAITING.refused - 1)
    replies, _ = wait({PS: [ALIVE, *away, RESTARTED], FIRST: [*[SILENT] * 30, ALIVE]})
    assert replies == {PS: b"two", FIRST: b"one"}


@pytest.mark.parametrize(("gone", "how"), [(REFUSED, "ps 0 (ps 0) has ended"), (SILENT, "ps 0 (ps 0) does not answer")])
def test_a_task_that_was_there_must_not_be_gone_for_long(gone: Answer, how: str) -> None:
    with pytest.raises(MissingTasksError) as raised:
        wait({PS: [ALIVE, gone], FIRST: [REFUSED]})
    assert str(raised.value).startswith(f"{how}: it was last heard 6 s ago")


def watch(answers: list[Answer], clock: Callable[[], float] = time.monotonic) -> tuple[Lost | None, list[Lost]]:
    """Watches worker 1 answer so, and ps 0 well; returns the verdict, and what was told."""
    told: list[Lost] = []
    was_told = threading.Event()

    def on_lost(lost: Lost) -> None:
        told.append(lost)
        was_told.set()

    probe = Script({"h0:1": [ALIVE], "h1:1": answers})
    replies = {PS: b"one", SECOND: b"one"}
    with Watcher(
        {PS: "h0:1", SECOND: "h1:1"}, on_lost, probe=probe, replies=replies, limits=QUICK, clock=clock
    ) as watcher:
        verdict = watcher.wait_for_verdict(SECONDS)
        assert was_told.wait(SECONDS)
        assert verdict == watcher.lost
    return verdict, told


@pytest.mark.parametrize(
    ("answers", "how"),
    [
        ([REFUSED], How.ENDED),
        ([REFUSED, REFUSED, ALIVE, REFUSED, REFUSED, BUSY, SILENT], How.MUTE),
        ([SILENT], How.MUTE),
        ([SILENT, REFUSED], How.ENDED),
        ([SILENT, REFUSED, REFUSED, SILENT], How.MUTE),
        ([SILENT, SILENT, SILENT, ALIVE, REFUSED], How.ENDED),
        ([ALIVE, BUSY, BUSY, BUSY, BUSY, BUSY, RESTARTED], How.RESTARTED),
        ([RESTARTED], How.RESTARTED),
        ([REFUSED, REFUSED, RESTARTED], How.RESTARTED),
    ],
)
def test_a_lost_task_is_told_once(answers: list[Answer], how: How) -> None:
    verdict, told = watch(answers)
    assert verdict is not None
    assert told == [verdict]
    assert (verdict.task, verdict.address, verdict.how) == (SECOND, "h1:1", how)


def test_the_first_loss_is_the_only_one() -> None:
    told: list[Lost] = []
    peers = {Task("worker", index): f"h{index}:1" for index in range(64)}
    with Watcher(peers, told.append, probe=lambda *_: REFUSED, replies={}, limits=QUICK) as watcher:
        assert watcher.wait_for_verdict(SECONDS) is not None
        time.sleep(0.05)
    assert told == [watcher.lost]


def test_a_stop_of_this_very_process_loses_nobody() -> None:
    """Hours pass during a probe, which therefore comes back silent: that is one, and not as many as there were time."""
    clock, asked = Clock(), threading.Semaphore(0)
    answers = iter([ALIVE, SILENT, SILENT, SILENT])

    def probe(address: str, timeout_seconds: float) -> Answer:
        clock.now += 7200.0
        asked.release()
        return next(answers, ALIVE)

    with Watcher(
        {PS: "h0:1"}, lambda lost: None, probe=probe, replies={PS: b"one"}, limits=QUICK, clock=clock
    ) as watcher:
        for _ in range(10):
            assert asked.acquire(timeout=SECONDS)
        assert watcher.lost is None


def test_nothing_is_noticed_after_a_stop() -> None:
    told: list[Lost] = []
    watcher = Watcher({PS: "h0:1"}, told.append, probe=lambda *_: REFUSED, replies={}, limits=QUICK)
    watcher.stop()
    watcher.start()
    assert watcher.wait_for_verdict(SECONDS) is None
    assert (watcher.lost, told) == (None, [])


def test_there_is_no_verdict_as_long_as_all_answer() -> None:
    with Watcher({PS: "h0:1"}, lambda lost: None, probe=lambda *_: ALIVE, replies={}, limits=QUICK) as watcher:
        assert watcher.wait_for_verdict(0.05) is None


def test_a_loss_is_noticed_in_time() -> None:
    assert WHILE_RUNNING.detection_seconds < 25
    halves = dataclasses.replace(WHILE_RUNNING, timeout_seconds=1.0)
    assert halves.detection_seconds == 2.0 + 4 * 2.0


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (
            Lost(SECOND, "10.0.0.2:50001", How.MUTE, 18.2),
            "worker 1 (10.0.0.2:50001) does not answer: it was last heard 18 s ago, and its process may be stopped, or "
            "its host or the network down. Look there.",
        ),
        (
            Lost(PS, "h0:1", How.ENDED, None),
            "ps 0 (h0:1) has ended: it was never heard, and nothing listens at its address any more. Its own output "
            "should say why.",
        ),
    ],
)
def test_a_loss_is_said_in_full(lost: Lost, sentence: str) -> None:
    assert lost.sentence() == sentence


# What the probe asks for, answered with fixed bytes; for "busy", after longer than anybody waits.
STANDIN = """
import sys, time
from concurrent import futures
import grpc
def answer(request, context):
    time.sleep(60 if sys.argv[1] == "busy" else 0)
    return sys.argv[1].encode()
method = {} if sys.argv[1] == "foreign" else {"GetStatus": grpc.unary_unary_rpc_method_handler(answer)}
server = grpc.server(futures.ThreadPoolExecutor(1))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tensorflow.WorkerService", method),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination(120)
"""
TENSORFLOW = """
import os, signal, socket, sys
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
import tensorflow as tf
server = tf.distribute.Server({"worker": [f"127.0.0.1:{port}"]}, job_name="worker", task_index=0)
print(port, flush=True)
signal.alarm(120)
signal.pause()
"""
Start = Callable[..., tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script as a process of its own; returns it, and the address that it listens at."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
        with (tmp_path / f"stderr_{len(started)}").open("w") as stderr:
            command = [sys.executable, "-c", script, *arguments]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        started.append(process)
        assert process.stdout is not None
        too_late = threading.Timer(60, process.kill)
        too_late.start()
        line = process.stdout.readline()
        too_late.cancel()
        return process, f"127.0.0.1:{int(line)}"

    yield run
    for process in started:
        process.kill()
        process.wait(SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    """Returns when all its threads have stopped: until then it may still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_real_process_is_alive_then_stopped_then_gone(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    process, address = start(STANDIN, "one")
    probe = GrpcProbe()
    assert probe(address, SECONDS) == ALIVE
    stop(process)
    begin = time.monotonic()
    assert probe(address, 1.0).sign is Sign.SILENT
    assert time.monotonic() - begin < SECONDS
    process.send_signal(signal.SIGCONT)
    assert probe(address, SECONDS) == ALIVE
    process.kill()
    process.wait(SECONDS)
    probe(address, SECONDS)  # may still fail for the connection that broke
    assert probe(address, SECONDS) == REFUSED
    assert GrpcProbe()(address, SECONDS) == REFUSED
    assert capfd.readouterr().err == ""


def test_a_busy_process_is_not_a_stopped_one(start: Start) -> None:
    process, address = start(STANDIN, "busy")
    probe = GrpcProbe()
    assert probe(address, 10.0) == BUSY
    stop(process)
    assert probe(address, 1.0).sign is Sign.SILENT


def test_another_kind_of_server_is_no_task(start: Start) -> None:
    _, address = start(STANDIN, "foreign")
    answer = GrpcProbe()(address, SECONDS)
    assert (answer.sign, answer.reason) == (Sign.SILENT, "what listens there is no server of TensorFlow")


def test_a_host_that_does_not_exist_says_so() -> None:
    answer = GrpcProbe()("no-such-host.invalid:1", 2.0)
    assert answer.sign is Sign.SILENT


@pytest.mark.slow
def test_a_server_of_tensorflow_answers_the_same_until_it_is_restarted(start: Start) -> None:
    process, address = start(TENSORFLOW)
    _, other_address = start(TENSORFLOW)
    probe = GrpcProbe()
    answer = probe(address, SECONDS)
    assert answer.sign is Sign.ALIVE
    assert b"/job:worker/replica:0/task:0" in answer.reply
    assert probe(address, SECONDS) == answer
    assert probe(other_address, SECONDS).reply not in (b"", answer.reply)
    stop(process)
    assert probe(address, 1.0).sign is Sign.SILENT
