"""A number with its 95 % interval, the intervals of repeated runs, and the one way to say that one is faster.

Rates are those of processes, in any unit, above 0. Equal processes differ, which the steps of one do not show.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from results.text import rounded

# With this many repeats, the spread between them is known.
ENOUGH_REPEATS = 3
# Equal processes are assumed to differ by at least this share (standard deviation).
LEAST_SPREAD = 0.02
# Too few repeats do not show by how much they differ: then this share is assumed.
ASSUMED_SPREAD, _FEWEST_DEGREES = 0.10, 2
# The test is repeated after every repeat, so each must be stricter than 95 %.
_CONFIDENCE = 0.99
LARGEST_LOG = 700.0  # below that of the largest float


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval. Bounds may be infinite; both are NaN if too little was measured."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of(cls, value: float, low: float | None, high: float | None) -> Interval:
        """Returns an interval as a record holds it, where an unknown bound is None."""
        return cls(value) if low is None or high is None else cls(value, low, high)

    @property
    def is_known(self) -> bool:
        """Returns whether there are bounds."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def bounds(self) -> tuple[float, float] | tuple[None, None]:
        """Returns the bounds as a record holds them."""
        return (self.low, self.high) if self.is_known else (None, None)

    @property
    def bounded(self) -> Interval:
        """Returns itself; without bounds, an interval of no width."""
        return self if self.is_known else Interval(self.value, self.value, self.value)

    @property
    def log_half_width(self) -> float:
        """Returns half the width on a logarithmic scale; the bounds must be above 0."""
        return math.log(self.high / self.low) / 2

    def side_of(self, number: float) -> int:
        """Returns 1 if the interval is above a number, -1 if it is below, 0 if it holds it or is unknown."""
        return (self.low > number) - (self.high < number)

    def scaled(self, factor: float) -> Interval:
        """Returns the number in another unit; the factor is above 0."""
        return Interval(factor * self.value, factor * self.low, factor * self.high)

    def inverse(self, dividend: float) -> Interval:
        """Returns the dividend over a positive number, such as the seconds of so many images from their rate."""
        return Interval(dividend / self.value, dividend / self.high, dividend / self.low)

    def minus(self, other: Interval) -> Interval:
        """Returns the difference of two independent numbers.

        The distance to each bound is the root of the sum of squares of the two that make it. Source: Zou and Donner
        2008, "Construction of confidence limits about effect measures".
        """
        value = self.value - other.value
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Interval(value, value - below, value + above)

    def over(self, other: Interval) -> Interval:
        """Returns the ratio of two independent positive numbers."""
        ratio = self.value / other.value
        if not (self.low > 0 and other.low > 0):
            return Interval(ratio)
        factor = math.exp(math.hypot(self.log_half_width, other.log_half_width))
        return Interval(ratio, ratio / factor, ratio * factor)

    def widened(self, spread: float, degrees: int = 0) -> Interval:
        """Returns a positive number with an independent spread added, of so many degrees of freedom (0: assumed)."""
        half = (t_quantile(0.975, degrees) if degrees else 2.0) * spread
        below = math.hypot(math.log(self.value / self.low), half)
        above = math.hypot(math.log(self.high / self.value), half)
        return Interval(self.value, self.value * math.exp(-below), self.value * exp(above))

    def rounded(self, number: float | None = None) -> str:
        """Returns the number, or another in its unit, rounded to the noise: see `results.text.rounded`."""
        return rounded(self.value if number is None else number, (self.high - self.low) / 2)

    def range(self, in_words: Callable[[float], str] | None = None) -> str:
        """Returns the bounds as text, such as "1.20 to 1.40"; empty if they are unknown."""
        words = in_words or self.rounded
        return f"{words(self.low)} to {words(self.high)}" if self.is_known else ""

    def text(self, in_words: Callable[[float], str] | None = None) -> str:
        """Returns the number as text, with its bounds in parentheses if they are known."""
        return (in_words or self.rounded)(self.value) + (f" ({self.range(in_words)})" if self.is_known else "")


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: float) -> float:
    """Returns a quantile of Student's t; `scipy.stats` has it too, but takes a second to import."""
    from scipy import special  # its import takes longer than most others of `--help`

    return float(special.stdtrit(degrees, probability))


def geometric_mean(rates: Sequence[float]) -> float:
    """Returns the geometric mean of at least one rate; of a single one exactly that."""
    return statistics.geometric_mean(rates) if len(rates) > 1 else rates[0]


def of_repeats(rates: Sequence[float], confidence: float = 0.95) -> Interval:
    """Returns the geometric mean of at least two repeats with its t interval: processes differ, not only steps."""
    logs = [math.log(rate) for rate in rates]
    half = t_quantile((1 + confidence) / 2, len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    middle = math.fsum(logs) / len(logs)
    return Interval(*map(exp, (middle, middle - half, middle + half)))


def exp(log: float) -> float:
    """Returns the number of a logarithm; an end of the interval of two repeats may exceed all floats."""
    return math.exp(min(log, LARGEST_LOG))


def variance(values: Sequence[float]) -> float:
    """Returns the variance of at least two values; sums are exact, so their order does not matter."""
    return _squared_deviations(values) / (len(values) - 1)


def _squared_deviations(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.fsum((value - middle) ** 2 for value in values)


def spread(candidates: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Returns by which share the rates of one candidate differ (standard deviation), and its degrees of freedom.

    Of fewer than two degrees Student's t would say less than an assumption: the share is one then, and has none.
    """
    logs = [[math.log(rate) for rate in rates] for rates in candidates if len(rates) > 1]
    degrees = sum(len(each) - 1 for each in logs)
    if degrees < _FEWEST_DEGREES:
        return ASSUMED_SPREAD, 0
    return math.sqrt(math.fsum(map(_squared_deviations, logs)) / degrees), degrees


def between_runs(candidates: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Returns the `spread` of equal processes, which is at least LEAST_SPREAD."""
    shown, degrees = spread(candidates)
    return max(LEAST_SPREAD, shown), degrees


def is_faster(one: Interval, other: Interval, blocks: Sequence[Sequence[float]] = ()) -> bool:
    """Returns whether one rate is clearly above another: by 95 % intervals that do not overlap, or by pairs.

    `blocks` are the rates of both in the same blocks, see `slower_than_best`; empty if they have none in common.
    """
    return one.low > other.high or slower_than_best(blocks) == [1]


def slower_than_best(rates: Sequence[Sequence[float]]) -> list[int]:
    """Returns the indices of candidates that are slower than the fastest, by a paired t test at 99 %.

    In a block all candidates run one after the other, so a disturbance of a whole block cancels. `rates` are those of
    each candidate by block; a block that only some have is ignored, and fewer than three blocks show nothing.
    """
    blocks = min(map(len, rates), default=0)
    if blocks < ENOUGH_REPEATS:
        return []
    paired = [candidate[:blocks] for candidate in rates]
    best = max(paired, key=geometric_mean)
    ratios = [[high / low for high, low in zip(best, candidate, strict=True)] for candidate in paired]
    return [number for number, candidate in enumerate(ratios) if of_repeats(candidate, _CONFIDENCE).low > 1]
