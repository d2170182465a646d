"""Which of many candidates is the fastest, within a time limit: successive halving. Starts no process, no TensorFlow.

Each round runs the remaining candidates, with twice as many steps as the round before, and keeps the faster half. The
last two, and the default, are repeated in alternating order until one is clearly faster or the time is up. Where two
runs can interleave their steps, the fastest and its rival are repeated so, which cancels the load of other programs.
Source: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
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

# A candidate that could run but was not run has a reason that begins so.
NOT_RUN = "not run"
_FINALISTS = 2
_MOST_REPEATS = 10
# A run is ended after this many times its expected duration, but not before this many seconds.
_PATIENCE = 5.0
_LEAST_LIMIT_SECONDS = 60.0
# What is slower than this share of the default after one run is not repeated against it.
_HOPELESS = 0.7
_MARGIN = 1.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run, which took `seconds` from the start of the process to its end.

    If it failed, there are no `step_seconds`; `cut_off`: only because its time was up. Images are of all devices,
    `losses` of the first steps.
    """

    seconds: float
    images_per_step: int = 0
    step_seconds: Sequence[float] = ()
    peak_bytes: float = 0.0
    reason: str = ""
    cut_off: bool = False
    losses: Sequence[float | None] = ()

    @property
    def images_per_sec(self) -> float:
        """The rate of a valid run."""
        return rate(self.step_seconds, self.images_per_step)


@dataclasses.dataclass(eq=False)
class Candidate:
    """What may be chosen: the flags in which it differs from the others, its cell, and what came of it.

    Attributes:
        runs: its valid runs, in their order.
        reason: why it was not run, why its first or a later run failed, or why `run` rejects it.
    """

    choice: Texts
    cell: Cell
    runs: list[Outcome] = dataclasses.field(default_factory=list)
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether it has a rate and never failed."""
        return bool(self.runs) and not self.reason


class Durations:
    """Predicts the duration of runs from earlier ones, also from those of other stages.

    Args:
        guess: rough seconds of a run with that many steps, for candidates that have not been run; it is scaled by its
            error for other candidates.
    """

    def __init__(self, guess: Callable[[Candidate, int], float]) -> None:
        self._guess = guess
        self._corrections: list[float] = []
        self._measured: dict[tuple[str, ...], tuple[float, float]] = {}

    def observe(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learns from a run; a failed one is ignored."""
        if not outcome.step_seconds:
            return
        steps, measured = len(outcome.step_seconds), math.fsum(outcome.step_seconds)
        self._corrections.append(outcome.seconds / self._guess(candidate, steps))
        words = candidate.cell.arguments
        around = max(outcome.seconds - measured, self._measured.get(words, (0.0, 0.0))[0])
        self._measured[words] = (around, measured / steps)

    def expected(self, candidate: Candidate, steps: int) -> float:
        """Returns the seconds of a run, with a margin; 0 before the first run, so that one is started."""
        if candidate.cell.arguments in self._measured:
            around, step_seconds = self._measured[candidate.cell.arguments]
            return _MARGIN * (around + steps * step_seconds)
        if not self._corrections:
            return 0.0
        return _MARGIN * statistics.median(self._corrections) * self._guess(candidate, steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one candidate.

    Attributes:
        arguments: the flags in which it differs from the other candidates.
        images_per_sec: over all devices; None if it has no rate.
        low: of the 95 % interval, up to `high`, see `interval_of`; both None if there are too few steps.
        steps: measured steps behind the rate, in `runs` runs.
        reason: why it has no rate, why a later run failed, or why it is rejected.
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
        """Images per second, if it has a rate."""
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
    middle, factor = geometric_mean(_rates(runs)), math.exp(math.hypot(*widths) / len(runs))
    return Interval(middle, middle / factor, middle * factor).widened(between / math.sqrt(len(runs)))


def _rates(runs: Sequence[Outcome]) -> list[float]:
    return [run.images_per_sec for run in runs]


def runs_needed(candidates: int) -> int:
    """Returns how many runs a search among so many needs at most until it is finished."""
    runs, remaining = 0, candidates
    while remaining > _FINALISTS:
        runs, remaining = runs + remaining, max(_FINALISTS, math.ceil(remaining / 2))
    return runs + ENOUGH_REPEATS * min(candidates, _FINALISTS + 1)


class Halving:
    """Searches for the fastest candidate. After an interruption, `rows` returns the results so far.

    After `search`, `is_finished` is whether it had the time for all rounds, and to repeat the last ones until one was
    clearly slower or each had `ENOUGH_REPEATS`.

    Args:
        candidates: in the order in which the first round runs them; the first is the default.
        run: runs a candidate; its arguments are the candidate, the number of steps and a limit in seconds.
        durations: predicts how long a run takes.
        seconds_left: returns how long a run may take now; True asks for a candidate that was never run.
        first_steps: number of steps in the first round.
        run_pair: runs two candidates at once, with interleaved steps, if they can be (else it returns None); its
            arguments are both, the number of steps and a limit in seconds.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        run: Callable[[Candidate, int, float], Outcome],
        durations: Durations,
        seconds_left: Callable[[bool], float],
        first_steps: int,
        run_pair: Callable[[Candidate, Candidate, int, float], tuple[Outcome, Outcome] | None] = lambda *_: None,
    ) -> None:
        self.candidates = list(candidates)
        self._run, self._durations, self._seconds_left = run, durations, seconds_left
        self._first_steps, self._run_pair = first_steps, run_pair
        self._rounds = 0
        self.is_finished = False

    def search(self) -> None:
        """Runs rounds and then repeats, until one candidate is left or the time is up."""
        remaining, steps, had_time = self.candidates, self._first_steps, True
        while len(remaining) > _FINALISTS:
            self._rounds += 1
            had_time = all([self._try(candidate, steps) for candidate in remaining]) and had_time
            valid = sorted((candidate for candidate in remaining if candidate.is_valid), key=self._rank)
            remaining = valid[: max(_FINALISTS, math.ceil(len(valid) / 2))]
            next_round = remaining if len(remaining) > _FINALISTS else []
            if not self._is_time_for([*next_round, *ENOUGH_REPEATS * self._finalists(remaining)], 2 * steps):
                had_time = had_time and not next_round
                break
            steps *= 2
        self.is_finished = self._repeat(self._finalists(remaining), steps) and had_time

    def rows(self) -> list[tuple[Candidate, Row]]:
        """Returns the result of each candidate, best first; those that failed come last. One is the choice, if any ran.

        The choice is the default, unless others are clearly faster: then the best of these. If the default has no
        result, it is the best.
        """
        ranked = sorted(self.candidates, key=self._rank)
        valid, default = [candidate for candidate in ranked if candidate.is_valid], self.candidates[0]
        rivals = [each for each in valid if self._is_faster(each, default)] if default.is_valid else valid
        taken = rivals[0] if rivals else default
        rows = []
        for candidate in ranked:
            is_rival = taken.is_valid and candidate.is_valid and candidate is not taken
            is_apart = is_rival and (self._is_faster(taken, candidate) or self._is_faster(candidate, taken))
            is_taken, is_close = candidate is taken and taken.is_valid, is_rival and not is_apart
            rows.append((candidate, dataclasses.replace(self._row(candidate), is_taken=is_taken, is_close=is_close)))
        return rows

    def _finalists(self, remaining: Sequence[Candidate]) -> list[Candidate]:
        """Returns the fastest two, and the default unless it is clearly slower, since the winner must beat it."""
        default, best = self.candidates[0], list(remaining[:_FINALISTS])
        if best and best[0] is default and default.is_valid:
            least = _HOPELESS * geometric_mean(_rates(default.runs))
            return [each for each in best if not each.is_valid or geometric_mean(_rates(each.runs)) >= least]
        if default in best or not default.is_valid or not best:
            return best
        return best if self._is_faster(best[0], default) else [*best, default]

    def _is_time_for(self, candidates: Sequence[Candidate], steps: int) -> bool:
        seconds = math.fsum(self._durations.expected(candidate, steps) for candidate in candidates)
        return seconds <= self._seconds_left(False)

    def _try(self, candidate: Candidate, steps: int) -> bool:
        """Runs a candidate if there is time; returns whether there was enough."""
        is_first = not candidate.runs
        expected, left = self._durations.expected(candidate, steps), self._seconds_left(is_first)
        if expected > left:
            if is_first and not candidate.reason:
                candidate.reason = f"{NOT_RUN}: it takes about {expected:.0f} s, and {max(left, 0):.0f} s were left"
            return False
        limit = max(_LEAST_LIMIT_SECONDS, _PATIENCE * expected) if expected else left  # no duration is known at first
        outcome = self._run(candidate, steps, min(left, limit))
        self._durations.observe(candidate, outcome)
        if outcome.step_seconds:
            candidate.runs.append(outcome)
        elif is_first or not outcome.cut_off:
            candidate.reason = outcome.reason
        return not (outcome.cut_off and left <= limit)

    def _try_both(self, first: Candidate, second: Candidate, steps: int) -> bool:
        """Runs two candidates with interleaved steps; returns whether both have a result."""
        expected = sum(self._durations.expected(candidate, steps) for candidate in (first, second))
        left = self._seconds_left(False)
        if not expected or expected > left:
            return False
        both = self._run_pair(first, second, steps, min(left, max(_LEAST_LIMIT_SECONDS, _PATIENCE * expected)))
        if both is None:
            return False
        if not all(outcome.step_seconds for outcome in both):
            self._run_pair = lambda *_: None  # a failure may be that of being two
            return False
        for candidate, outcome in zip((first, second), both, strict=True):
            self._durations.observe(candidate, outcome)
            candidate.runs.append(outcome)
        return True

    def _repeat(self, finalists: Sequence[Candidate], steps: int) -> bool:
        """Repeats the finalists in alternating order, until one is clearly slower or the time is up.

        Returns whether one is clearly slower, or each has `ENOUGH_REPEATS`.
        """
        for number in range(_MOST_REPEATS):
            # A single finalist has won; only if it was the single candidate is it repeated, for its interval.
            if len(finalists) == 1 and (len(self.candidates) > 1 or number >= ENOUGH_REPEATS):
                break
            order = finalists if number % 2 == 0 else finalists[::-1]
            has_time = not all(candidate.runs for candidate in order) or self._is_time_for(order, steps)
            if has_time and (len(order) != _FINALISTS or not self._try_both(order[0], order[1], steps)):
                has_time = all([self._try(candidate, steps) for candidate in order])
            if not has_time:
                return number >= ENOUGH_REPEATS
            finalists = [candidate for candidate in finalists if candidate.is_valid]
            if not finalists or any(len(self._repeats(candidate)) <= number for candidate in finalists):
                break
            slower = slower_than_best([_rates(self._repeats(candidate)) for candidate in finalists])
            finalists = [candidate for index, candidate in enumerate(finalists) if index not in slower]
        return True

    def _repeats(self, candidate: Candidate) -> list[Outcome]:
        """Returns the runs after the selection, which only finalists have."""
        return candidate.runs[self._rounds :]

    def _is_repeated(self, candidate: Candidate) -> bool:
        return len(self._repeats(candidate)) >= ENOUGH_REPEATS

    def _counted(self, candidate: Candidate) -> list[Outcome]:
        return self._repeats(candidate) if self._is_repeated(candidate) else candidate.runs

    def _rank(self, candidate: Candidate) -> tuple[bool, int, float]:
        """Sorts valid candidates first, then by the number of runs, then by rate."""
        runs = self._counted(candidate)
        return not candidate.is_valid, -len(candidate.runs), -geometric_mean(_rates(runs)) if runs else 0.0

    def _interval(self, candidate: Candidate) -> Interval:
        between = between_runs(_rates(each.runs) for each in self.candidates)
        return interval_of(self._counted(candidate), between)

    def _row(self, candidate: Candidate) -> Row:
        runs = self._counted(candidate)
        interval = self._interval(candidate) if runs else None
        low, high = interval.bounds if interval else (None, None)
        return Row(
            arguments=run_flags.words(candidate.choice),
            images_per_sec=interval.value if interval else None,
            low=low,
            high=high,
            steps=sum(len(run.step_seconds) for run in runs),
            runs=len(runs),
            reason=candidate.reason or ("" if runs else NOT_RUN),
            is_repeated=self._is_repeated(candidate) or candidate is self.candidates[0],
        )

    def _is_faster(self, first: Candidate, second: Candidate) -> bool:
        blocks = [_rates(self._repeats(candidate)) for candidate in (first, second)]
        return is_faster(self._interval(first), self._interval(second), blocks)
