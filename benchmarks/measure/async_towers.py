"""Towers that go their own way: a thread each, counted over a window that is common to all. Knows no TensorFlow."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from benchmarks.console import warn
from benchmarks.measure.timing import Clock, Observed, Taken, TowerStep

_JOIN_SECONDS = 60.0
_STEP_SECONDS = 1800.0

# Takes one step of a tower and returns its loss, its staleness, and what else was observed.
TakeTowerStep = Callable[[], tuple[float, int, Observed]]


class FreeRunningTowers:
    """Repeats every tower's step in a thread of its own, and hands out what they complete as global steps.

    As many completed tower steps as there are towers make a global step, whichever towers they are of; its time is
    that from the last completion of the global step before to its own. So the times add up to a window that opens and
    closes with a completion and is common to all towers: nothing is counted that was not completed in it, and no rate
    is a mean of rates.

    The very first global step is one step of every tower, since each has its own graph to optimise; only when all are
    done do the towers run on.

    Args:
        towers: takes a step, one per tower.
        clock: seconds, monotonic.
    """

    def __init__(self, towers: Sequence[TakeTowerStep], clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._completed: queue.SimpleQueue[tuple[float, TowerStep] | BaseException] = queue.SimpleQueue()
        self._completing = threading.Lock()
        self._all_have_begun = threading.Event()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, take), name=f"tower_{number}", daemon=True)
            for number, take in enumerate(towers)
        ]
        self._window_end = 0.0

    def __enter__(self) -> FreeRunningTowers:
        self._window_end = self._clock()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._all_have_begun.set()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            warn(f"{', '.join(late)} did not end the step within {_JOIN_SECONDS:g} s, and is left behind.")

    def take(self) -> Taken:
        """Waits until as many tower steps are completed as there are towers.

        Raises:
            TimeoutError: no tower has completed a step for very long.
            Exception: what a tower's step raised.
        """
        begin, steps = self._window_end, []
        for _ in self._threads:
            try:
                completed = self._completed.get(timeout=_STEP_SECONDS)
            except queue.Empty:
                raise TimeoutError(f"No tower has completed a step for {_STEP_SECONDS:g} s.") from None
            if isinstance(completed, BaseException):
                raise completed
            self._window_end, step = completed
            steps.append(step)
        self._all_have_begun.set()
        loss = statistics.fmean(step.loss for step in steps)
        observed = {name: statistics.fmean(step.observed[name] for step in steps) for name in steps[0].observed}
        return Taken(self._window_end - begin, loss, steps, observed, self._window_end)

    def forget(self) -> None:
        """Forgets what has been completed and not been taken: the next global step begins now.

        Raises:
            Exception: what a tower's step raised.
        """
        self._window_end = self._clock()
        while not self._completed.empty():
            completed = self._completed.get()
            if isinstance(completed, BaseException):
                raise completed

    def _run(self, number: int, take: TakeTowerStep) -> None:
        try:
            while not self._stopped.is_set():
                begin = self._clock()
                loss, staleness, observed = take()
                with self._completing:  # completions are queued in the order of their times
                    end = self._clock()
                    self._completed.put((end, TowerStep(number, end - begin, float(loss), int(staleness), observed)))
                self._all_have_begun.wait()
        except BaseException as error:  # it belongs to the thread that waits
            self._completed.put(error)
