"""Ends the process when it cannot go on: something is overdue, another process has gone, or a signal says so.

TensorFlow may wait without limit for what will never come, and then no exception can be raised where it waits, nor does
Python handle a signal there. So a thread of its own watches, lets what has been measured be kept, and ends the process.
Imports no TensorFlow.
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

LastWill = Callable[[BenchError], object]
# What the main thread gets to notice by itself that somebody has gone or a signal has come, and to end in order.
_GRACE_SECONDS = 15.0
_LOOK_SECONDS = 0.25


class Guard:
    """Watches one process from a thread.

    Args:
        last_will: is called, in the guard's thread, before the process is ended; it must not take long.
        clock: seconds, monotonic.
        end: ends the process.
    """

    def __init__(
        self,
        last_will: LastWill,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._last_will = last_will
        self._clock = clock
        self._end = end
        self._lock = threading.Lock()
        self._expected: tuple[str, float, float] | None = None
        self._trouble: tuple[BenchError, float] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        self._signals: tuple[int, int] | None = None

    def start(self) -> None:
        """Begins to watch; for the main thread, which alone may have a say in signals."""
        reader, writer = self._signals = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """Watches no more: whatever comes now is in order."""
        with self._lock:  # if it is about to end the process, that is what happens
            self._stopped.set()
        signal.set_wakeup_fd(-1)

    def expect(self, what: str, within_seconds: float) -> None:
        """Says what must be over soon; the next call replaces this one."""
        self._expected = (what, within_seconds, self._clock() + within_seconds)

    def expect_nothing(self) -> None:
        """What was expected has come."""
        self._expected = None

    def report(self, error: BenchError) -> None:
        """Says why the process must end; it gets some time to do so by itself. The first reason counts."""
        if self._trouble is None:
            self._trouble = (error, self._clock() + _GRACE_SECONDS)

    @property
    def trouble(self) -> BenchError | None:
        """Returns why the process must end, if it must."""
        return self._trouble[0] if self._trouble else None

    def look(self) -> None:
        """Looks once, and ends the process if it must end."""
        expected, trouble = self._expected, self._trouble
        with self._lock:
            if self._stopped.is_set():
                return
            if trouble and self._clock() > trouble[1]:
                self._give_up(trouble[0])
            elif expected and not trouble and self._clock() > expected[2]:
                with contextlib.suppress(OSError, ValueError):  # nobody may be reading any more
                    print("run_bench: the threads stand at:", file=sys.stderr, flush=True)
                    faulthandler.dump_traceback(all_threads=True)
                what, seconds, _ = expected
                self._give_up(OverdueError(f"{what} took longer than {seconds:g} s."))

    def _give_up(self, error: BenchError) -> None:
        self._stopped.set()
        try:
            self._last_will(error)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        finally:
            self._end(error.exit_status)

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            self._hear()
            self.look()

    def _hear(self) -> None:
        """Notes a signal that the main thread may be too busy to handle."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._signals[0], 64) if self._signals else b"":
                if number in (signal.SIGINT, signal.SIGTERM):
                    self.report(StoppedError(signal.Signals(number)))
