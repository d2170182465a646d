"""Times a step, and repeats it. Only the step is timed. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

from benchmarks.errors import InvalidRunError

Clock = Callable[[], float]
Numbers = Mapping[str, float]  # of one step: what `results.measurement.Observed` has fetched
TakeStep = Callable[[], tuple[float, int, Numbers]]  # returns the loss, the staleness, and more numbers

TRY_SMALLER_STEPS = "Its speed means nothing; try a smaller --init_learning_rate, another --optimizer, or no --xla."


@dataclasses.dataclass(frozen=True)
class TowerStep:
    """One step of one asynchronous tower: its time, the mean loss over its batch, and more numbers.

    `staleness` is the number of updates by other towers between its reading of the weights and the end of its update.
    """

    tower: int
    seconds: float
    loss: float
    staleness: int
    observed: Numbers = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Taken:
    """One global step: its time, its mean loss, the steps of asynchronous towers, more numbers, and when it ended."""

    seconds: float
    loss: float
    tower_steps: Sequence[TowerStep] = ()
    observed: Numbers = dataclasses.field(default_factory=dict)
    ended_at: float = 0.0


@dataclasses.dataclass
class Phase:
    """The steps of one phase so far. They survive an interruption."""

    step_seconds: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    tower_steps: list[TowerStep] = dataclasses.field(default_factory=list)
    observed: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    ended_at: list[float] = dataclasses.field(default_factory=list)

    def add(self, taken: Taken) -> None:
        """Adds a step."""
        self.step_seconds.append(taken.seconds)
        self.losses.append(taken.loss)
        self.ended_at.append(taken.ended_at)
        self.tower_steps += taken.tower_steps
        for name, value in taken.observed.items():
            self.observed.setdefault(name, []).append(float(value))


def timed(step: TakeStep, clock: Clock = time.perf_counter) -> Callable[[], Taken]:
    """Returns a function that takes one global step of towers that step together, and times it.

    `step` runs it to its end; it has no staleness. Only this call is timed.
    """

    def take() -> Taken:
        begin = clock()
        loss, _, observed = step()
        end = clock()
        return Taken(end - begin, float(loss), observed=within(end - begin, observed), ended_at=end)

    return take


def within(seconds: float, observed: Numbers) -> Numbers:
    """Returns numbers of a step that took so long. Times of its parts are at most as long.

    TensorFlow takes them from the clock of the day, which may be set meanwhile.
    """
    return {name: min(number, seconds) if name.endswith("_seconds") else number for name, number in observed.items()}


def run_phase(
    take: Callable[[], Taken],
    steps: int,
    phase: Phase,
    *,
    deadline: float = math.inf,
    steps_per_round: int = 1,
    clock: Clock = time.perf_counter,
    after_step: Sequence[Callable[[Phase], None]] = (),
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Takes `steps` global steps, or fewer if the clock reaches `deadline` after the first, and adds each to `phase`.

    With `steps_per_round`, the deadline ends a phase only after whole rounds of so many steps.
    `after_step` are called in this order after each step; their time is not measured. `is_enough` is asked then, and
    may end the phase.

    Raises:
        InvalidRunError: a loss is not finite; `phase` has the step nevertheless.
    """
    while (taken_steps := len(phase.step_seconds)) < steps:
        if taken_steps and taken_steps % steps_per_round == 0 and clock() >= deadline:
            return
        taken = take()
        phase.add(taken)
        for call in after_step:
            call(phase)
        require_finite(taken.loss)
        if is_enough():
            return


def require_finite(loss: float) -> None:
    """Raises InvalidRunError if a loss is not finite."""
    if not math.isfinite(loss):
        raise InvalidRunError(f"The loss became {loss:g}: the training diverged. {TRY_SMALLER_STEPS}")
