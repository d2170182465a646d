"""Ends the process when it hangs: something is overdue, another process has gone, or a signal has come.

TensorFlow may wait without limit, and while it waits, no exception can be raised in it and Python handles no signal. So
a thread of its own watches, has the measurement saved, and ends the process. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.errors import BenchError, OverdueError, StoppedError

OnExit = Callable[[BenchError], object]
# What the main thread gets to notice by itself that a process has gone or a signal has come, and to end in order.
_GRACE_SECONDS = 15.0
_LOOK_SECONDS = 0.25


class Watchdog:
    """Watches this process from a thread.

    Args:
        on_exit: saves what there is, in the watchdog's thread, before the process is ended; must not take long.
        clock: seconds, monotonic.
        end: ends the process.
    """

    def __init__(
        self,
        on_exit: OnExit,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._on_exit, self._clock, self._end = on_exit, clock, end
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
        """Watches no more."""
        with self._lock:  # not while the process is being ended
            self._stopped.set()
        signal.set_wakeup_fd(-1)

    def expect(self, what: str, within_seconds: float) -> None:
        """Sets the deadline of what comes next; replaces the last deadline."""
        self._expected = (what, within_seconds, self._clock() + within_seconds)

    def expect_nothing(self) -> None:
        """Removes the deadline."""
        self._expected = None

    def report(self, error: BenchError) -> None:
        """Reports why the process must end; it gets some time to end by itself. The first reason counts."""
        if self._trouble is None:
            self._trouble = (error, self._clock() + _GRACE_SECONDS)

    @property
    def trouble(self) -> BenchError | None:
        """Returns why the process must end, if it must."""
        return self._trouble[0] if self._trouble else None

    def look(self) -> None:
        """Checks once, and ends the process if it must end."""
        expected, trouble = self._expected, self._trouble
        with self._lock:
            if self._stopped.is_set():
                return
            if trouble and self._clock() > trouble[1]:
                self._give_up(trouble[0])
            elif expected and not trouble and self._clock() > expected[2]:
                with contextlib.suppress(OSError, ValueError):  # stderr may be closed
                    print("run_bench: stacks of all threads:", file=sys.stderr, flush=True)
                    faulthandler.dump_traceback(all_threads=True)
                what, seconds, _ = expected
                self._give_up(OverdueError(f"{what} took longer than {seconds:g} s."))

    def _give_up(self, error: BenchError) -> None:
        self._stopped.set()
        try:
            self._on_exit(error)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        finally:
            self._end(error.exit_status)

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            with contextlib.suppress(BlockingIOError):  # signals that the main thread may be too busy to handle
                for number in os.read(self._signals[0], 64) if self._signals else b"":
                    if number in (signal.SIGINT, signal.SIGTERM):
                        self.report(StoppedError(signal.Signals(number)))
            self.look()
