"""How many rounds an A/B run needs: as few as decide."""

from __future__ import annotations

import math

from results.gate.decision import Decision, in_words, judge
from results.gate.findings import Verdict

# Fewer fresh rounds would repeat by chance what was seen by chance.
CONFIRMING_ROUNDS = 4


class Trial:
    """Takes pairs of interleaved rounds until they decide.

    From `min_rounds` on, each pair has all rounds judged. They end the trial if the rate has not changed. Once it seems
    to have, all further rounds are fresh, and end it when CONFIRMING_ROUNDS or more of them repeat the change and the
    whole 95 % interval lies beyond the threshold; at the latest, `max_rounds` do. A change that is first seen when
    fewer than CONFIRMING_ROUNDS are left is not followed up: the trial ends undecided, and says so.

    The demand on the interval is there since a drop of half the threshold has many occasions to look like a whole one:
    without it, 1.3 % of them are called regressed, not 0.4 %. It costs a drop of one and a half two rounds more.

    Args:
        threshold: the share by which a rate must drop to matter, such as 0.05.
        min_rounds: pairs before anything is decided.
        max_rounds: pairs in all, with those that repeat a change.

    Raises:
        ValueError: the threshold or the numbers of rounds make no sense.
    """

    def __init__(self, threshold: float, *, min_rounds: int = 5, max_rounds: int = 15) -> None:
        if not 2 <= min_rounds <= max_rounds - CONFIRMING_ROUNDS:
            raise ValueError(
                f"A trial takes at least 2 pairs of rounds (given: {min_rounds}) and at least {CONFIRMING_ROUNDS} more "
                f"at most (given: {max_rounds}), so that a change which is seen can be repeated."
            )
        self._threshold = threshold
        self._min_rounds = min_rounds
        self._max_rounds = max_rounds
        self._log_ratios: list[float] = []
        self._suspected_after: int | None = None
        self._is_over = False
        self._decision = judge([], threshold=threshold, fresh=0)

    def add(self, base_rate: float, candidate_rate: float) -> None:
        """Takes the rates of one pair, in any unit.

        Raises:
            ValueError: a rate is not above zero, or the trial is over.
        """
        if self._is_over:
            raise ValueError(f"The trial was over after {len(self._log_ratios)} pairs of rounds; this is another one.")
        for rate in (base_rate, candidate_rate):
            if not (rate > 0 and math.isfinite(rate)):
                raise ValueError(f"A round must have a rate above zero, not {rate}: a failed run has none.")
        self._log_ratios.append(math.log(candidate_rate) - math.log(base_rate))
        self._decision = judge(self._log_ratios, threshold=self._threshold, fresh=self._fresh)
        rounds = len(self._log_ratios)
        if rounds < self._min_rounds:
            return
        if self._suspected_after is None and self._decision.is_suspect and self._may_follow_up:
            self._suspected_after = rounds
        self._is_over = rounds >= self._max_rounds or self._is_clear

    @property
    def is_over(self) -> bool:
        """Returns whether no further round is needed."""
        return self._is_over

    def decision(self) -> Decision:
        """Returns what the rounds so far say."""
        return self._decision

    @property
    def says(self) -> str:
        """Returns where it stands, in a sentence."""
        rounds, change = len(self._log_ratios), self._decision.change
        if change is None:
            return "no rounds yet"
        if self._is_over:
            doing = str(self._decision.verdict)
        elif rounds < self._min_rounds:
            doing = f"at least {self._min_rounds} are needed"
        else:
            doing = "not decided" if self._suspected_after is None else "repeating it"
        return f"{rounds} round{'s' * (rounds > 1)}: {in_words(change)}, {doing}"

    @property
    def _fresh(self) -> int:
        """Returns how many rounds are fresh, once they are enough."""
        fresh = 0 if self._suspected_after is None else len(self._log_ratios) - self._suspected_after
        return fresh if fresh >= CONFIRMING_ROUNDS else 0

    @property
    def _may_follow_up(self) -> bool:
        return self._max_rounds - len(self._log_ratios) >= CONFIRMING_ROUNDS

    @property
    def _is_clear(self) -> bool:
        decision = self._decision
        if decision.change_low is None or decision.change_high is None:
            return False
        regressed = decision.verdict is Verdict.REGRESSED and decision.change_high <= -self._threshold
        improved = decision.verdict is Verdict.IMPROVED and 1 + decision.change_low >= 1 / (1 - self._threshold)
        return decision.verdict is Verdict.UNCHANGED or regressed or improved
