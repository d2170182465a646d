"""Statistics of repeated runs of several candidates: rates, their intervals, and which candidates are slower."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Sequence

from results.statistics import rate_interval

# With this many repeats, the spread between them is known.
ENOUGH_REPEATS = 3
# Equal processes are assumed to differ by at least this share (standard deviation).
LEAST_SPREAD = 0.02
# Without repeats nothing shows by how much they differ: then this share is assumed.
ASSUMED_SPREAD = 0.10
# The test is repeated after every repeat, so each must be stricter than 95 %.
_CONFIDENCE = 0.99


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run, which took `seconds` from the start of the process to its end.

    If it failed, there are no `step_seconds`; `cut_off`: only because its time was up. Images are of all devices.
    """

    seconds: float
    images_per_step: int = 0
    step_seconds: Sequence[float] = ()
    reason: str = ""
    cut_off: bool = False


def rate(runs: Sequence[Outcome]) -> float:
    """Returns the geometric mean of the rates of at least one valid run, each all its images over all its time."""
    rates = [run.images_per_step * len(run.step_seconds) / math.fsum(run.step_seconds) for run in runs]
    return geometric_mean(rates)


def geometric_mean(rates: Sequence[float]) -> float:
    """Returns the geometric mean of at least one rate."""
    return math.exp(math.fsum(map(math.log, rates)) / len(rates)) if len(rates) > 1 else rates[0]


def repeats_interval(rates: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns a t interval of the geometric mean of at least two repeats' rates: processes differ, not only steps."""
    logs = [math.log(rate) for rate in rates]
    degrees = len(logs) - 1
    half = t_quantile((1 + confidence) / 2, degrees) * math.sqrt(_squared_deviations(logs) / degrees / len(logs))
    middle = math.fsum(logs) / len(logs)
    return math.exp(middle - half), math.exp(middle + half)


def _squared_deviations(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.fsum((value - middle) ** 2 for value in values)


@functools.cache
def t_quantile(probability: float, degrees: int) -> float:
    """Returns a quantile of Student's t."""
    from scipy import special  # its import takes longer than most others of `--help`

    return float(special.stdtrit(degrees, probability))


def spread(candidates: Iterable[Sequence[Outcome]]) -> float | None:
    """Returns by which share runs of one candidate differ (standard deviation); None without repeats."""
    return spread_of_rates([[rate([run]) for run in runs] for runs in candidates])


def spread_of_rates(candidates: Iterable[Sequence[float]]) -> float | None:
    """Returns the same of the rates of each candidate's runs."""
    logs = [[math.log(one) for one in rates] for rates in candidates if len(rates) > 1]
    degrees = sum(len(each) - 1 for each in logs)
    squares = math.fsum(map(_squared_deviations, logs))
    return math.sqrt(squares / degrees) if degrees else None


def between_runs(candidates: Iterable[Sequence[Outcome]]) -> float:
    """Returns by which share equal processes differ (standard deviation): what repeats show, or an assumption."""
    shown = spread(candidates)
    return ASSUMED_SPREAD if shown is None else max(LEAST_SPREAD, shown)


def interval(runs: Sequence[Outcome], between_runs: float = LEAST_SPREAD) -> tuple[float | None, float | None]:
    """Returns a 95 % interval of the rate of valid runs; (None, None) with too few steps.

    With three runs or more, it comes from the spread between runs. With fewer, it comes from the spread between steps,
    widened by `between_runs` (see `spread`), since the steps of one process do not show how processes differ.
    """
    if len(runs) >= ENOUGH_REPEATS:
        return repeats_interval([rate([run]) for run in runs])
    halves = []
    for run in runs:
        low, high = rate_interval(run.step_seconds, run.images_per_step)
        if low is None or high is None:
            return None, None
        halves.append(math.log(high / low) / 2)
    middle, factor = rate(runs), math.exp(math.hypot(*halves) / len(runs))
    return widened(middle, middle / factor, middle * factor, between_runs / math.sqrt(len(runs)))


def widened(middle: float, low: float, high: float, spread: float) -> tuple[float, float]:
    """Returns a 95 % interval of a rate with the spread between processes (standard deviation, a share) added."""
    return (
        middle * math.exp(-math.hypot(math.log(middle / low), 2 * spread)),
        middle * math.exp(math.hypot(math.log(high / middle), 2 * spread)),
    )


def ratio_interval(
    ratio: float, of: tuple[float | None, float | None], to: tuple[float | None, float | None]
) -> tuple[float, float] | tuple[None, None]:
    """Returns a 95 % interval of the ratio of two independent rates from theirs; (None, None) if one has none."""
    (low, high), (to_low, to_high) = of, to
    if not (low and high and to_low and to_high):
        return None, None
    factor = math.exp(math.hypot(math.log(high / low), math.log(to_high / to_low)) / 2)
    return ratio / factor, ratio * factor


def clearly_slower(repeats: Sequence[Sequence[Outcome]]) -> list[int]:
    """Returns the indices of candidates that are slower than the fastest, by a paired t test at 99 %.

    The repeats are blocks in which all candidates run one after the other, so a disturbance of a whole block cancels.

    Args:
        repeats: the runs of each candidate, in the order of the blocks; a block that only some have is ignored,
            and fewer than three blocks show nothing.
    """
    count = min(map(len, repeats), default=0)
    return slower_than_best([[rate([run]) for run in runs[:count]] for runs in repeats])


def is_clearly_faster(low: float | None, other_high: float | None, blocks: Sequence[tuple[float, float]]) -> bool:
    """Returns whether one candidate is faster than another: by disjoint 95 % intervals, or by a paired t test at 99 %.

    Args:
        low: lower bound of its rate; None if unknown.
        other_high: upper bound of the other's rate; None if unknown.
        blocks: the rates of both in each block that ran both; fewer than three show nothing.
    """
    if low is not None and other_high is not None and low > other_high:
        return True
    return slower_than_best(list(zip(*blocks, strict=True))) == [1]


def slower_than_best(rates: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of candidates that are slower than the fastest, by a paired t test at 99 %.

    Args:
        rates: of each candidate in the same blocks; fewer than three blocks show nothing.
    """
    if min(map(len, rates), default=0) < ENOUGH_REPEATS:
        return []
    best = max(rates, key=statistics.geometric_mean)
    ratios = [[high / low for high, low in zip(best, each, strict=True)] for each in rates]
    return [number for number, each in enumerate(ratios) if repeats_interval(each, _CONFIDENCE)[0] > 1]
