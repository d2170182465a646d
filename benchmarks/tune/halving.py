"""Which of many candidates is the fastest, within a time budget: successive halving. Knows no processes, no TensorFlow.

All candidates are run for a few steps; the better half, and whoever is too close to it to tell, for twice as many, and
so on; the last two or three are run in repeats, forth and back, until one is clearly the fastest or time is up.
Source: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013, algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from benchmarks.sweep.estimate import Durations
from results.repeats import ENOUGH_REPEATS, LEAST_SPREAD, Outcome, clearly_slower, interval, rate, spread

T = TypeVar("T", bound=Hashable)

# How the reason begins why a candidate that could be run was not.
NOT_RUN = "not run"
_FINALISTS = 2
_MOST_REPEATS = 10
# A run may take so many times as long as expected, and so many seconds at least, before it is ended.
_PATIENCE = 5.0
_LEAST_LIMIT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing(Generic[T]):
    """Where a candidate stands.

    Attributes:
        candidate: itself.
        rate: images per second; None if it has none.
        low: 95 % interval of that, see `outcomes.interval`.
        high: likewise; None where there are too few steps.
        steps: that the rate rests on, over `runs` runs.
        runs: likewise.
        reason: why it has no rate, or has failed later.
        is_close: whether it cannot be told from the best; of the best itself it is not said.
        is_repeated: whether its rate is that of repeats, and not of the runs by which it was chosen among many.
    """

    candidate: T
    rate: float | None
    low: float | None
    high: float | None
    steps: int
    runs: int
    reason: str
    is_close: bool = False
    is_repeated: bool = True


@dataclasses.dataclass(frozen=True)
class Budget:
    """Time that a search may take; nothing is begun that would not end within it.

    Attributes:
        seconds: of everything.
        first_round_seconds: until then candidates may be run that have never been run; at least `seconds`.
        spare_seconds: says how much of the longer one is not to be used; it is asked before every run.
        clock: seconds, monotonic.
    """

    seconds: float
    first_round_seconds: float = 0.0
    spare_seconds: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.monotonic


class Search(Generic[T]):
    """Looks for the fastest of some candidates. What was found until an interruption can be asked for, too.

    Args:
        candidates: in the order in which the first round runs them.
        run: runs a candidate for so many steps; the third argument is how many seconds it may take.
        durations: how long runs take; may know of earlier ones.
        budget: begins now.
        first_steps: of the first round.
    """

    def __init__(
        self,
        candidates: Sequence[T],
        run: Callable[[T, int, float], Outcome],
        durations: Durations[T],
        budget: Budget,
        first_steps: int,
    ) -> None:
        self._candidates = list(candidates)
        self._run, self._durations, self._budget = run, durations, budget
        self._begun = budget.clock()
        self._first_steps = first_steps
        self._outcomes: dict[T, list[Outcome]] = {candidate: [] for candidate in candidates}
        self._repeats: dict[T, list[Outcome]] = {candidate: [] for candidate in candidates}
        self._reasons: dict[T, str] = {}
        self._slower: set[T] = set()
        self._survived = dict.fromkeys(self._candidates, 0)

    def search(self) -> None:
        """Runs rounds and then repeats, until one is left or time is up."""
        alive, steps = self._candidates, self._first_steps
        while len(alive) > _FINALISTS:
            for candidate in alive:
                self._take(candidate, steps)
            alive = self._kept(alive, steps)
            if self._cost(alive, 2 * steps) + self._cost(alive[:_FINALISTS], 2 * steps) > self._left():
                break
            steps *= 2
        self._repeat(alive, steps)

    def standings(self) -> list[Standing[T]]:
        """Returns all candidates, best first; those that failed come last."""
        found = [self._standing(candidate) for candidate in sorted(self._candidates, key=self._rank)]
        return [dataclasses.replace(standing, is_close=self._is_close(standing, found[0])) for standing in found]

    def _left(self) -> float:
        """Returns the seconds that are left, for everything or, as long as someone was never tried, for trying."""
        tried = all(self._outcomes[one] or one in self._reasons for one in self._candidates)
        most = max(self._budget.seconds, self._budget.first_round_seconds)
        allowed = min(self._budget.seconds if tried else most, most - self._budget.spare_seconds())
        return self._begun + allowed - self._budget.clock()

    def _cost(self, candidates: Sequence[T], steps: int) -> float:
        return math.fsum(self._durations.expected(candidate, steps) for candidate in candidates)

    def _take(self, candidate: T, steps: int) -> Outcome | None:
        """Runs a candidate, if there is time; returns what came of it, if that is valid."""
        expected, left = self._durations.expected(candidate, steps), self._left()
        if expected > left:
            if not self._outcomes[candidate]:
                late = f"it takes about {expected:.0f} s, and {max(left, 0):.0f} s were left"
                self._reasons.setdefault(candidate, f"{NOT_RUN}: {late}")
            return None
        limit = max(_LEAST_LIMIT_SECONDS, _PATIENCE * expected) if expected else left  # of the first nothing is known
        outcome = self._run(candidate, steps, min(left, limit))
        self._durations.observe(candidate, outcome)
        if outcome.step_seconds:
            self._outcomes[candidate].append(outcome)
            return outcome
        if not (outcome.cut_off and self._outcomes[candidate]):
            self._reasons[candidate] = outcome.reason
        return None

    def _kept(self, alive: Sequence[T], steps: int) -> list[T]:
        """Returns who goes on, best first: the better half, and as many of the next as are close and can be afforded.

        At least a quarter goes, or equal candidates would be run for ever.
        """
        ranked = [candidate for candidate in sorted(alive, key=self._rank) if self._is_valid(candidate)]
        half = max(_FINALISTS, math.ceil(len(ranked) / 2))
        kept = ranked[:half]
        for candidate in ranked[half : 3 * len(ranked) // 4]:
            reaches = self._standing(candidate).high or math.inf
            cost = self._cost([*kept, candidate], 2 * steps) + ENOUGH_REPEATS * self._cost(kept[:_FINALISTS], 2 * steps)
            if reaches >= (self._standing(kept[half - 1]).low or 0.0) and cost <= self._left():
                kept.append(candidate)
        for candidate in kept:
            self._survived[candidate] += 1
        return kept

    def _repeat(self, alive: Sequence[T], steps: int) -> None:
        """Runs the last ones again and again, forth and back; who is clearly slower is left out from then on."""
        finalists = list(alive)
        while steps > self._first_steps and ENOUGH_REPEATS * self._cost(finalists, steps) > self._left():
            steps //= 2
        while len(finalists) > _FINALISTS and ENOUGH_REPEATS * self._cost(finalists, steps) > self._left():
            finalists.pop()
        for number in range(_MOST_REPEATS):
            # Whoever is left alone has won; who was alone from the beginning is repeated for the sake of the interval.
            is_decided = len(finalists) == 1 and (len(self._candidates) > 1 or number >= ENOUGH_REPEATS)
            if is_decided or not self._repeat_once(finalists, steps, number):
                return
            finalists = [one for one in finalists if self._is_valid(one)]
            slower = clearly_slower([self._repeats[one] for one in finalists])
            self._slower.update(finalists[index] for index in slower)
            finalists = [one for one in finalists if one not in self._slower]
            for one in finalists:
                self._survived[one] += 1

    def _repeat_once(self, finalists: Sequence[T], steps: int, number: int) -> bool:
        """Returns whether there was time for all of them; if there is not, and each has been run, none is."""
        if all(self._outcomes[one] for one in finalists) and self._cost(finalists, steps) > self._left():
            return False
        taken = {one: self._take(one, steps) for one in (finalists if number % 2 == 0 else finalists[::-1])}
        if any(taken[one] is None and self._is_valid(one) for one in finalists):
            return False
        for one, outcome in taken.items():
            self._repeats[one] += [outcome] if outcome else []
        return any(taken.values())

    def _is_valid(self, candidate: T) -> bool:
        return bool(self._outcomes[candidate]) and candidate not in self._reasons

    def _counted(self, candidate: T) -> list[Outcome]:
        """Returns the runs that a rate rests on: the repeats if they suffice, by which only the last are told apart."""
        return self._repeats[candidate] if self._is_repeated(candidate) else self._outcomes[candidate]

    def _is_repeated(self, candidate: T) -> bool:
        return len(self._repeats[candidate]) >= ENOUGH_REPEATS

    def _rank(self, candidate: T) -> tuple[bool, int, float]:
        """Sorts: first the valid ones, of these first who came farthest, of these first the fastest."""
        runs = self._counted(candidate)
        return not self._is_valid(candidate), -self._survived[candidate], -rate(runs) if runs else 0.0

    def _standing(self, candidate: T) -> Standing[T]:
        runs = self._counted(candidate)
        between_runs = max(LEAST_SPREAD, spread(self._outcomes.values()) or 0.0)
        low, high = interval(runs, between_runs) if runs else (None, None)
        return Standing(
            candidate=candidate,
            rate=rate(runs) if runs else None,
            low=low,
            high=high,
            steps=sum(len(run.step_seconds) for run in runs),
            runs=len(runs),
            reason=self._reasons.get(candidate, "" if runs else NOT_RUN),
            is_repeated=self._is_repeated(candidate) or len(self._candidates) == 1,
        )

    def _is_close(self, standing: Standing[T], best: Standing[T]) -> bool:
        if standing.candidate == best.candidate or standing.reason or standing.candidate in self._slower:
            return False
        if self._is_repeated(best.candidate) and self._is_repeated(standing.candidate):
            return True  # or the repeats would have shown it
        if spread(self._outcomes.values()) is None:
            return True  # nothing was run twice, so nobody knows how much runs differ
        return (standing.high or math.inf) >= (best.low or 0.0)
