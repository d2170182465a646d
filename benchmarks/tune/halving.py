"""Which of many candidates is the fastest, within a time limit: successive halving. Knows no processes, no TensorFlow.

Each round runs the remaining candidates, with twice as many steps as the round before, and keeps the faster half. The
last two, and the default, are repeated in alternating order until one is clearly faster or the time is up. Where two
runs can interleave their steps, the fastest and its rival are repeated so, which cancels the load of other programs.
Source: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from benchmarks.sweep.estimate import Durations, Outcome
from results.intervals import (
    ENOUGH_REPEATS,
    LEAST_SPREAD,
    Interval,
    between_runs,
    geometric_mean,
    is_faster,
    of_repeats,
    slower_than_best,
)
from results.step_statistics import rate_interval

T = TypeVar("T", bound=Hashable)

# A candidate that could run but was not run has a reason that begins so.
NOT_RUN = "not run"
_FINALISTS = 2
_MOST_REPEATS = 10
# A run is ended after this many times its expected duration, but not before this many seconds.
_PATIENCE = 5.0
_LEAST_LIMIT_SECONDS = 60.0
# What is slower than this share of the default after one run is not repeated against it.
_HOPELESS = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one candidate.

    Attributes:
        arguments: the flags in which it differs from the other candidates.
        images_per_sec: over all devices; None if it has no rate.
        low: of the 95 % interval, up to `high`, see `interval_of`; both None if there are too few steps.
        steps: measured steps behind the rate, in `runs` runs.
        reason: why it has no rate, or why a later run failed.
        is_taken: whether it is the choice: the default (the first candidate), unless another is clearly faster.
        is_close: whether it cannot be distinguished from the choice; False for the choice itself.
        is_repeated: whether the rate is free of selection bias: it comes from repeats after the selection, or it is
            the default's, which stays without being selected.
    """

    arguments: list[str] = dataclasses.field(default_factory=list)
    images_per_sec: float | None = None
    low: float | None = None
    high: float | None = None
    steps: int = 0
    runs: int = 0
    reason: str = ""
    is_taken: bool = False
    is_close: bool = False
    is_repeated: bool = True

    @property
    def measured(self) -> Interval:
        """Returns images per second, if it has a rate."""
        assert self.images_per_sec is not None, "it has a rate"
        return Interval.of(self.images_per_sec, self.low, self.high)


def interval_of(runs: Sequence[Outcome], between: float = LEAST_SPREAD) -> Interval:
    """Returns the geometric mean of the rates of valid runs; its bounds are unknown with too few steps.

    With three runs or more, they come from the spread between runs. With fewer, they come from the spread between
    steps, widened by `between` (see `between_runs`), since the steps of one process do not show how processes differ.
    """
    if len(runs) >= ENOUGH_REPEATS:
        return of_repeats(_rates(runs))
    widths = [rate_interval(run.step_seconds, run.images_per_step).log_half_width for run in runs]
    middle, factor = _rate(runs), math.exp(math.hypot(*widths) / len(runs))
    return Interval(middle, middle / factor, middle * factor).widened(between / math.sqrt(len(runs)))


def _rates(runs: Sequence[Outcome]) -> list[float]:
    return [run.images_per_sec for run in runs]


def _rate(runs: Sequence[Outcome]) -> float:
    return geometric_mean(_rates(runs))


class Search(Generic[T]):
    """Searches for the fastest candidate. After an interruption, `rows` returns the results so far.

    Args:
        candidates: in the order in which the first round runs them.
        run: runs a candidate; its arguments are the candidate, the number of steps and a limit in seconds.
        durations: predicts how long a run takes.
        seconds_left: returns how long a run may take now; True asks for a candidate that was never run.
        first_steps: number of steps in the first round.
        run_pair: runs two candidates at once, with interleaved steps, if they can be (else it returns None); its
            arguments are both, the number of steps and a limit in seconds.
    """

    def __init__(
        self,
        candidates: Sequence[T],
        run: Callable[[T, int, float], Outcome],
        durations: Durations[T],
        seconds_left: Callable[[bool], float],
        first_steps: int,
        run_pair: Callable[[T, T, int, float], tuple[Outcome, Outcome] | None] = lambda *_: None,
    ) -> None:
        self._candidates = list(candidates)
        self._run, self._durations, self._seconds_left = run, durations, seconds_left
        self._first_steps, self._run_pair = first_steps, run_pair
        self._outcomes: dict[T, list[Outcome]] = {candidate: [] for candidate in candidates}
        self._rounds = 0
        self._reasons: dict[T, str] = {}

    def search(self) -> None:
        """Runs rounds and then repeats, until one candidate is left or the time is up."""
        remaining, steps = self._candidates, self._first_steps
        while len(remaining) > _FINALISTS:
            self._rounds += 1
            for candidate in remaining:
                self._try(candidate, steps)
            valid = sorted(filter(self._is_valid, remaining), key=self._rank)
            remaining = valid[: max(_FINALISTS, math.ceil(len(valid) / 2))]
            next_round = remaining if len(remaining) > _FINALISTS else []
            if not self._is_time_for([*next_round, *ENOUGH_REPEATS * self._finalists(remaining)], 2 * steps):
                break
            steps *= 2
        self._repeat(self._finalists(remaining), steps)

    def rows(self) -> dict[T, Row]:
        """Returns the result of each candidate, best first; those that failed come last. One is the choice, if any ran.

        The choice is the default, which is the first candidate, unless others are clearly faster: then the best of
        these. If the default has no result, it is the best.
        """
        ranked = sorted(self._candidates, key=self._rank)
        found = {candidate: self._row(candidate) for candidate in ranked}
        valid = [candidate for candidate in ranked if self._is_valid(candidate)]
        if not valid:
            return found
        default = self._candidates[0]
        rivals = [one for one in valid if self._is_faster(one, default, found)] if default in valid else valid
        taken = rivals[0] if rivals else default
        for candidate in valid:
            differs = self._is_faster(taken, candidate, found) or self._is_faster(candidate, taken, found)
            found[candidate] = dataclasses.replace(
                found[candidate], is_taken=candidate == taken, is_close=candidate != taken and not differs
            )
        return found

    def _finalists(self, remaining: Sequence[T]) -> list[T]:
        """Returns the fastest two, and the default unless it is clearly slower, since the winner must beat it."""
        default, best = self._candidates[0], list(remaining[:_FINALISTS])
        if best and best[0] == default and self._is_valid(default):
            least = _HOPELESS * _rate(self._outcomes[default])
            return [one for one in best if not self._is_valid(one) or _rate(self._outcomes[one]) >= least]
        if default in best or not self._is_valid(default) or not best:
            return best
        found = {one: self._row(one) for one in (best[0], default)}
        return best if self._is_faster(best[0], default, found) else [*best, default]

    def _is_time_for(self, candidates: Sequence[T], steps: int) -> bool:
        seconds = math.fsum(self._durations.expected(candidate, steps) for candidate in candidates)
        return seconds <= self._seconds_left(False)

    def _try(self, candidate: T, steps: int) -> None:
        """Runs a candidate if there is time."""
        is_first = not self._outcomes[candidate]
        expected, left = self._durations.expected(candidate, steps), self._seconds_left(is_first)
        if expected > left:
            if is_first:
                late = f"it takes about {expected:.0f} s, and {max(left, 0):.0f} s were left"
                self._reasons.setdefault(candidate, f"{NOT_RUN}: {late}")
            return
        limit = max(_LEAST_LIMIT_SECONDS, _PATIENCE * expected) if expected else left  # no duration is known at first
        outcome = self._run(candidate, steps, min(left, limit))
        self._durations.observe(candidate, outcome)
        if outcome.step_seconds:
            self._outcomes[candidate].append(outcome)
        elif is_first or not outcome.cut_off:
            self._reasons[candidate] = outcome.reason

    def _try_both(self, one: T, other: T, steps: int) -> bool:
        """Runs two candidates with interleaved steps; returns whether both have a result."""
        expected, left = sum(self._durations.expected(each, steps) for each in (one, other)), self._seconds_left(False)
        if not expected or expected > left:
            return False
        both = self._run_pair(one, other, steps, min(left, max(_LEAST_LIMIT_SECONDS, _PATIENCE * expected)))
        if both is None:
            return False
        if not all(outcome.step_seconds for outcome in both):
            self._run_pair = lambda *_: None  # a failure may be that of being two
            return False
        for each, outcome in zip((one, other), both, strict=True):
            self._durations.observe(each, outcome)
            self._outcomes[each].append(outcome)
        return True

    def _repeat(self, finalists: Sequence[T], steps: int) -> None:
        """Repeats the finalists in alternating order, until one is clearly slower or the time is up."""
        for number in range(_MOST_REPEATS):
            # A single finalist has won; only if it was the single candidate is it repeated, for its interval.
            if len(finalists) == 1 and (len(self._candidates) > 1 or number >= ENOUGH_REPEATS):
                return
            if all(self._outcomes[one] for one in finalists) and not self._is_time_for(finalists, steps):
                return
            order = finalists if number % 2 == 0 else finalists[::-1]
            if len(order) != _FINALISTS or not self._try_both(order[0], order[1], steps):
                for one in order:
                    self._try(one, steps)
            finalists = [one for one in finalists if self._is_valid(one)]
            if not finalists or any(len(self._repeats(one)) <= number for one in finalists):
                return
            slower = slower_than_best([_rates(self._repeats(one)) for one in finalists])
            finalists = [one for index, one in enumerate(finalists) if index not in slower]

    def _is_valid(self, candidate: T) -> bool:
        return bool(self._outcomes[candidate]) and candidate not in self._reasons

    def _repeats(self, candidate: T) -> list[Outcome]:
        """Returns the runs after the selection, which only finalists have."""
        return self._outcomes[candidate][self._rounds :]

    def _is_repeated(self, candidate: T) -> bool:
        return len(self._repeats(candidate)) >= ENOUGH_REPEATS

    def _counted(self, candidate: T) -> list[Outcome]:
        """Returns the runs behind a rate: the repeats if there are enough, else all runs."""
        return self._repeats(candidate) if self._is_repeated(candidate) else self._outcomes[candidate]

    def _rank(self, candidate: T) -> tuple[bool, int, float]:
        """Sorts valid candidates first, then by the number of runs, then by rate."""
        runs = self._counted(candidate)
        return not self._is_valid(candidate), -len(self._outcomes[candidate]), -_rate(runs) if runs else 0.0

    def _row(self, candidate: T) -> Row:
        runs = self._counted(candidate)
        found = interval_of(runs, between_runs(map(_rates, self._outcomes.values()))) if runs else None
        low, high = found.bounds if found else (None, None)
        return Row(
            images_per_sec=found.value if found else None,
            low=low,
            high=high,
            steps=sum(len(run.step_seconds) for run in runs),
            runs=len(runs),
            reason=self._reasons.get(candidate, "" if runs else NOT_RUN),
            is_repeated=self._is_repeated(candidate) or candidate == self._candidates[0],
        )

    def _is_faster(self, one: T, other: T, found: Mapping[T, Row]) -> bool:
        """Returns whether a valid candidate is clearly faster than another."""
        blocks = [_rates(self._repeats(each)) for each in (one, other)]
        return is_faster(found[one].measured, found[other].measured, blocks)
