from __future__ import annotations

import io
import os
import signal
import sys
import threading

import pytest

from benchmarks.errors import BenchError, ClusterError, DataError, OverdueError, StoppedError
from benchmarks.process import watchdog as module
from benchmarks.process.watchdog import Watchdog

# No test waits so long, unless it fails.
SECONDS = 30.0
GRACE = module._GRACE_SECONDS


class Watched:
    """A watchdog under a clock of the test, and what it did, in order; no process is ended."""

    def __init__(self, save_fails: bool = False) -> None:
        self.now = 100.0
        self.done: list[BenchError | int] = []
        self._save_fails = save_fails
        self.ended = threading.Event()
        self.watchdog = Watchdog(self.save, clock=lambda: self.now, end=self.end)

    def save(self, error: BenchError) -> None:
        self.done.append(error)
        if self._save_fails:
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


def test_what_is_overdue_ends_the_process_with_the_stacks(
    watched: Watched, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")  # as of a Python that was built for an old C library
    watched.watchdog.expect("A step (measuring)", 60.0)
    assert watched.after(60.0) == []
    assert capfd.readouterr().err == ""
    error, status = watched.after(0.1)
    assert status == 124
    assert isinstance(error, OverdueError)
    assert str(error) == "A step (measuring) took longer than 60 s."
    stacks = capfd.readouterr().err
    assert stacks.startswith("run_bench: stacks of all threads:\n")
    assert stacks.endswith("\nrun_bench: A step (measuring) took longer than 60 s.\n")
    assert "in test_what_is_overdue_ends_the_process_with_the_stacks" in stacks
    assert watched.after(100.0) == [error, status], "it ends only once"


def test_the_next_expectation_replaces_the_one_before(watched: Watched) -> None:
    watched.watchdog.expect("Building the graph", 10.0)
    assert watched.after(9.0) == []
    watched.watchdog.expect("A step", 30.0)
    assert watched.after(29.0) == []
    error, _ = watched.after(2.0)
    assert str(error) == "A step took longer than 30 s."


def test_a_deadline_may_be_moved_when_it_has_passed(watched: Watched) -> None:
    more = [30.0, 0.0]
    watched.watchdog.extension = lambda: more.pop(0)
    watched.watchdog.expect("A step", 10.0)
    assert watched.after(9.0) == [] and len(more) == 2, "it is asked for only then"
    assert watched.after(2.0) == []
    assert watched.after(29.0) == []
    error, status = watched.after(2.0)
    assert str(error) == "A step took longer than 10 s." and status == OverdueError.exit_status


def test_what_has_come_meanwhile_is_not_overdue(watched: Watched) -> None:
    """The main thread goes on while the watchdog asks for more time."""

    def extension() -> float:
        watched.watchdog.expect_nothing()
        return 0.0

    watched.watchdog.extension = extension
    watched.watchdog.expect("A step", 10.0)
    assert watched.after(11.0) == [] and watched.after(1000.0) == []


def test_who_is_told_of_trouble_gets_time_to_end_in_order(watched: Watched, capfd: pytest.CaptureFixture[str]) -> None:
    gone = ClusterError("worker 1 has ended.")
    watched.watchdog.report(gone)
    assert watched.after(GRACE) == []
    assert watched.after(0.1) == [gone, 6]
    assert capfd.readouterr().err == "run_bench: worker 1 has ended.\n", "it is known why: stacks would hide it"


def test_the_first_reason_counts_and_what_is_overdue_because_of_it_does_not_hide_it(watched: Watched) -> None:
    first = DataError("A file is damaged.")
    watched.watchdog.expect("A step", 5.0)
    watched.watchdog.report(first)
    assert watched.after(GRACE - 1) == []
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    assert watched.after(2.0) == [first, 5]


def test_after_a_signal_the_record_is_saved_before_docker_stop_kills(watched: Watched) -> None:
    watched.watchdog.report(StoppedError(signal.SIGTERM))
    error, status = watched.after(8.0)
    assert isinstance(error, StoppedError) and status == 143


@pytest.mark.parametrize("trouble", [True, False])
def test_nothing_happens_after_a_stop(watched: Watched, trouble: bool) -> None:
    watched.watchdog.expect("A step", 1.0)
    if trouble:
        watched.watchdog.report(ClusterError("worker 1 has ended."))
    watched.watchdog.stop()
    watched.watchdog.stop()
    assert watched.after(1000.0) == []


def test_it_leaves_no_descriptors() -> None:
    before = os.listdir("/proc/self/fd")
    with module.watched():
        assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    assert os.listdir("/proc/self/fd") == before


def test_records_that_cannot_be_saved_do_not_keep_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    watched = Watched(save_fails=True)
    watched.watchdog.expect("A step", 1.0)
    assert watched.after(2.0)[1:] == [124]
    shown = capfd.readouterr().err
    assert "OSError: The disk is full." in shown and shown.endswith("run_bench: A step took longer than 1 s.\n")


@pytest.mark.parametrize("blocked", ["_SAVE_SECONDS", "SHOW_SECONDS"])
def test_an_end_that_is_blocked_is_cut_off(blocked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, blocked, 0.1)
    watched, parts = Watched(), {"_SAVE_SECONDS": "save", "SHOW_SECONDS": "show"}
    # As a lock that another thread holds while it waits for the reader of stdout.
    waits = {parts[blocked]: lambda error: watched.ended.wait(SECONDS)}
    watched.watchdog = Watchdog(**waits, clock=lambda: watched.now, end=watched.end)
    watched.watchdog.expect("A step", 1.0)
    watched.after(2.0)
    assert watched.done[0] == 124


def test_a_reader_of_stderr_that_has_gone_does_not_keep_the_process(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    assert watched.after(GRACE + 1)[1:] == [6]


def test_a_thread_of_its_own_looks() -> None:
    watched, looked = Watched(), threading.Semaphore(0)

    def clock() -> float:
        looked.release()
        return watched.now

    watched.watchdog = Watchdog(watched.save, clock=clock, end=watched.end)
    watched.watchdog.start()
    watched.watchdog.report(ClusterError("worker 1 has ended."))
    for _ in range(3):  # once by `report`, then by each look
        assert looked.acquire(timeout=SECONDS)
    assert watched.done == []
    watched.now += GRACE + 1
    assert watched.ended.wait(SECONDS)
    assert watched.done[1:] == [6]
