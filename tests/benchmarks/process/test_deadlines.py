"""What is kept of a measurement that does not end by itself."""

from __future__ import annotations

import signal

import pytest

from benchmarks.errors import BenchError, DataError, Terminated, UsageError
from benchmarks.process import deadlines
from benchmarks.process.deadlines import Deadlines, recorded
from results.record import Status
from tests.support.watchdogs import NotedWatchdog


def test_preparations_have_three_times_the_limit_of_a_step() -> None:
    noted = NotedWatchdog()
    limits = Deadlines(noted, 10.0)
    limits.preparation("Building")
    limits.step("A step")
    limits.step("Steps", repeated_seconds=5.0)
    limits.none()
    assert noted.expected == [("Building", 30.0), ("A step", 10.0), ("Steps", 15.0), ("", 0.0)]
    deadlines.NO_DEADLINES.step("A step without a watchdog")


@pytest.mark.parametrize(
    ("raised", "status", "reason"),
    [
        (DataError("A file is damaged."), Status.INVALID, "A file is damaged."),
        (KeyboardInterrupt(), Status.INTERRUPTED, "Interrupted by Ctrl-C."),
        (Terminated(), Status.INTERRUPTED, "Ended by SIGTERM."),
        (Terminated(signal.SIGHUP), Status.INTERRUPTED, "Ended by SIGHUP: its terminal or connection was closed."),
    ],
    ids=["failed", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_what_ends_a_measurement_is_saved_and_raised(raised: BaseException, status: Status, reason: str) -> None:
    saved: list[tuple[BenchError, object]] = []

    def save(error: BenchError) -> None:
        saved.append((error, signal.getsignal(signal.SIGINT)))

    with pytest.raises(type(raised)), recorded(60.0, save):
        raise raised
    ((error, handler),) = saved
    assert (error.record_status, str(error)) == (status, reason)
    if status is Status.INTERRUPTED:
        assert handler is signal.SIG_IGN, "a second Ctrl-C must not interrupt it"


def test_what_was_never_possible_is_not_saved() -> None:
    saved: list[BenchError] = []
    with pytest.raises(UsageError), recorded(60.0, saved.append):
        raise UsageError("There is no such device.")
    with recorded(60.0, saved.append):
        pass
    assert not saved
