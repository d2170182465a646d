from __future__ import annotations

import contextlib
import io
import sys
import threading

import pytest

from benchmarks.errors import BenchError, ClusterError, DataError, OverdueError
from benchmarks.process import watchdog as guard_module
from benchmarks.process.watchdog import Watchdog

# No test waits so long, unless it fails.
SECONDS = 30.0
GRACE = guard_module._GRACE_SECONDS


class Watched:
    """A watchdog under a clock of the test, and what it did, in order; no process is ended."""

    def __init__(self, will_fails: bool = False) -> None:
        self.now = 100.0
        self.done: list[BenchError | int] = []
        self._will_fails = will_fails
        self.ended = threading.Event()
        self.watchdog = Watchdog(self.will, clock=lambda: self.now, end=self.end)

    def will(self, error: BenchError) -> None:
        self.done.append(error)
        if self._will_fails:
            raise OSError("The disk is full.")

    def end(self, status: int) -> None:
        self.done.append(status)
        self.ended.set()

    def after(self, seconds: float) -> list[BenchError | int]:
        """Looks so much later, and returns what was done until then."""
        self.now += seconds
        self.watchdog.look()
        return self.done


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_is_overdue_ends_the_process_with_the_stacks(watched: Watched, capfd: pytest.CaptureFixture[str]) -> None:
    watched.watchdog.expect("A step (measuring)", 60.0)
    assert watched.after(60.0) == []
    assert capfd.readouterr().err == ""
    error, status = watched.after(0.1)
    assert status == 124
    assert isinstance(error, OverdueError)
    assert str(error) == "A step (measuring) took longer than 60 s."
    stacks = capfd.readouterr().err
    assert stacks.startswith("run_bench: stacks of all threads:\n")
    assert "in test_what_is_overdue_ends_the_process_with_the_stacks" in stacks


def test_it_ends_only_once(watched: Watched) -> None:
    watched.watchdog.expect("A step", 1.0)
    assert len(watched.after(2.0)) == len(watched.after(100.0)) == 2


def test_what_came_in_time_is_forgotten(watched: Watched) -> None:
    watched.watchdog.expect("A step", 5.0)
    watched.watchdog.expect_nothing()
    assert watched.after(1000.0) == []


def test_the_next_expectation_replaces_the_one_before(watched: Watched) -> None:
    watched.watchdog.expect("Building the graph", 10.0)
    assert watched.after(9.0) == []
    watched.watchdog.expect("A step", 30.0)
    assert watched.after(29.0) == []
    error, _ = watched.after(2.0)
    assert str(error) == "A step took longer than 30 s."


def test_who_is_told_of_trouble_gets_time_to_end_in_order(watched: Watched, capfd: pytest.CaptureFixture[str]) -> None:
    gone = ClusterError("worker 1 has ended.")
    assert watched.watchdog.trouble is None
    watched.watchdog.report(gone)
    assert watched.watchdog.trouble is gone
    assert watched.after(GRACE) == []
    assert watched.after(0.1) == [gone, 6]
    assert capfd.readouterr().err == "", "it is known why, and the stacks would hide it"


def test_the_first_reason_counts(watched: Watched) -> None:
    first = DataError("A file is damaged.")
    watched.watchdog.report(first)
    assert watched.after(GRACE - 1) == []
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    assert watched.watchdog.trouble is first
    assert watched.after(2.0) == [first, 5]


def test_trouble_is_the_reason_even_if_something_is_overdue_as_well(watched: Watched) -> None:
    gone = ClusterError("worker 1 has ended.")
    watched.watchdog.expect("A step", 1.0)
    watched.watchdog.report(gone)
    assert watched.after(GRACE + 1) == [gone, 6]


def test_what_is_overdue_because_of_trouble_does_not_hide_it(watched: Watched) -> None:
    gone = ClusterError("worker 1 has ended.")
    watched.watchdog.expect("A step", 5.0)
    watched.watchdog.report(gone)
    assert watched.after(6.0) == []
    assert watched.after(GRACE) == [gone, 6]


@pytest.mark.parametrize("trouble", [True, False])
def test_nothing_happens_after_a_stop(watched: Watched, trouble: bool) -> None:
    watched.watchdog.expect("A step", 1.0)
    if trouble:
        watched.watchdog.report(ClusterError("worker 1 has ended."))
    watched.watchdog.stop()
    watched.watchdog.stop()
    assert watched.after(1000.0) == []


def test_a_last_will_that_fails_does_not_keep_the_process() -> None:
    watched = Watched(will_fails=True)
    watched.watchdog.expect("A step", 1.0)
    watched.now += 2.0
    with pytest.raises(OSError, match="disk is full"):  # where the end is real, nobody is left to see it
        watched.watchdog.look()
    assert watched.done[1:] == [124]


def test_a_reader_of_the_output_that_has_gone_does_not_keep_the_process(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Broken())
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    with contextlib.suppress(BrokenPipeError):
        watched.after(GRACE + 1)
    assert watched.done[1:] == [6]


def test_a_thread_of_its_own_looks() -> None:
    watched, looked = Watched(), threading.Semaphore(0)

    def clock() -> float:
        looked.release()
        return watched.now

    watched.watchdog = Watchdog(watched.will, clock=clock, end=watched.end)
    watched.watchdog.start()
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    for _ in range(3):  # once by `report`, then by each look
        assert looked.acquire(timeout=SECONDS)
    assert watched.done == []
    watched.now += GRACE + 1
    assert watched.ended.wait(SECONDS)
    assert watched.done[1:] == [6]
