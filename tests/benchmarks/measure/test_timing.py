from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.errors import InvalidRunError
from benchmarks.measure.timing import Numbers, Phase, Taken, run_phase, timed


class FakeClock:
    """Time passes only when a test advances it."""

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
    assert phase.ended_at == [100.25, 150.5, 200.75, 251.0]
    assert phase.observed == {"input_wait_seconds": [0.125] * 4}


@pytest.mark.fault("R10", "the clock of the day is set forward during a step", survives="no wait exceeds the step")
def test_a_part_of_a_step_takes_no_longer_than_the_step() -> None:
    clock = FakeClock()

    def step() -> tuple[float, int, Numbers]:
        clock.now += 0.5
        return 1.0, 0, {"input_wait_seconds": 3600.0, "worker_compute_seconds": 0.25, "loss_scales": 128.0}

    observed = timed(step, clock)().observed
    assert observed == {"input_wait_seconds": 0.5, "worker_compute_seconds": 0.25, "loss_scales": 128.0}


@pytest.mark.parametrize(
    ("deadline", "steps_per_round", "taken"),
    [(103.0, 1, 3), (106.0, 4, 8), (0.0, 1, 1)],  # the first: 101.25, 102.5, 103.75
    ids=["before the next step", "after whole rounds", "after one step"],
)
def test_a_deadline_ends_the_phase(deadline: float, steps_per_round: int, taken: int) -> None:
    clock, phase = FakeClock(), Phase()
    run_phase(clock.step(seconds=1.25), 100, phase, deadline=deadline, steps_per_round=steps_per_round, clock=clock)
    assert len(phase.step_seconds) == taken


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
