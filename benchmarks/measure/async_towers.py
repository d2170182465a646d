"""Asynchronous towers: a thread each, measured over a time window common to all. Imports no TensorFlow."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Sequence

from benchmarks.console import warn
from benchmarks.measure.timing import Clock, Taken, TakeStep, TowerStep, within

_JOIN_SECONDS = 60.0


def join(threads: Sequence[threading.Thread]) -> None:
    """Waits until threads have ended their step, and warns of those that do not."""
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if late := [thread.name for thread in threads if thread.is_alive()]:
        warn(f"{', '.join(late)} did not end the step within {_JOIN_SECONDS:g} s; the run ends without it.")


class FreeRunningTowers:
    """Repeats every tower's step in a thread of its own, and groups the completed steps into global steps.

    A global step is as many completed tower steps as there are towers, whichever towers took them. Its time is from
    the last completion of the previous global step to its own. So the times add up to one window for all towers that
    opens and closes with a completion: only steps completed in it count, and no rate is a mean of rates.

    The first global step is one step of every tower, since each has its own graph to optimise; the towers continue
    when all are done.
    """

    def __init__(self, towers: Sequence[TakeStep], clock: Clock = time.perf_counter) -> None:
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

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._all_have_begun.set()
        join(self._threads)

    def take(self) -> Taken:
        """Waits until as many tower steps are completed as there are towers; raises what a tower's step raised."""
        begin, steps = self._window_end, []
        for _ in self._threads:
            completed = self._completed.get()
            if isinstance(completed, BaseException):
                raise completed
            self._window_end, step = completed
            steps.append(step)
        self._all_have_begun.set()
        loss = statistics.fmean(step.loss for step in steps)
        observed = {name: statistics.fmean(step.observed[name] for step in steps) for name in steps[0].observed}
        return Taken(self._window_end - begin, loss, steps, observed, self._window_end)

    def forget(self) -> None:
        """Discards completed steps that were not taken: the next global step begins now. Raises as `take`."""
        self._window_end = self._clock()
        while not self._completed.empty():
            completed = self._completed.get()
            if isinstance(completed, BaseException):
                raise completed

    def _run(self, number: int, take: TakeStep) -> None:
        try:
            while not self._stopped.is_set():
                begin = self._clock()
                loss, staleness, observed = take()
                with self._completing:  # completions are queued in the order of their times
                    end = self._clock()
                    numbers = within(end - begin, observed)
                    self._completed.put((end, TowerStep(number, end - begin, float(loss), int(staleness), numbers)))
                self._all_have_begun.wait()
        except BaseException as error:  # `take` raises it in the thread that waits
            self._completed.put(error)
