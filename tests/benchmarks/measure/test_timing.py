from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.errors import InvalidRunError
from benchmarks.measure.timing import Numbers, Phase, Taken, run_phase, timed


class FakeClock:
    """Time passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def step(self, *, seconds: float, loss: float = 1.0) -> Callable[[], Taken]:
        def run() -> tuple[float, int, Numbers]:
            self.now += seconds
            return loss, 0, {"input_wait_seconds": seconds / 2}

        return timed(run, self)


def test_only_the_step_is_timed() -> None:
    clock, phase = FakeClock(), Phase()

    def dawdle(_: Phase) -> None:
        clock.now += 50.0

    run_phase(clock.step(seconds=0.25, loss=3.0), 4, phase, after_step=[dawdle])
    assert phase.step_seconds == [0.25] * 4
    assert phase.losses == [3.0] * 4
    assert phase.observed == {"input_wait_seconds": [0.125] * 4}


def test_no_steps_wanted_none_taken() -> None:
    phase = Phase()
    run_phase(lambda: pytest.fail("no step was asked for"), 0, phase)
    assert phase.step_seconds == []


def test_a_deadline_ends_the_phase_before_the_next_step() -> None:
    clock, phase = FakeClock(), Phase()
    run_phase(clock.step(seconds=1.25), 100, phase, deadline=103.0, clock=clock)
    assert len(phase.step_seconds) == 3  # 101.25, 102.5, 103.75


def test_a_deadline_ends_a_phase_after_whole_rounds() -> None:
    clock, phase = FakeClock(), Phase()
    run_phase(clock.step(seconds=1.0), 100, phase, deadline=105.0, steps_per_round=4, clock=clock)
    assert len(phase.step_seconds) == 8


def test_a_deadline_that_has_passed_still_allows_one_step() -> None:
    clock, phase = FakeClock(), Phase()
    run_phase(clock.step(seconds=1.0), 100, phase, deadline=0.0, clock=clock)
    assert len(phase.step_seconds) == 1


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run(loss: float) -> None:
    clock, phase = FakeClock(), Phase()
    with pytest.raises(InvalidRunError, match="init_learning_rate"):
        run_phase(clock.step(seconds=1.0, loss=loss), 5, phase)
    assert len(phase.step_seconds) == 1


def test_an_interruption_leaves_the_steps_so_far() -> None:
    clock, phase = FakeClock(), Phase()

    def interrupt(so_far: Phase) -> None:
        if len(so_far.step_seconds) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_phase(clock.step(seconds=1.0), 5, phase, after_step=[interrupt])
    assert phase.step_seconds == [1.0, 1.0]
