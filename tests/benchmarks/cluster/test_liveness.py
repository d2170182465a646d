from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping

import pytest

from benchmarks.cluster.cluster_spec import Task
from benchmarks.cluster.liveness import (
    WHILE_RUNNING,
    WHILE_WAITING,
    Answer,
    How,
    Limits,
    Lost,
    MissingTasksError,
    Sign,
    Watcher,
    wait_for_all,
)
from benchmarks.errors import ClusterError

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


def wait(
    answers: Mapping[Task, list[Answer]],
    deadline_seconds: float = 60.0,
    on_answers: Callable[[Mapping[Task, bytes]], Container[Task]] = lambda replies: (),
) -> tuple[dict[Task, bytes], list[str]]:
    """Returns the replies, and what was told meanwhile."""
    told: list[str] = []
    clock = Clock()
    replies = wait_for_all(
        {task: str(task) for task in answers},
        deadline_seconds=deadline_seconds,
        probe=Script({str(task): of_one for task, of_one in answers.items()}),
        on_answers=on_answers,
        on_wait=lambda missing, left: told.append(f"{', '.join(missing.values())}: {left:g}"),
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
    foreign = Answer(Sign.SILENT, reason="Domain name not found")
    assert wait({FIRST: [foreign, ALIVE]})[1] == ["worker 0: Domain name not found: 60"]


def test_a_task_that_has_answered_may_be_waited_for_nevertheless() -> None:
    rounds = iter([{PS}, {PS}, set()])
    replies, told = wait({PS: [ALIVE], FIRST: [SILENT, ALIVE]}, on_answers=lambda replies: next(rounds))
    assert replies == {PS: b"one", FIRST: b"one"} and told == ["ps 0, worker 0: 60", "ps 0: 59.5"]
    with pytest.raises(MissingTasksError, match=r"1 of the 1 .*ps 0 \(ps 0\): what listens there is no task of this"):
        wait({PS: [ALIVE]}, 1.2, on_answers=lambda replies: {PS})


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


@pytest.mark.parametrize(
    ("gone", "how"),
    [
        ([REFUSED], "ps 0 (ps 0) has ended"),
        ([SILENT, REFUSED], "ps 0 (ps 0) has ended"),
        ([SILENT], "ps 0 (ps 0) does not answer"),
    ],
)
def test_a_task_that_was_there_must_not_be_gone_for_long(gone: list[Answer], how: str) -> None:
    with pytest.raises(MissingTasksError) as raised:
        wait({PS: [ALIVE, *gone], FIRST: [REFUSED]})
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
    return verdict, told


@pytest.mark.parametrize(
    ("answers", "how"),
    [
        ([REFUSED], How.ENDED),
        ([REFUSED, REFUSED, ALIVE, REFUSED, REFUSED, BUSY, SILENT], How.MUTE),
        ([SILENT], How.MUTE),
        ([SILENT, REFUSED], How.ENDED),
        ([SILENT, SILENT, SILENT, REFUSED], How.ENDED),
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
    together = threading.Barrier(len(peers))

    def probe(address: str, timeout_seconds: float) -> Answer:
        together.wait(SECONDS)
        return REFUSED

    with Watcher(peers, told.append, probe=probe, replies={}, limits=QUICK) as watcher:
        assert watcher.wait_for_verdict(SECONDS) is not None
        for thread in threading.enumerate():
            if thread.name.startswith("watch worker"):
                thread.join(SECONDS)
    assert told == [watcher.wait_for_verdict(0)]


def test_if_this_process_itself_was_stopped_no_task_is_lost() -> None:
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
        assert watcher.wait_for_verdict(0) is None


def test_nothing_is_noticed_after_a_stop_or_as_long_as_all_answer() -> None:
    with Watcher({PS: "h0:1"}, lambda lost: None, probe=lambda *_: ALIVE, replies={}, limits=QUICK) as watcher:
        assert watcher.wait_for_verdict(0.05) is None
    told: list[Lost] = []
    watcher = Watcher({PS: "h0:1"}, told.append, probe=lambda *_: REFUSED, replies={}, limits=QUICK)
    watcher.stop()
    with watcher:
        pass
    assert watcher.wait_for_verdict(SECONDS) is None
    assert told == []


def test_a_loss_is_noticed_in_time() -> None:
    assert WHILE_RUNNING.detection_seconds < 25, "and then the others have 15 s to end"
