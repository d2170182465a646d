"""Which of many candidates is the fastest, until the time is up: successive halving. Starts no process, no TensorFlow.

Each round runs the remaining candidates, with twice as many steps as the round before, and keeps the faster half. The
last two, and the default, are repeated in alternating order until one is clearly faster or the time is up.
Source: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from benchmarks.config import run_flags
from benchmarks.sweep.grid import Cell
from benchmarks.tune.search_stages import Texts
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
from results.step_statistics import rate, rate_interval

# A candidate that has no result for want of time has a reason that begins so.
NOT_RUN = "not run"
_FINALISTS = 2
_MOST_REPEATS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run.

    If it failed, there are no `step_seconds`; `cut_off`: the time of the search was up, which ended it without steps or
    with fewer than asked for. Images are of all devices, `losses` of the first steps.
    """

    images_per_step: int = 0
    step_seconds: Sequence[float] = ()
    reason: str = ""
    cut_off: bool = False
    losses: Sequence[float | None] = ()

    @property
    def images_per_sec(self) -> float:
        """The rate of a valid run."""
        return rate(self.step_seconds, self.images_per_step)


@dataclasses.dataclass(eq=False)
class Candidate:
    """What may be chosen: the flags in which it differs from the others, its cell, and its results.

    Attributes:
        runs: its valid runs in the rounds.
        repeats: its valid runs after the selection, which only finalists have.
        losses: the first ones of its last run.
        reason: why it was not run, why its first or a later run failed, or why `run` rejects it.
    """

    choice: Texts
    cell: Cell
    runs: list[Outcome] = dataclasses.field(default_factory=list)
    repeats: list[Outcome] = dataclasses.field(default_factory=list)
    losses: Sequence[float | None] = ()
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether it has a rate and never failed."""
        return bool(self.counted) and not self.reason

    @property
    def is_repeated(self) -> bool:
        """Whether there are enough runs after the selection, which are not biased by it."""
        return len(self.repeats) >= ENOUGH_REPEATS

    @property
    def counted(self) -> list[Outcome]:
        """The runs of which the rate is reported."""
        return self.repeats if self.is_repeated else [*self.runs, *self.repeats]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one candidate.

    Attributes:
        arguments: the flags in which it differs from the other candidates.
        images_per_sec: over all devices, see `interval_of`; None if it has no rate.
        steps: measured steps behind the rate, in `runs` runs.
        reason: why it has no rate, why a later run failed, or why it is rejected.
        is_taken: whether it is the choice: the default (the first candidate), unless another is clearly faster.
        is_close: whether it cannot be distinguished from the choice; False for the choice itself.
        is_repeated: whether the rate comes from repeats after the selection, which does not bias it.
        is_default: whether it is the first candidate, which stays without being selected.
    """

    arguments: list[str] = dataclasses.field(default_factory=list)
    images_per_sec: Interval | None = None
    steps: int = 0
    runs: int = 0
    reason: str = ""
    is_taken: bool = False
    is_close: bool = False
    is_repeated: bool = False
    is_default: bool = False


def interval_of(runs: Sequence[Outcome], between: float = LEAST_SPREAD, degrees: int = 0) -> Interval:
    """Returns the geometric mean of the rates of valid runs; its bounds are unknown with too few steps.

    With three runs or more, they come from the spread between runs. With fewer, they come from the spread between
    steps, widened by `between` (see `between_runs`), since the steps of one process do not show how processes differ.
    """
    if len(runs) >= ENOUGH_REPEATS:
        return of_repeats(_rates(runs))
    widths = [rate_interval(run.step_seconds, run.images_per_step).log_half_width for run in runs]
    middle, factor = geometric_mean(_rates(runs)), math.exp(math.hypot(*widths) / len(runs))
    return Interval(middle, middle / factor, middle * factor).widened(between / math.sqrt(len(runs)), degrees)


def _rates(runs: Sequence[Outcome]) -> list[float]:
    return [run.images_per_sec for run in runs]


def runs_needed(candidates: int) -> int:
    """Returns how many runs a search among so many takes, with `ENOUGH_REPEATS` of the last ones; ties take more."""
    runs, remaining = 0, candidates
    while remaining > _FINALISTS:
        runs, remaining = runs + remaining, max(_FINALISTS, math.ceil(remaining / 2))
    return runs + ENOUGH_REPEATS * min(candidates, _FINALISTS + 1)


class Halving:
    """Searches for the fastest candidate. After an interruption, `rows` returns the results so far.

    Args:
        candidates: in the order in which the first round runs them; the first is the default.
        run: runs a candidate with a number of steps; returns None if the time is up.
        first_steps: number of steps in the first round.
    """

    def __init__(
        self, candidates: Sequence[Candidate], run: Callable[[Candidate, int], Outcome | None], first_steps: int
    ) -> None:
        self.candidates = list(candidates)
        self._run, self._first_steps = run, first_steps
        self._rounds = 0

    def search(self) -> None:
        """Runs rounds and then repeats, until one candidate is left or the time is up."""
        remaining, steps = self.candidates, self._first_steps
        while len(remaining) > _FINALISTS:
            if not all(self._try(candidate, steps, candidate.runs) for candidate in remaining):
                return
            self._rounds += 1
            valid = sorted((candidate for candidate in remaining if candidate.is_valid), key=self._rank)
            remaining = valid[: max(_FINALISTS, math.ceil(len(valid) / 2))]
            steps *= 2
        self._repeat(self._finalists(remaining) if self._rounds else remaining, steps)

    def rows(self) -> list[tuple[Candidate, Row]]:
        """Returns the result of each candidate, best first; those that failed come last. One is the choice, if any ran.

        The choice is the default, unless others are clearly faster: then the best of these. If the default has no
        result, it is the best.
        """
        ranked = sorted(self.candidates, key=self._rank)
        valid, default = [candidate for candidate in ranked if candidate.is_valid], self.candidates[0]
        rivals = [each for each in valid if self._is_faster(each, default)] if default.is_valid else valid
        taken = rivals[0] if rivals else default
        return [(candidate, self._row(candidate, taken)) for candidate in ranked]

    def _finalists(self, remaining: Sequence[Candidate]) -> list[Candidate]:
        """Returns the fastest two, and the default, which the winner must beat, unless clearly slower than the best."""
        last = dict.fromkeys([*remaining[:_FINALISTS], self.candidates[0]])
        best = remaining[:1]  # nothing, if all that stayed failed
        return [each for each in last if each.is_valid and not any(self._is_faster(one, each) for one in best)]

    def _try(self, candidate: Candidate, steps: int, runs: list[Outcome]) -> bool:
        """Runs a candidate and appends the result to its `runs`; returns whether there was the time for it."""
        outcome = self._run(candidate, steps)
        if outcome is None or outcome.cut_off and candidate.counted:
            return False  # the few steps of a run that was cut off would hide what the earlier ones show
        if outcome.step_seconds:
            runs.append(outcome)
        else:
            candidate.reason = outcome.reason
        return True

    def _repeat(self, finalists: Sequence[Candidate], steps: int) -> None:
        """Repeats the finalists in alternating order, until one is left with `ENOUGH_REPEATS`, or the time is up."""
        for number in range(_MOST_REPEATS):
            if len(finalists) < _FINALISTS and number >= ENOUGH_REPEATS:
                return
            order = finalists if number % 2 == 0 else finalists[::-1]
            if not all(self._try(candidate, steps, candidate.repeats) for candidate in order):
                return
            finalists = [candidate for candidate in finalists if candidate.is_valid]
            slower = slower_than_best([_rates(candidate.repeats) for candidate in finalists])
            finalists = [candidate for index, candidate in enumerate(finalists) if index not in slower]

    def _rank(self, candidate: Candidate) -> tuple[bool, int, float]:
        """Sorts valid candidates first, then by the number of rounds that ended, then by rate."""
        rounds, runs = min(len(candidate.runs), self._rounds), candidate.counted
        return not candidate.is_valid, -rounds, -geometric_mean(_rates(runs)) if runs else 0.0

    def _interval(self, candidate: Candidate) -> Interval:
        between = between_runs(_rates([*each.runs, *each.repeats]) for each in self.candidates)
        return interval_of(candidate.counted, *between)

    def _row(self, candidate: Candidate, taken: Candidate) -> Row:
        runs = candidate.counted
        is_rival = taken.is_valid and candidate.is_valid and candidate is not taken
        is_apart = is_rival and (self._is_faster(taken, candidate) or self._is_faster(candidate, taken))
        return Row(
            arguments=run_flags.words(candidate.choice),
            images_per_sec=self._interval(candidate) if runs else None,
            steps=sum(len(run.step_seconds) for run in runs),
            runs=len(runs),
            reason=candidate.reason or ("" if runs else NOT_RUN),
            is_taken=candidate is taken and taken.is_valid,
            is_close=is_rival and not is_apart,
            is_repeated=candidate.is_repeated,
            is_default=candidate is self.candidates[0],
        )

    def _is_faster(self, first: Candidate, second: Candidate) -> bool:
        blocks = [_rates(candidate.repeats) for candidate in (first, second)]
        return is_faster(self._interval(first), self._interval(second), blocks)
