"""Rates, spreads, intervals and stragglers from step times. All times in seconds, all rates in images per second."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# Fewer steps do not give a meaningful interval.
MIN_STEPS_FOR_INTERVAL = 5
_BOOTSTRAP_SAMPLES = 2000
# A smaller difference between towers or workers is not worth a search for its cause.
_LEAST_RATIO = 1.05
_STRAGGLER_ERROR_RATE = 0.02


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


def straggler(seconds: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Returns the slowest and how many times as long it takes as the others; None if it may be noise.

    Each is compared with the others in the same steps, so what slows all of them does not count. It is a straggler if
    it takes at least 5 % longer than their mean, and an exact sign-flip test rejects that the difference is
    noise, at an error rate of 2 % for all that could be named together. Consecutive steps are not independent: long
    runs are cut into as few blocks as the test needs, and the mean of each counts as one step.

    Two need 7 steps, eight need 9. A difference that lasts for the whole measurement is not told from a permanent one.

    Args:
        seconds: of each, the steps. Only steps that all have taken are compared; what has no steps is left out.
    """
    members = [index for index, taken in enumerate(seconds) if len(taken)]
    steps = min((len(seconds[index]) for index in members), default=0)
    if len(members) < 2 or not steps:
        return None
    times = np.array([list(seconds[index])[:steps] for index in members], dtype=float)
    if times.min() <= 0:
        return None
    blocks = min(steps, 2 + math.ceil(math.log2(len(members) / _STRAGGLER_ERROR_RATE)))
    means = np.array([block.mean(axis=1) for block in np.array_split(times, blocks, axis=1)])
    found = None
    for row, index in enumerate(members):
        own, others = means[:, row], np.delete(means, row, axis=1).mean(axis=1)
        ratio = float(own.mean() / others.mean())
        is_slower = ratio >= _LEAST_RATIO and _chance(own - others) <= _STRAGGLER_ERROR_RATE / len(members)
        if is_slower and (found is None or ratio > found[1]):
            found = (index, ratio)
    return found


def _chance(differences: np.ndarray) -> float:
    """Returns how often the mean is at least as large if each difference had either sign with equal chance."""
    count = len(differences)
    signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    means = signs @ differences
    return float(np.mean(means >= means[0] - 1e-12 * abs(means[0])))
