"""Ends the process when it hangs: something is overdue, another process has gone, or a signal has come.

TensorFlow may wait without limit, and while it waits, no exception can be raised in it and Python handles no signal. So
a thread of its own watches, has the measurement saved, and ends the process. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.console import progress, warn, warn_of_exception
from benchmarks.errors import BenchError, OverdueError, StoppedError
from benchmarks.process.signals import SIGNALS

OnExit = Callable[[BenchError], object]
# What the main thread gets to notice by itself that a process has gone, or that a signal has come, and to end in order.
# `docker stop` sends SIGKILL 10 s after SIGTERM, and the record must be saved by then.
_GRACE_SECONDS = 15.0
_GRACE_AFTER_SIGNAL_SECONDS = 7.0
_LOOK_SECONDS = 0.25
# Limits of the two parts of the end itself: a lock on results may take a minute, a paused reader of stdout forever.
_SAVE_SECONDS = 90.0
SHOW_SECONDS = 5.0
# What the thread gets to end: it may be asking for an extension.
_STOP_SECONDS = 5.0


def _warn(error: BenchError) -> None:
    warn(str(error))


class Watchdog:
    """Watches this process from a thread.

    Args:
        save: saves what there is, in the watchdog's thread, before the process is ended.
        show: prints why the process ends, after that. It may be cut off, since a reader of the output may have paused.
        clock: seconds, monotonic.
        end: ends the process.

    Attributes:
        extension: asked when a deadline has passed; returns by how many seconds it is moved, 0 for not at all.
    """

    def __init__(
        self,
        save: OnExit = lambda error: None,
        show: OnExit = _warn,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._save, self._show, self._clock, self._end = save, show, clock, end
        self.extension: Callable[[], float] = lambda: 0.0
        self._lock = threading.Lock()
        self._expected: tuple[str, float, float] | None = None
        self._trouble: tuple[BenchError, float] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._signals: tuple[int, int] | None = None

    def start(self) -> None:
        """Begins to watch. To be called by the main thread, which alone can set up signals."""
        reader, writer = self._signals = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """Watches no more. To be called by the main thread."""
        with self._lock:  # not while the process is being ended
            self._stopped.set()
        if self._signals is None:
            return
        signal.set_wakeup_fd(-1)
        self._thread.join(_STOP_SECONDS)
        if not self._thread.is_alive():  # it reads from there
            for end in self._signals:
                os.close(end)
            self._signals = None

    def expect(self, what: str, within_seconds: float) -> None:
        """Sets the deadline of what comes next; replaces the last deadline."""
        self._expected = (what, within_seconds, self._clock() + within_seconds)

    def expect_nothing(self) -> None:
        """Removes the deadline."""
        self._expected = None

    def report(self, error: BenchError) -> None:
        """Reports why the process must end; it gets some time to end by itself. The first reason counts."""
        if self._trouble is None:
            grace = _GRACE_AFTER_SIGNAL_SECONDS if isinstance(error, StoppedError) else _GRACE_SECONDS
            self._trouble = (error, self._clock() + grace)

    def look(self) -> None:
        """Checks once, and ends the process if it must end."""
        expected = self._expected
        more = self.extension() if expected and not self._trouble and self._clock() > expected[2] else 0.0
        if self._expected is not expected:  # it was met meanwhile
            return
        if expected and more:
            self._expected = expected = (*expected[:2], self._clock() + more)
        trouble = self._trouble
        with self._lock:
            if self._stopped.is_set():
                return
            if trouble and self._clock() > trouble[1]:
                self._give_up(trouble[0])
            elif expected and not trouble and self._clock() > expected[2]:
                what, seconds, _ = expected
                self._give_up(OverdueError(f"{what} took longer than {seconds:g} s."), stacks=_stacks())

    def _give_up(self, error: BenchError, stacks: str = "") -> None:
        self._stopped.set()

        def show(error: BenchError) -> None:
            if stacks:
                warn(f"stacks of all threads:\n{stacks}")
            self._show(error)

        for part, seconds in ((self._save, _SAVE_SECONDS), (show, SHOW_SECONDS)):
            with ended_after(seconds, error.exit_status, self._end):
                try:
                    part(error)
                except Exception:
                    warn_of_exception()
        self._end(error.exit_status)

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            with contextlib.suppress(BlockingIOError):  # signals that the main thread may be too busy to handle
                for number in os.read(self._signals[0], 64) if self._signals else b"":
                    if number in SIGNALS:
                        self.report(StoppedError(number))
            self.look()
            progress.look()


@contextlib.contextmanager
def ended_after(seconds: float, status: int, end: Callable[[int], None] = os._exit) -> Iterator[None]:
    """Ends the process if what is done in the block takes longer."""
    limit = threading.Timer(seconds, end, [status])
    limit.daemon = True
    limit.start()
    try:
        yield
    finally:
        limit.cancel()


@contextlib.contextmanager
def watched(save: OnExit = lambda error: None, show: OnExit = _warn) -> Iterator[Watchdog]:
    """Yields a watchdog that watches meanwhile; its arguments are those of `Watchdog`."""
    watchdog = Watchdog(save, show)
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()
        progress.end()


def _stacks() -> str:
    """Returns the stacks of all threads. Written to stderr directly, they would block all threads if it is not read."""
    # A Python that was built for an old C library has no memfd_create.
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("stacks"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode(errors="replace")
