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

from results.gate.findings import Decision, Verdict
from results.intervals import Interval, t_quantile, variance

_BOUND_CONFIDENCE = 0.99
_INTERVAL_CONFIDENCE = 0.95
_POWER = 0.95
# A drop of exactly the threshold counts, and logarithms round.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class _Sample:
    """An estimate of the log ratio of candidate to base, negative if slower, and the rounds that must repeat it."""

    mean: float
    error: float  # standard error of the mean
    degrees: float  # of freedom
    repeats: Sequence[float]  # means over the rounds that must repeat a change; empty without such rounds
    repeat_error: float  # standard error of such a mean if half of all rounds must repeat the change
    repeats_name: str  # in sentences
    rounds: int  # of each side; of unequal sides the fewer


def judge(log_ratios: Sequence[float], *, threshold: float, fresh: int) -> Decision:
    """Judges interleaved rounds.

    Args:
        log_ratios: ln(candidate / base) of each pair of rounds, in the order in which they ran.
        threshold: the share by which a rate must drop to matter, such as 0.05.
        fresh: how many of the last rounds ran after the drop had been seen; for stored rounds, the later half.

    Raises:
        ValueError: a log ratio is not finite, or the threshold is not between 0 and 1.
    """
    log_threshold(threshold)
    _require_finite(log_ratios)
    rounds = len(log_ratios)
    if not 0 <= fresh <= rounds:
        raise ValueError(f"Of {rounds} rounds, {fresh} cannot be fresh.")
    if rounds < 2:
        return _too_few(log_ratios)
    spread = math.sqrt(variance(log_ratios))
    sample = _Sample(
        mean=fmean(log_ratios),
        error=spread / math.sqrt(rounds),
        degrees=rounds - 1,
        repeats=[fmean(log_ratios[-fresh:])] if fresh else [],
        repeat_error=spread / math.sqrt(rounds // 2),
        repeats_name=f"the last {fresh} rounds alone" if fresh > 1 else "the last round alone",
        rounds=rounds,
    )
    return _decide(sample, threshold)


def judge_apart(base_logs: Sequence[float], candidate_logs: Sequence[float], *, threshold: float) -> Decision:
    """Judges rounds that were not interleaved, by Welch's interval: a drift of the machine looks like a change.

    A drop is confirmed if each half in time shows it, not only the later one: neither half was searched for a drop.

    Args:
        base_logs: logarithms of the base's rates, in the order in which they ran.
        candidate_logs: of the candidate's.
        threshold: as in `judge`.

    Raises:
        ValueError: as in `judge`.
    """
    log_threshold(threshold)
    _require_finite([*base_logs, *candidate_logs])
    rounds = min(len(base_logs), len(candidate_logs))
    if rounds < 2:
        return _too_few([fmean(candidate_logs) - fmean(base_logs)] if rounds else [])
    halves = zip(_halves(base_logs), _halves(candidate_logs), strict=True)
    variances = [(variance(logs), len(logs)) for logs in (base_logs, candidate_logs)]
    shares = [(of_side / count, count) for of_side, count in variances]
    squared_error = sum(share for share, _ in shares)
    # Welch and Satterthwaite; without any spread, any number of degrees gives bounds of no width.
    scale = sum(share**2 / (count - 1) for share, count in shares)
    sample = _Sample(
        mean=fmean(candidate_logs) - fmean(base_logs),
        error=math.sqrt(squared_error),
        degrees=squared_error**2 / scale if scale > 0 else rounds - 1,
        repeats=[fmean(candidate) - fmean(base) for base, candidate in halves],
        repeat_error=math.sqrt(sum(of_side / (count // 2) for of_side, count in variances)),
        repeats_name="the earlier and the later half of them",
        rounds=rounds,
    )
    return _decide(sample, threshold)


def log_threshold(threshold: float) -> float:
    """Returns the logarithm by which a rate must change to matter.

    Raises:
        ValueError: the threshold is not between 0 and 1.
    """
    if not 0 < threshold < 1:
        raise ValueError(f"A threshold is a share between 0 and 1, such as 0.05 for 5 %, not {threshold}.")
    return -math.log1p(-threshold)


def _decide(sample: _Sample, threshold: float) -> Decision:
    limit = log_threshold(threshold)
    bound = t_quantile(_BOUND_CONFIDENCE, sample.degrees) * sample.error
    size, downwards = abs(sample.mean), sample.mean < 0
    is_change = size >= limit - _ROUNDING and size > bound
    is_repeated = bool(sample.repeats) and all((-m if downwards else m) >= limit - _ROUNDING for m in sample.repeats)
    if is_change and is_repeated:
        verdict = Verdict.REGRESSED if downwards else Verdict.IMPROVED
    else:
        verdict = Verdict.UNCHANGED if not is_change and size + bound < limit else Verdict.INCONCLUSIVE
    half = t_quantile((1 + _INTERVAL_CONFIDENCE) / 2, sample.degrees) * sample.error
    smallest = _smallest_drop(sample, limit)
    change = Interval(*map(_expm1, (sample.mean, sample.mean - half, sample.mean + half)))
    return Decision(
        verdict=verdict,
        reason=_reason(sample, verdict, is_change, change, smallest, threshold),
        rounds=sample.rounds,
        is_suspect=is_change and not is_repeated,
        change=change,
        smallest_drop=smallest,
    )


def _smallest_drop(sample: _Sample, limit: float) -> float:
    """Returns the drop that meets each condition often enough, if the noise is as large as the sample's."""
    missed = (1 - _POWER) / max(1, len(sample.repeats))
    seen_again = limit + t_quantile(1 - missed, sample.degrees) * sample.repeat_error
    beyond_bound = _detectable(sample.degrees) * sample.error
    return -math.expm1(-max(seen_again, beyond_bound))


def _reason(
    sample: _Sample, verdict: Verdict, is_change: bool, change: Interval, smallest_drop: float, threshold: float
) -> str:
    interval = change.range(in_words)
    seen = f"It is {in_words(change.value)} over {sample.rounds} rounds (95 % interval: {interval})"
    repeats = " and ".join(in_words(_expm1(mean)) for mean in sample.repeats)
    limit = f"{100 * threshold:.3g} %"
    if verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
        return f"{seen}, and {sample.repeats_name} showed it again: {repeats}. The threshold is {limit}."
    if verdict is Verdict.UNCHANGED:
        return f"{seen}; with 99 % confidence it has not changed by the threshold of {limit}."
    if not is_change:
        return (
            f"{seen}, which neither shows nor excludes a change by the threshold of {limit}. With this noise, so many "
            f"rounds show a drop of {100 * smallest_drop:.1f} % or more."
        )
    if repeats:
        return f"{seen}, but {sample.repeats_name} did not show the threshold of {limit} again: {repeats}."
    return f"{seen}, but no rounds were left to repeat it. Run it again, or with more rounds."


def _too_few(log_ratios: Sequence[float]) -> Decision:
    if not log_ratios:
        return Decision(verdict=Verdict.INCONCLUSIVE, reason="There are no rounds of both sides to compare.")
    change = Interval(_expm1(log_ratios[0]))
    reason = f"It is {in_words(change.value)} in one round, which may be noise. Run at least 5 rounds."
    return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason, rounds=1, change=change)


def in_words(change: float) -> str:
    """Returns a relative change, such as -0.071 as "7.1 % slower"."""
    return f"{100 * abs(change):.1f} % {'slower' if change < 0 else 'faster'}"


def _require_finite(logs: Sequence[float]) -> None:
    for log in logs:
        if not math.isfinite(log):
            raise ValueError(f"Rounds must have rates above zero, whose logarithms are finite, not {log}.")


def _halves(logs: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    middle = len(logs) - len(logs) // 2
    return logs[:middle], logs[middle:]


@functools.lru_cache(maxsize=1024)
def _detectable(degrees: float) -> float:
    """Returns how many standard errors a change must be for its bound to exclude zero often enough (noncentral t)."""
    from scipy import special

    return float(special.nctdtrinc(degrees, 1 - _POWER, t_quantile(_BOUND_CONFIDENCE, degrees)))


def _expm1(log: float) -> float:
    """Returns a log ratio as a relative change; the ends of an interval from two rounds may exceed all floats."""
    return math.expm1(min(log, 700.0))
