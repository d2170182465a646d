"""What is counted and done between steps, and that its time is not measured."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from benchmarks.callbacks import callback
from benchmarks.callbacks.callback import Callbacks
from benchmarks.cluster.member import Alone
from benchmarks.measure.timing import Phase


class Every:
    """Is due, and takes a step, after every so many steps."""

    name = "a note"

    def __init__(self, every: int) -> None:
        self._every, self.done, self.taken = every, [], []  # type: int, list[int], list[int]

    def is_due(self, steps: int, *, last: bool) -> bool:
        return steps % self._every == 0 and not last

    def after_step(self, steps: int) -> bool:
        self.done.append(steps)
        return steps == 6

    def wants(self, step: int) -> bool:
        return step % self._every == 0

    def take(self, step: int) -> None:
        self.taken.append(step)

    def after_run(self) -> None:
        self.taken.append(0)


def test_unmeasured_steps_count_as_steps_and_what_is_due_follows_them() -> None:
    note = Every(3)
    plan = Callbacks(Alone(), steps=1, callbacks=[note], unmeasured=[note])
    for _ in range(2):  # the steps 2 and 4
        plan.after_step(Phase())
    assert plan.steps == 4
    assert note.taken == note.done == [3]
    assert not plan.is_enough
    plan.after_step(Phase())
    assert note.taken == note.done == [3, 6]
    assert plan.is_enough
    plan.after_run()
    assert note.taken == [3, 6, 0]


class TwoWorkers(Alone):
    """Only the first has something to say."""

    def __init__(self, *, is_leader: bool) -> None:
        super().__init__()
        self.is_leader = is_leader

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> dict[str, Any]:
        return {"worker 0": message if self.is_leader else True, "worker 1": False}


@pytest.mark.parametrize("is_leader", [True, False])
def test_all_workers_stop_where_the_leader_has_reached_the_aim(is_leader: bool) -> None:
    note = Every(6)
    plan = Callbacks(TwoWorkers(is_leader=is_leader), steps=5, callbacks=[note])
    plan.after_step(Phase())
    assert plan.is_enough and note.done == ([6] if is_leader else [])


def test_a_training_of_epochs_ends_with_its_last_step_unmeasured_ones_included() -> None:
    note = Every(2)
    plan = Callbacks(Alone(), unmeasured=[note], ends_at=3)
    plan.after_step(Phase())
    assert (plan.steps, plan.is_enough) == (2, False)
    plan.after_step(Phase())
    assert (plan.steps, plan.is_enough, note.taken) == (3, True, [2])


def test_the_time_of_pauses_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10.0)
    monkeypatch.setattr(callback.time, "perf_counter", lambda: next(clock))
    plan = Callbacks(Alone())
    for _ in range(3):
        plan.after_step(Phase())
    assert plan.paused_seconds == 30.0
