"""What came of runs that are compared: their rates, how sure these are, and how long such runs take. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from results.statistics import rate_interval
from results.summary import repeats_interval

T = TypeVar("T", bound=Hashable)

# From so many repeats on, the spread between them is known.
ENOUGH_REPEATS = 3
# Processes that do the same are taken to differ by this share (standard deviation), or by more if that is seen.
LEAST_SPREAD = 0.02
# The spread is looked at after every repeat, so each look must be surer than 95 %.
_CONFIDENCE = 0.99
_MARGIN = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one run.

    Attributes:
        seconds: from the start of the process to its end.
        images_per_step: over all devices.
        step_seconds: the measured steps; none if the run failed.
        reason: in that case, why.
        cut_off: whether it failed for want of time alone.
    """

    seconds: float
    images_per_step: int = 0
    step_seconds: Sequence[float] = ()
    reason: str = ""
    cut_off: bool = False


def rate(runs: Sequence[Outcome]) -> float:
    """Returns all images of at least one valid run over all their measured time, in images per second."""
    images = sum(run.images_per_step * len(run.step_seconds) for run in runs)
    return images / math.fsum(seconds for run in runs for seconds in run.step_seconds)


def spread(candidates: Iterable[Sequence[Outcome]]) -> float | None:
    """Returns by which share runs of the same candidate differ (standard deviation); None if none was run twice."""
    logs = [[math.log(rate([run])) for run in runs] for runs in candidates if len(runs) > 1]
    degrees = sum(len(each) - 1 for each in logs)
    squares = math.fsum(statistics.variance(each) * (len(each) - 1) for each in logs)
    return math.sqrt(squares / degrees) if degrees else None


def interval(runs: Sequence[Outcome], between_runs: float = LEAST_SPREAD) -> tuple[float | None, float | None]:
    """Returns a 95 % interval of the rate of valid runs: (None, None) where there are too few steps.

    Of three runs and more, it comes from the spread between them. Of fewer, from that between steps, widened by what
    processes differ by (`between_runs`, see `spread`), since steps of one process do not show that.
    """
    if len(runs) >= ENOUGH_REPEATS:
        return repeats_interval([rate([run]) for run in runs])
    steps = [seconds for run in runs for seconds in run.step_seconds]
    low, high = rate_interval(steps, runs[0].images_per_step)
    if low is None or high is None:
        return None, None
    middle, widening = rate(runs), 2 * between_runs / math.sqrt(len(runs))
    return (
        middle * math.exp(-math.hypot(math.log(middle / low), widening)),
        middle * math.exp(math.hypot(math.log(high / middle), widening)),
    )


def clearly_slower(repeats: Sequence[Sequence[Outcome]]) -> list[int]:
    """Returns which candidates are slower than the fastest of them, by a paired t test at 99 %.

    The repeats are blocks in which all candidates run one after the other, so a disturbance of a whole block cancels.

    Args:
        repeats: the runs of each candidate, in the order of the blocks; a block that only some have is ignored.

    Returns:
        Indices of candidates; none if there are fewer than three repeats.
    """
    count = min(map(len, repeats), default=0)
    if len(repeats) < 2 or count < ENOUGH_REPEATS:
        return []
    rates = [[rate([run]) for run in runs[:count]] for runs in repeats]
    best = max(rates, key=statistics.geometric_mean)
    ratios = [[high / low for high, low in zip(best, each, strict=True)] for each in rates]
    return [number for number, each in enumerate(ratios) if repeats_interval(each, _CONFIDENCE)[0] > 1]


class Durations(Generic[T]):
    """How long a run will take, from those so far.

    Args:
        guess: roughly how many seconds a run of so many steps takes, for candidates that have not been run; it is
            corrected by how wrong it was for others.
    """

    def __init__(self, guess: Callable[[T, int], float]) -> None:
        self._guess = guess
        self._corrections: list[float] = []
        self._seen: dict[T, tuple[float, float]] = {}

    def observe(self, candidate: T, outcome: Outcome) -> None:
        """Learns from a run; a failed one teaches nothing."""
        if not outcome.step_seconds:
            return
        steps, measured = len(outcome.step_seconds), math.fsum(outcome.step_seconds)
        self._corrections.append(outcome.seconds / self._guess(candidate, steps))
        around = max(outcome.seconds - measured, self._seen.get(candidate, (0.0, 0.0))[0])
        self._seen[candidate] = (around, measured / steps)

    def expected(self, candidate: T, steps: int) -> float:
        """Returns the seconds of a run, with a margin; 0 as long as nothing at all is known: something must be run."""
        if candidate in self._seen:
            around, step_seconds = self._seen[candidate]
            return _MARGIN * (around + steps * step_seconds)
        if not self._corrections:
            return 0.0
        return _MARGIN * statistics.median(self._corrections) * self._guess(candidate, steps)
