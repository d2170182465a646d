from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.timing import Numbers

WAIT_SECONDS = 20.0


class Puppets:
    """Towers whose steps end when the test says so, at times of the test's choice.

    Args:
        ends: for each tower, when its steps end. A step begins when the one before has ended, the first at 100.
    """

    def __init__(self, *ends: list[float]) -> None:
        self._times = {
            f"tower_{number}": [100.0, *(time for end in its for time in (end, end))] for number, its in enumerate(ends)
        }
        self._may_end = [threading.Semaphore(0) for _ in ends]
        self._ended = [threading.Semaphore(0) for _ in ends]
        self.towers = [self._tower(number) for number in range(len(ends))]

    def _tower(self, number: int) -> Callable[[], tuple[float, int, Numbers]]:
        def take() -> tuple[float, int, Numbers]:
            self._may_end[number].acquire(timeout=WAIT_SECONDS)
            longer_than_a_step = {"worker_compute_seconds": 3600.0}  # as if the clock of the day was set meanwhile
            return 10.0 + number, number, {"input_wait_seconds": 0.5 * number, **longer_than_a_step}

        return take

    def clock(self) -> float:
        name = threading.current_thread().name
        if name not in self._times:
            return 100.0
        time = self._times[name].pop(0)
        if len(self._times[name]) % 2:  # an end, after which its beginning of the next step is left
            self._ended[int(name[-1])].release()
        return time

    def finish(self, *order: int) -> None:
        """Ends a step of each of these towers, one after the other."""
        for number in order:
            self._may_end[number].release()
            assert self._ended[number].acquire(timeout=WAIT_SECONDS)

    def let_go(self) -> None:
        for semaphore in self._may_end:
            semaphore.release(1000)


def test_the_window_is_common_and_made_of_completions() -> None:
    puppets = Puppets([101.0, 103.0, 104.0, 106.5], [102.0, 105.0])
    with FreeRunningTowers(puppets.towers, puppets.clock) as towers:
        puppets.finish(0, 1)
        first = towers.take()
        puppets.finish(0, 0)  # tower 0 is twice as fast, and both its steps count
        second = towers.take()
        puppets.finish(1, 0)
        third = towers.take()
        puppets.let_go()
    assert [taken.seconds for taken in (first, second, third)] == [2.0, 2.0, 2.5]
    assert [step.tower for step in second.tower_steps] == [0, 0]
    assert second.loss == 10.0 and third.loss == 10.5
    assert second.observed == {"input_wait_seconds": 0.0, "worker_compute_seconds": 1.5}
    assert third.observed == {"input_wait_seconds": 0.25, "worker_compute_seconds": 2.75}
    assert [(step.tower, step.seconds, step.staleness) for step in third.tower_steps] == [(1, 3.0, 1), (0, 2.5, 0)]


def test_steps_completed_before_the_measurement_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    puppets = Puppets([101.0, 104.0, 111.0], [102.0, 105.0, 112.0])
    with FreeRunningTowers(puppets.towers, puppets.clock) as towers:
        puppets.finish(0, 1)
        towers.take()
        puppets.finish(0, 1)
        monkeypatch.setattr(towers, "_clock", lambda: 110.0)
        towers.forget()
        monkeypatch.undo()
        puppets.finish(0, 1)
        measured = towers.take()
        puppets.let_go()
    assert measured.seconds == 2.0, "from the call, not from the last completion"
    assert [step.seconds for step in measured.tower_steps] == [7.0, 7.0]


def test_no_tower_runs_on_before_all_have_taken_their_first_step() -> None:
    steps = itertools.count(1)
    took_first, began_second = threading.Event(), threading.Event()
    too_early = []

    def fast() -> tuple[float, int, Numbers]:
        (took_first if next(steps) == 1 else began_second).set()
        return 1.0, 0, {}

    def slow() -> tuple[float, int, Numbers]:
        if not too_early:
            assert took_first.wait(WAIT_SECONDS)
            too_early.append(began_second.wait(0.2))
        return 3.0, 0, {}

    with FreeRunningTowers([fast, slow]) as towers:
        first = towers.take()
        assert [step.tower for step in first.tower_steps] == [0, 1] and first.loss == 2.0
        assert too_early == [False]
        assert began_second.wait(WAIT_SECONDS), "then it runs on"


def test_what_a_tower_raises_reaches_the_one_who_waits() -> None:
    def broken() -> tuple[float, int, Numbers]:
        raise ValueError("no more images")

    with FreeRunningTowers([broken, lambda: (1.0, 0, {})]) as towers, pytest.raises(ValueError, match="no more images"):
        towers.take()
        towers.take()


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), FreeRunningTowers([lambda: (1.0, 0, {})] * 3) as towers:
        towers.take()
        raise KeyboardInterrupt
    assert threading.active_count() <= before
