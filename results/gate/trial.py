"""How many rounds an A/B run needs: as few as decide."""

from __future__ import annotations

import math

from results.gate.decision import in_words, judge
from results.gate.findings import Verdict
from results.text import counted

# Fewer fresh rounds would repeat by chance what was seen by chance.
CONFIRMING_ROUNDS = 4
# Two to see a change, and those that repeat it.
SHORTEST_TRIAL = 2 + CONFIRMING_ROUNDS
_MIN_ROUNDS = 5


class Trial:
    """Takes pairs of interleaved rounds until they decide.

    From 5 rounds on, or what `max_rounds` leaves, all rounds are judged after each pair. The trial ends if the rate has
    not changed. After a change is first seen, all further rounds are fresh, and the trial ends when CONFIRMING_ROUNDS
    or more of them repeat the change and the whole 95 % interval lies beyond the threshold, or after `max_rounds`. A
    change that is first seen when fewer than CONFIRMING_ROUNDS are left is not followed up: the trial ends undecided.

    The condition on the interval exists because a drop of half the threshold has many occasions to look like a whole
    one: without it, 1.3 % instead of 0.4 % of such drops are called regressed. A drop of one and a half thresholds then
    needs two rounds more.

    Args:
        threshold: the share by which a rate must drop to matter, such as 0.05.
        max_rounds: pairs in all, with those that repeat a change; at least SHORTEST_TRIAL.

    Attributes:
        log_ratios: ln(candidate / base) of each pair so far.
        decision: from the rounds so far.
        is_over: whether no further round is needed.
    """

    def __init__(self, threshold: float, *, max_rounds: int = 15) -> None:
        self.threshold = threshold
        self.is_over = False
        self.decision = judge([], threshold=threshold, fresh=0)
        self._min_rounds = min(_MIN_ROUNDS, max_rounds - CONFIRMING_ROUNDS)
        self._max_rounds = max_rounds
        self.log_ratios: list[float] = []
        self._suspected_after: int | None = None

    def add(self, base_rate: float, candidate_rate: float) -> None:
        """Takes the valid rates of one pair, in any unit."""
        self.log_ratios.append(math.log(candidate_rate) - math.log(base_rate))
        rounds = len(self.log_ratios)
        fresh = 0 if self._suspected_after is None else rounds - self._suspected_after
        self.decision = judge(
            self.log_ratios, threshold=self.threshold, fresh=fresh if fresh >= CONFIRMING_ROUNDS else 0
        )
        if rounds < self._min_rounds:
            return
        may_follow_up = self._max_rounds - rounds >= CONFIRMING_ROUNDS
        if self._suspected_after is None and self.decision.is_suspect and may_follow_up:
            self._suspected_after = rounds
        self.is_over = rounds >= self._max_rounds or self._is_clear

    @property
    def progress(self) -> str:
        """Returns the change so far and what is missing, in a few words."""
        rounds, change = len(self.log_ratios), self.decision.change
        if change is None:
            return "no repeats yet"
        if self.is_over:
            state = str(self.decision.verdict)
        elif rounds < self._min_rounds:
            state = f"at least {self._min_rounds} are needed"
        else:
            state = "not decided" if self._suspected_after is None else "repeating it"
        return f"{counted(rounds, 'repeat')}: {in_words(change.value)}, {state}"

    @property
    def _is_clear(self) -> bool:
        verdict, change = self.decision.verdict, self.decision.change
        if change is None:
            return False
        regressed = verdict is Verdict.REGRESSED and change.high <= -self.threshold
        improved = verdict is Verdict.IMPROVED and 1 + change.low >= 1 / (1 - self.threshold)
        return verdict is Verdict.UNCHANGED or regressed or improved
