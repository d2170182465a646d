"""Is the candidate slower than the base? Decides it from the rates of rounds, in both directions alike.

A round is a fresh process. All is done on logarithms: a drop of 5 % and the gain that makes up for it are alike. With
L = -ln(1 - threshold), a rate has

* regressed, if all rounds together show a drop of at least L, its one-sided 99 % bound excludes that there is none, and
  the fresh rounds alone, those that ran after the drop had been seen, show at least L again;
* improved, likewise upwards;
* not changed, if both one-sided 99 % bounds lie within -L and L.

Else it is not known. The last condition of a regression is on the fresh rounds alone, since a drop that was looked for
is larger than the truth. That it asks for the whole of L, and not for 0.6 of it, makes regressions of 0.4 % and not of
0.8 % of the drops of half the threshold, and of 96 % and not of 98.5 % of those of one and a half (whole trials at 5 %,
noise of a round 3 %). tests/results/gate/test_error_rates.py keeps such rates.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from results.gate.findings import Verdict

_BOUND_CONFIDENCE = 0.99
_INTERVAL_CONFIDENCE = 0.95
_POWER = 0.95
# A drop of exactly the threshold counts, and logarithms round.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What the rounds of one configuration say.

    Attributes:
        verdict: `regressed`, `improved`, `unchanged` or `inconclusive`.
        reason: why, with the numbers that decided.
        rounds: of each side; of unequal sides the fewer.
        is_suspect: there is a change, up or down, and all that is missing is that fresh rounds repeat it.
        change: the candidate's rate over the base's, less 1; None without rounds.
        change_low: lower end of its 95 % interval; None from fewer than two rounds.
        change_high: upper end of it.
        smallest_drop: the smallest true drop, as a positive share, that rounds as noisy and as many as these would show
            to have regressed in 95 % of the cases; None from fewer than two rounds.
    """

    verdict: Verdict
    reason: str
    rounds: int
    is_suspect: bool = False
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    smallest_drop: float | None = None


@dataclasses.dataclass(frozen=True)
class _Sample:
    """What was seen of a log ratio, whose truth is not known. Negative is slower.

    Attributes:
        mean: over all rounds.
        error: its standard error.
        degrees: of freedom.
        again: the means over the rounds that must repeat it; none if there are no such.
        again_error: what the standard error of such a mean is if half of all rounds must repeat it.
        who: what to call them.
        rounds: of each side; of unequal sides the fewer.
    """

    mean: float
    error: float
    degrees: float
    again: Sequence[float]
    again_error: float
    who: str
    rounds: int


def judge(log_ratios: Sequence[float], *, threshold: float, fresh: int) -> Decision:
    """Judges interleaved rounds.

    Args:
        log_ratios: ln(candidate / base) of each pair of rounds, in the order in which they ran.
        threshold: the share by which a rate must drop to matter, such as 0.05.
        fresh: how many of the last were run after the drop had been seen; of stored rounds, the later half stands for
            them.

    Raises:
        ValueError: a log ratio is no number, or the threshold is not between 0 and 1.
    """
    log_threshold(threshold)
    _refuse_what_is_no_number(log_ratios)
    rounds = len(log_ratios)
    if not 0 <= fresh <= rounds:
        raise ValueError(f"Of {rounds} rounds, {fresh} cannot be fresh.")
    if rounds < 2:
        return _too_few(log_ratios)
    spread = math.sqrt(_variance(log_ratios))
    sample = _Sample(
        mean=_mean(log_ratios),
        error=spread / math.sqrt(rounds),
        degrees=rounds - 1,
        again=[_mean(log_ratios[-fresh:])] if fresh else [],
        again_error=spread / math.sqrt(rounds // 2),
        who=f"the last {fresh} rounds alone" if fresh > 1 else "the last round alone",
        rounds=rounds,
    )
    return _decide(sample, threshold)


def judge_apart(base_logs: Sequence[float], candidate_logs: Sequence[float], *, threshold: float) -> Decision:
    """Judges rounds that were not interleaved, by Welch's interval: a drift of the machine looks like a change.

    A drop repeats if each half in time shows it, and not only the later one: none of them was looked for.

    Args:
        base_logs: logarithms of the base's rates, in the order in which they ran.
        candidate_logs: of the candidate's.
        threshold: as of `judge`.

    Raises:
        ValueError: as of `judge`.
    """
    log_threshold(threshold)
    _refuse_what_is_no_number([*base_logs, *candidate_logs])
    rounds = min(len(base_logs), len(candidate_logs))
    if rounds < 2:
        return _too_few([_mean(candidate_logs) - _mean(base_logs)] if rounds else [])
    halves = zip(_halves(base_logs), _halves(candidate_logs), strict=True)
    variances = [(_variance(logs), len(logs)) for logs in (base_logs, candidate_logs)]
    shares = [variance / count for variance, count in variances]
    # Welch and Satterthwaite; without any spread, any number of degrees gives bounds of no width.
    scale = sum((variance / count) ** 2 / (count - 1) for variance, count in variances)
    sample = _Sample(
        mean=_mean(candidate_logs) - _mean(base_logs),
        error=math.sqrt(sum(shares)),
        degrees=sum(shares) ** 2 / scale if scale > 0 else rounds - 1,
        again=[_mean(candidate) - _mean(base) for base, candidate in halves],
        again_error=math.sqrt(sum(variance / (count // 2) for variance, count in variances)),
        who="the earlier and the later half of them",
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
    bound = student(sample.degrees, _BOUND_CONFIDENCE) * sample.error
    size, downwards = abs(sample.mean), sample.mean < 0
    is_change = size >= limit - _ROUNDING and size > bound
    is_again = bool(sample.again) and all((-m if downwards else m) >= limit - _ROUNDING for m in sample.again)
    if is_change and is_again:
        verdict = Verdict.REGRESSED if downwards else Verdict.IMPROVED
    else:
        verdict = Verdict.UNCHANGED if not is_change and size + bound < limit else Verdict.INCONCLUSIVE
    half = student(sample.degrees, (1 + _INTERVAL_CONFIDENCE) / 2) * sample.error
    smallest = _smallest_drop(sample, limit)
    interval = (sample.mean - half, sample.mean + half)
    return Decision(
        verdict=verdict,
        reason=_reason(sample, verdict, is_change, interval, smallest, threshold),
        rounds=sample.rounds,
        is_suspect=is_change and not is_again,
        change=_expm1(sample.mean),
        change_low=_expm1(interval[0]),
        change_high=_expm1(interval[1]),
        smallest_drop=smallest,
    )


def _smallest_drop(sample: _Sample, limit: float) -> float:
    """Returns the drop that meets each condition often enough, if noise is as large as it was seen to be."""
    missed = (1 - _POWER) / max(1, len(sample.again))
    seen_again = limit + student(sample.degrees, 1 - missed) * sample.again_error
    beyond_bound = _detectable(sample.degrees) * sample.error
    return -math.expm1(-max(seen_again, beyond_bound))


def _reason(
    sample: _Sample,
    verdict: Verdict,
    is_change: bool,
    interval: tuple[float, float],
    smallest_drop: float,
    threshold: float,
) -> str:
    low, high = (in_words(_expm1(end)) for end in interval)
    seen = f"{in_words(_expm1(sample.mean))} over {sample.rounds} rounds (95 % interval: {low} to {high})"
    again = " and ".join(in_words(_expm1(mean)) for mean in sample.again)
    if verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
        return f"It is {seen}, and {sample.who} showed it again: {again}. The threshold is {100 * threshold:.3g} %."
    if verdict is Verdict.UNCHANGED:
        return f"It is {seen}; with 99 % confidence it has not changed by the threshold of {100 * threshold:.3g} %."
    if not is_change:
        return (
            f"It is {seen}, which neither shows nor excludes a change by the threshold of {100 * threshold:.3g} %. "
            f"With this noise, so many rounds show a drop if it is {100 * smallest_drop:.1f} % or more."
        )
    if again:
        return f"It is {seen}, but {sample.who} did not show the threshold of {100 * threshold:.3g} % again: {again}."
    return f"It is {seen}, but no rounds were left to repeat it. Run it again, or with more rounds."


def _too_few(log_ratios: Sequence[float]) -> Decision:
    if not log_ratios:
        return Decision(verdict=Verdict.INCONCLUSIVE, reason="There are no rounds of both sides to compare.", rounds=0)
    change = _expm1(log_ratios[0])
    reason = f"It is {in_words(change)} in one round, which does not tell change from noise. Run at least 5 rounds."
    return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason, rounds=1, change=change)


def in_words(change: float) -> str:
    """Returns a relative change, such as -0.071 as "7.1 % slower"."""
    return f"{100 * abs(change):.1f} % {'slower' if change < 0 else 'faster'}"


def _refuse_what_is_no_number(logs: Sequence[float]) -> None:
    for log in logs:
        if not math.isfinite(log):
            raise ValueError(f"Rounds must have rates above zero, whose logarithms are finite, not {log}.")


def _halves(logs: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    middle = len(logs) - len(logs) // 2
    return logs[:middle], logs[middle:]


# Sums that do not depend on the order.


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@functools.lru_cache(maxsize=1024)
def student(degrees: float, confidence: float) -> float:
    """Returns a quantile of Student's distribution; `scipy.stats` has it too, but takes a second to import."""
    from scipy import special  # late: it takes longer than all else that reads records

    return float(special.stdtrit(degrees, confidence))


@functools.lru_cache(maxsize=1024)
def _detectable(degrees: float) -> float:
    """Returns how many standard errors a change must be for its bound to exclude zero often enough (noncentral t)."""
    from scipy import special

    return float(special.nctdtrinc(degrees, 1 - _POWER, student(degrees, _BOUND_CONFIDENCE)))


def _expm1(log: float) -> float:
    """Returns a log ratio as a relative change; the ends of an interval from two rounds may lie beyond all floats."""
    return math.expm1(min(log, 700.0))
