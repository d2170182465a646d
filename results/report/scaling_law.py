"""How a rate grows with the number of devices: the Universal Scalability Law, fitted to points, with intervals.

X(n) = lambda n / (1 + sigma (n - 1) + kappa n (n - 1)), with the rate lambda of one device, contention sigma and
coherence kappa, none of them negative. Sources: Gunther 1993, "A simple capacity model of massively parallel
transaction systems"; with kappa = 0 it is Amdahl's law of 1967.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from results.intervals import Interval

# Farther away than this many times the largest measured number, nothing is predicted.
FARTHEST = 4
_FEWEST_FOR_KAPPA = 3
_SAMPLES = 2000
_TAIL = 0.025
# More noise than exp(20) in a drawn sample of a t distribution changes no percentile.
_MOST_NOISE = 20.0
# While it is fitted, a curve is at least this share of a point, where it would otherwise have no time at all.
_LEAST_SHARE = 0.01


@dataclasses.dataclass(frozen=True)
class Point:
    """A measured rate with `number` devices; `spread` is the standard deviation of its logarithm."""

    number: int
    rate: float
    spread: float


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted law.

    Attributes:
        most: the largest number of devices that it was fitted to.
        has_kappa: whether kappa was fitted; with two points it is 0.
        misfit: how many times as far as their spreads allow the points lie from the curve; at least 1.
        terms: seconds per unit of rate and device, n / X(n): of one device, per n - 1, and per n (n - 1).
        samples: of the terms, such as other measurements would give; (samples, 3).
    """

    most: int
    has_kappa: bool
    misfit: float
    terms: np.ndarray
    samples: np.ndarray

    @property
    def sigma(self) -> Interval:
        """Returns the contention: the share of a step that devices cannot do at the same time."""
        return self._estimate(lambda one, contention, coherence: contention / one)

    @property
    def kappa(self) -> Interval:
        """Returns the coherence: what each pair of devices costs, as a share of a step."""
        return self._estimate(lambda one, contention, coherence: coherence / one)

    def rate(self, number: float) -> Interval:
        """Returns the rate with that many devices."""
        return self._estimate(lambda *terms: number / _seconds(number, *terms))

    def efficiency(self, number: float) -> Interval:
        """Returns the rate per device over that of one device."""
        return self._estimate(lambda *terms: terms[0] / _seconds(number, *terms))

    @property
    def half_efficient(self) -> Interval:
        """Returns the number of devices at which the efficiency is 50 %; infinite if it never is."""
        return self._estimate(_half_efficient)

    @property
    def fastest(self) -> Interval:
        """Returns the number of devices beyond which the rate falls; infinite if it never does."""
        return self._estimate(_fastest)

    def _estimate(self, of: Callable[..., np.ndarray]) -> Interval:
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(of(*self.terms))
            drawn = np.asarray(of(*self.samples.T))
        drawn = drawn[~np.isnan(drawn)]
        low = float(np.quantile(drawn, _TAIL, method="lower"))
        high = float(np.quantile(drawn, 1 - _TAIL, method="higher"))
        return Interval(value, min(low, value), max(high, value))


def _seconds(number: float, one: np.ndarray, contention: np.ndarray, coherence: np.ndarray) -> np.ndarray:
    """Returns n / X(n)."""
    return one + contention * (number - 1) + coherence * (number * (number - 1))


def _half_efficient(one: np.ndarray, contention: np.ndarray, coherence: np.ndarray) -> np.ndarray:
    """Returns the positive root of `coherence n^2 + (contention - coherence) n - (contention + one) = 0`."""
    linear = contention - coherence
    root = np.sqrt(linear**2 + 4 * coherence * (contention + one))
    # The usual form loses all digits if coherence is small.
    return np.asarray(2 * (contention + one) / (linear + root))


def _fastest(one: np.ndarray, contention: np.ndarray, coherence: np.ndarray) -> np.ndarray:
    """Returns where the derivative of the rate is 0; 1 if a second device already makes it slower."""
    return np.where(one <= contention, 1.0, np.sqrt(np.maximum(one - contention, coherence) / coherence))


def fit(points: Sequence[Point], degrees: int | None = None) -> Fit | None:
    """Fits the law to finite points, above 0, of at least two different numbers of devices.

    Returns None if the rates fall faster than the law can, so that the rate of one device would be infinite.

    n / X(n) is linear in the terms, so they come from non-negative least squares, with errors relative to the curve.
    The intervals come from 2,000 sets of points drawn around the measured ones, each fitted in the same way. If the
    points lie farther from the curve than their spreads allow, the spreads are widened by that ratio (Birge 1932).

    Args:
        points: with one or more rates per number; with two numbers, kappa is 0.
        degrees: of freedom of the spreads; None if they are known.
    """
    numbers = np.array([point.number for point in points], dtype=float)
    rates, spreads = (np.array([getattr(point, name) for point in points]) for name in ("rate", "spread"))
    columns = [np.ones_like(numbers), numbers - 1, numbers * (numbers - 1)]
    design = np.stack(columns[: min(len(set(numbers)), _FEWEST_FOR_KAPPA)], axis=1)
    measured = numbers / rates
    curve, terms = measured, np.zeros(0)
    for _ in range(3):  # the errors are relative to the curve, which changes little
        weights = 1 / (curve * spreads)
        (terms,) = _non_negative(design * weights[:, None], (measured * weights)[None])
        curve = np.maximum(design @ terms, _LEAST_SHARE * measured)
    if terms[0] <= 0:
        return None
    left = len(points) - int((terms > 0).sum())
    squares = float((((measured - curve) * weights) ** 2).sum())
    misfit = max(1.0, math.sqrt(squares / left)) if left else 1.0
    noise = _noise((_SAMPLES, len(points)), degrees) * spreads * misfit
    drawn = measured * np.exp(np.clip(noise, -_MOST_NOISE, _MOST_NOISE))
    samples = _non_negative(design * weights[:, None], drawn * weights)
    missing = 3 - design.shape[1]
    return Fit(
        most=int(numbers.max()),
        has_kappa=not missing,
        misfit=misfit,
        terms=np.pad(terms, (0, missing)),
        samples=np.pad(samples, ((0, 0), (0, missing))),
    )


def _noise(shape: tuple[int, int], degrees: int | None) -> np.ndarray:
    """Returns standard normal samples; if their spread is itself an estimate, each row has another one."""
    generator = np.random.default_rng(0)  # equal points give equal intervals
    normal = generator.standard_normal(shape)
    return normal if degrees is None else normal * np.sqrt(degrees / generator.chisquare(degrees, (shape[0], 1)))


def _non_negative(design: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the non-negative least-squares solution for each row of targets: (rows, columns of the design)."""
    from scipy import optimize  # imported late: it takes its time

    return np.stack([optimize.nnls(design, target)[0] for target in targets])
