"""The loop around a step: what is timed is the step and nothing else. Knows no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.errors import InvalidRunError

Clock = Callable[[], float]

TRY_SMALLER_STEPS = "Its speed means nothing; try a smaller --init_learning_rate, or another --optimizer."


class StoppingRule(Protocol):
    """Says when a phase of a run is over."""

    def done(self, step_seconds: Sequence[float]) -> bool:
        """Returns whether to stop, given the times of the phase's steps so far."""


@dataclasses.dataclass(frozen=True)
class FixedSteps:
    """Stops after that many steps."""

    steps: int

    def done(self, step_seconds: Sequence[float]) -> bool:
        """Returns whether there have been enough steps."""
        return len(step_seconds) >= self.steps


@dataclasses.dataclass(frozen=True)
class Deadline:
    """Stops once the clock has reached a time, but not before the first step: a result needs one."""

    at: float
    clock: Clock = time.perf_counter

    def done(self, step_seconds: Sequence[float]) -> bool:
        """Returns whether time is up."""
        return len(step_seconds) > 0 and self.clock() >= self.at


@dataclasses.dataclass(frozen=True)
class AnyOf:
    """Stops when any of the rules does."""

    rules: Sequence[StoppingRule]

    def done(self, step_seconds: Sequence[float]) -> bool:
        """Returns whether any rule stops."""
        return any(rule.done(step_seconds) for rule in self.rules)


@dataclasses.dataclass
class Phase:
    """The steps of one phase as they come: seconds and loss of each. What is here survives an interruption."""

    step_seconds: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)


def run_phase(
    step: Callable[[], float],
    rule: StoppingRule,
    phase: Phase,
    *,
    after_step: Callable[[Phase], None] = lambda phase: None,
    clock: Clock = time.perf_counter,
) -> None:
    """Runs steps until the rule stops, and notes each in `phase`.

    Args:
        step: runs one global step to its end and returns the loss. Only this call is timed.
        rule: says when to stop; asked before every step.
        phase: receives each step.
        after_step: called after each step, outside the timed part.
        clock: seconds, monotonic.

    Raises:
        InvalidRunError: a loss is not finite; the step is in `phase` all the same.
    """
    while not rule.done(phase.step_seconds):
        begin = clock()
        loss = step()
        end = clock()
        phase.step_seconds.append(end - begin)
        phase.losses.append(float(loss))
        after_step(phase)
        if not math.isfinite(loss):
            raise InvalidRunError(f"The loss became {loss:g}: the training diverged. {TRY_SMALLER_STEPS}")
