"""Is the candidate slower than the base? Decides from the rates of rounds; improvements follow the same rule upwards.

docs/background/gate-statistics.md has the rule; tests/results/gate/test_error_rates.py checks its error rates. Fresh
rounds must repeat a drop, because one that was searched for is larger than the truth. They must show the whole
threshold, not 0.6 of it: of drops of half the threshold, 0.4 % instead of 0.8 % are called regressed, and of drops of
one and a half thresholds 96 % instead of 98.5 % (whole trials at 5 %, noise of a round 3 %). All computations use
logarithms, in which a drop of 5 % and the gain that reverses it have the same size.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from statistics import fmean  # exact sums, so the order of rounds does not matter
from typing import NamedTuple

from results.gate.findings import Decision, Verdict
from results.intervals import LARGEST_LOG, Interval, t_quantile, variance

# The threshold of a quiet machine. A rate cannot drop by 100 %, and a machine with more noise shows nothing.
QUIET_THRESHOLD, _LARGEST_THRESHOLD = 0.05, 0.9
# With fewer rounds, the noise is hardly known.
FEWEST_ROUNDS = 3
BOUND_CONFIDENCE, CONFIDENCE, POWER = 0.99, 0.95, 0.95
# A drop of exactly the threshold counts, and logarithms round.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What rounds show of the log ratio of candidate to base, negative if slower.

    Attributes:
        change: the estimate.
        half_width: of its 95 % interval.
        bound: what a change must exceed to be certain.
        margin: a rate has not changed if the estimate and this are less than the threshold.
        repeats: means over the rounds that must repeat a change; empty without such rounds.
        least_repeat: what each of them must reach.
        smallest_drop: as in `Finding`.
    """

    change: float
    half_width: float
    bound: float
    margin: float
    repeats: Sequence[float]
    least_repeat: float
    smallest_drop: float

    @property
    def interval(self) -> Interval:
        """The relative change with its 95 % interval."""
        ends = (self.change, self.change - self.half_width, self.change + self.half_width)
        return Interval(*map(_expm1, ends))


class Reasons(NamedTuple):
    """A sentence for each way in which a decision can end."""

    repeated: str
    unchanged: str
    unclear: str
    not_repeated: str


def judge(log_ratios: Sequence[float], *, threshold: float, fresh: int) -> Decision:
    """Judges interleaved rounds.

    Args:
        log_ratios: ln(candidate / base) of each pair of rounds, in the order in which they ran.
        threshold: the share by which a rate must drop to matter, such as 0.05.
        fresh: how many of the last rounds ran after the drop had been seen; for stored rounds, the later half.
    """
    rounds = len(log_ratios)
    if rounds < 2:
        change = Interval(_expm1(log_ratios[0])) if log_ratios else None
        reason = "Fewer than two repeats of both sides decide nothing. Run at least 5."
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason, change=change)
    spread = math.sqrt(variance(log_ratios))
    return _judge_sample(
        mean=fmean(log_ratios),
        error=spread / math.sqrt(rounds),
        degrees=rounds - 1,
        repeats=[fmean(log_ratios[-fresh:])] if fresh else [],
        repeat_error=spread / math.sqrt(rounds // 2),
        repeats_name=f"the last {fresh} repeats alone" if fresh > 1 else "the last repeat alone",
        rounds=rounds,
        threshold=threshold,
    )


def judge_apart(base_logs: Sequence[float], candidate_logs: Sequence[float], *, threshold: float) -> Decision:
    """Judges rounds that were not interleaved, by Welch's interval: a drift of the machine looks like a change.

    The logarithms of both sides' rates, at least two of each, are in the order in which they ran. A drop is confirmed
    if each half in time shows it, not only the later one: neither half was searched for a drop.
    """
    rounds = min(len(base_logs), len(candidate_logs))
    sides = zip(halves(base_logs), halves(candidate_logs), strict=True)
    variances = [(variance(logs), len(logs)) for logs in (base_logs, candidate_logs)]
    shares = [(of_side / count, count) for of_side, count in variances]
    squared_error = sum(share for share, _ in shares)
    # Welch and Satterthwaite; without any spread, any number of degrees gives bounds of no width.
    scale = sum(share**2 / (count - 1) for share, count in shares)
    return _judge_sample(
        mean=fmean(candidate_logs) - fmean(base_logs),
        error=math.sqrt(squared_error),
        degrees=squared_error**2 / scale if scale > 0 else rounds - 1,
        repeats=[fmean(candidate) - fmean(base) for base, candidate in sides],
        repeat_error=math.sqrt(sum(of_side / (count // 2) for of_side, count in variances)),
        repeats_name="the earlier and the later half of them",
        rounds=rounds,
        threshold=threshold,
    )


def supported_threshold(noise: float) -> float:
    """Returns the share that noise (standard deviation of log rates) allows: 5 %, or twice the noise if more."""
    return min(max(QUIET_THRESHOLD, 2 * noise), _LARGEST_THRESHOLD)


def log_threshold(threshold: float) -> float:
    """Returns the logarithm by which a rate must change to matter; the threshold is a share between 0 and 1."""
    return -math.log1p(-threshold)


def decide(evidence: Evidence, threshold: float, reasons: Reasons) -> Decision:
    """Applies the rule that all comparisons share, which docs/background/gate-statistics.md describes."""
    limit = log_threshold(threshold)
    size, downwards = abs(evidence.change), evidence.change < 0
    is_change = size >= limit - _ROUNDING and size > evidence.bound
    towards = [-mean if downwards else mean for mean in evidence.repeats]
    is_repeated = bool(towards) and min(towards) >= evidence.least_repeat
    if is_change and is_repeated:
        verdict, reason = Verdict.REGRESSED if downwards else Verdict.IMPROVED, reasons.repeated
    elif not is_change and size + evidence.margin < limit:
        verdict, reason = Verdict.UNCHANGED, reasons.unchanged
    else:
        verdict, reason = Verdict.INCONCLUSIVE, reasons.not_repeated if is_change else reasons.unclear
    return Decision(
        verdict=verdict,
        reason=reason,
        is_suspect=is_change and not is_repeated,
        change=evidence.interval,
        smallest_drop=evidence.smallest_drop,
    )


def _judge_sample(
    *,
    mean: float,
    error: float,
    degrees: float,
    repeats: Sequence[float],
    repeat_error: float,
    repeats_name: str,
    rounds: int,
    threshold: float,
) -> Decision:
    """Judges the mean log ratio of rounds, whose standard error has so many degrees of freedom.

    `repeat_error` is the standard error of a mean over half of the rounds, which must repeat the change.
    """
    limit = log_threshold(threshold)
    bound = t_quantile(BOUND_CONFIDENCE, degrees) * error
    # The drop that meets each condition often enough, if the noise is as large as the sample's.
    missed = (1 - POWER) / max(1, len(repeats))
    seen_again = limit + t_quantile(1 - missed, degrees) * repeat_error
    evidence = Evidence(
        change=mean,
        half_width=t_quantile((1 + CONFIDENCE) / 2, degrees) * error,
        bound=bound,
        margin=bound,
        repeats=repeats,
        least_repeat=limit - _ROUNDING,
        smallest_drop=-math.expm1(-max(seen_again, _detectable(degrees) * error)),
    )
    change = evidence.interval
    seen = f"It is {in_words(change.value)} over {rounds} repeats (95 % interval: {change.range(in_words)})"
    means = " and ".join(in_words(_expm1(mean)) for mean in repeats)
    share = f"{100 * threshold:.3g} %"
    reasons = Reasons(
        repeated=f"{seen}, and {repeats_name} showed it again: {means}. The threshold is {share}.",
        unchanged=f"{seen}; with 99 % confidence it has not changed by the threshold of {share}.",
        unclear=f"{seen}, which neither shows nor excludes a change by the threshold of {share}. With this noise, so "
        f"many repeats show a drop of {100 * evidence.smallest_drop:.1f} % or more.",
        not_repeated=f"{seen}, but {repeats_name} did not show the threshold of {share} again: {means}."
        if repeats
        else f"{seen}, but no repeats were left to confirm it. Run it again, or with more repeats.",
    )
    return decide(evidence, threshold, reasons)


def in_words(change: float) -> str:
    """Returns a relative change, such as -0.071 as "7.1 % slower"."""
    return f"{100 * abs(change):.1f} % {'slower' if change < 0 else 'faster'}"


def halves(logs: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the earlier and the later half of rounds; of an odd number, the earlier half has one more."""
    middle = len(logs) - len(logs) // 2
    return logs[:middle], logs[middle:]


@functools.lru_cache(maxsize=1024)
def _detectable(degrees: float) -> float:
    # How many standard errors a change must be for its bound to exclude zero often enough: noncentral t.
    from scipy import special

    return float(special.nctdtrinc(degrees, 1 - POWER, t_quantile(BOUND_CONFIDENCE, degrees)))


def _expm1(log: float) -> float:
    # The ends of an interval from two rounds may exceed all floats.
    return math.expm1(min(log, LARGEST_LOG))
