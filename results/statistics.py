"""Rates, spreads and intervals from step times. All times in seconds, all rates in images per second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# Fewer steps do not give a meaningful interval.
MIN_STEPS_FOR_INTERVAL = 5
_BOOTSTRAP_SAMPLES = 2000


def rate(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns all images of the steps over their total time, which is not the mean of the rates."""
    return len(step_seconds) * images_per_step / float(np.sum(step_seconds))


def rate_uncertainty(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns the standard error of the mean of the per-step rates, as tf_cnn_benchmarks prints it."""
    rates = images_per_step / np.asarray(step_seconds)
    return float(np.std(rates) / np.sqrt(len(rates)))


def rate_jitter(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns the standard deviation of the per-step rates, estimated from their median absolute deviation."""
    rates = images_per_step / np.asarray(step_seconds)
    return float(MAD_TO_SIGMA * np.median(np.abs(rates - np.median(rates))))


def rate_interval(
    step_seconds: Sequence[float], images_per_step: int, *, confidence: float = 0.95
) -> tuple[float, float] | tuple[None, None]:
    """Returns a confidence interval of the rate by a circular block bootstrap.

    Consecutive steps are not independent (clocks, caches and other load change slowly), so blocks of n^(1/3) steps are
    drawn. Source: Politis and Romano 1992, "A circular block-resampling procedure for stationary data". The seed is
    fixed: equal steps give equal intervals.

    Returns:
        The lower and upper bound; (None, None) for fewer than MIN_STEPS_FOR_INTERVAL steps.
    """
    seconds = np.asarray(step_seconds)
    steps = len(seconds)
    if steps < MIN_STEPS_FOR_INTERVAL:
        return None, None
    length = round(steps ** (1 / 3))
    # The sum over the block that starts at i, running on from the last step to the first.
    block_sums = np.convolve(np.concatenate([seconds, seconds[: length - 1]]), np.ones(length), mode="valid")
    generator = np.random.default_rng(0)
    starts = generator.integers(steps, size=(_BOOTSTRAP_SAMPLES, -(-steps // length)))
    mean_step_seconds = block_sums[starts].sum(axis=1) / (starts.shape[1] * length)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(images_per_step / mean_step_seconds, (tail, 100 - tail))
    return float(low), float(high)
