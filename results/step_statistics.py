"""Rates, spreads, intervals and stragglers from step times. All times in seconds, all rates in images per second.

NumPy is imported when it is needed: half of what `--help` takes would be its import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results.intervals import Interval, t_quantile

if TYPE_CHECKING:
    import numpy as np

# Scales the median absolute deviation to the standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826
# With fewer steps, no interval that is worth its width holds the true rate in 95 % of all cases.
MIN_STEPS_FOR_INTERVAL = 8
# In standard errors of the autocorrelation. Chosen by simulation, with the degrees of freedom.
_CAUTION = 0.7
# A smaller difference between towers or workers, or one that is a smaller share of a step, is not worth a search.
LEAST_RATIO, _LEAST_SHARE_OF_STEP = 1.05, 0.05
_STRAGGLER_ERROR_RATE = 0.01
_LEAST_STEPS_OF_STRAGGLER, _MOST_BLOCKS, _LEAST_EFFECTIVE_STEPS = 7, 20, 1.5


def rate(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns all images of the steps over their total time, which is not the mean of the rates."""
    return images_per_step * len(step_seconds) / math.fsum(step_seconds)


def rate_uncertainty(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns the standard error of the mean of the per-step rates, as tf_cnn_benchmarks prints it."""
    import numpy as np

    rates = images_per_step / np.asarray(step_seconds)
    return float(np.std(rates) / np.sqrt(len(rates)))


def rate_jitter(step_seconds: Sequence[float], images_per_step: int) -> float:
    """Returns the standard deviation of the per-step rates, estimated from their median absolute deviation."""
    import numpy as np

    rates = images_per_step / np.asarray(step_seconds)
    return float(MAD_TO_SIGMA * np.median(np.abs(rates - np.median(rates))))


def rate_interval(step_seconds: Sequence[float], images_per_step: int) -> Interval:
    """Returns the rate of this process with its 95 % interval: Student's t of the mean step.

    Consecutive steps are not independent (clocks, caches and other load change slowly), so the steps count as many as
    their autocorrelation leaves. In simulations with 8 to 100 steps and an autocorrelation up to 0.5, the intervals
    hold the true rate in 93 to 99 %. Bounds are equally far on a logarithmic scale, so they are positive. They are
    unknown for fewer than MIN_STEPS_FOR_INTERVAL steps.
    """
    import numpy as np

    seconds = np.asarray(step_seconds)
    value = len(seconds) * images_per_step / float(seconds.sum())  # NumPy's sum, like that of the mean
    if len(seconds) < MIN_STEPS_FOR_INTERVAL:
        return Interval(value)
    mean = float(seconds.mean())
    quantile = t_quantile(0.975, len(seconds) / 2)
    factor = math.exp(quantile * _error_of_mean(seconds, _CAUTION) / mean)
    return Interval(value, images_per_step / mean / factor, images_per_step / mean * factor)


def straggler(
    seconds: Sequence[Sequence[float]],
    step_seconds: Sequence[float],
    *,
    asynchronous: bool = False,
    least_ratio: float = LEAST_RATIO,
) -> tuple[int, float] | None:
    """Returns the slowest and how many times as long it takes as the others; None if it may be noise.

    The ratio is the geometric mean over the steps of its time / mean of the others' times, which one long step hardly
    changes. It is a straggler if the ratio is at least `least_ratio`, if the difference is at least 5 % of the median
    step, and if a t test of the ratios' logarithms rejects that they are noise, at a nominal error rate of 1 % for all
    that could be named together. Consecutive steps are not independent: long runs are cut into 20 blocks, and the test
    counts as many independent ones as their autocorrelation leaves.

    Synchronous members are compared in the same steps, so what slows all of them does not count; those without steps
    are ignored. Asynchronous ones have no common steps, and are compared in the same slices of the measured window;
    one that completes no step takes at least the whole window for it, and is not tested if another takes 20. Both need
    7 steps.

    Args:
        seconds: of each, its steps.
        step_seconds: the measured steps of the run; they are the window of asynchronous members.
        asynchronous: whether each takes steps of its own.
        least_ratio: of a straggler.
    """
    import numpy as np

    members = [index for index, taken in enumerate(seconds) if len(taken) or asynchronous]
    taken = [np.asarray(seconds[index], dtype=float) for index in members]
    if len(members) < 2 or min((float(own.min()) for own in taken if len(own)), default=0.0) <= 0:
        return None
    times = _in_slices(taken, float(np.sum(step_seconds))) if asynchronous else _in_blocks(taken)
    least_difference = _LEAST_SHARE_OF_STEP * float(np.median(step_seconds))
    slowest = None
    for row, index in enumerate(members if len(times) >= _LEAST_STEPS_OF_STRAGGLER else ()):
        own, others = times[:, row], np.delete(times, row, axis=1).mean(axis=1)
        logs = np.log(own / others)
        ratio = math.exp(logs.mean())
        difference = (ratio - 1) * math.exp(np.log(others).mean())
        is_slower = ratio >= least_ratio and difference >= least_difference
        has_none = not len(taken[row]) and len(times) == _MOST_BLOCKS
        if is_slower and (has_none or _chance(logs) <= _STRAGGLER_ERROR_RATE / len(members)):
            slowest = max(slowest or (index, ratio), (index, ratio), key=lambda candidate: candidate[1])
    return slowest


def _in_blocks(taken: Sequence[np.ndarray]) -> np.ndarray:
    import numpy as np

    # (blocks, members), of the steps that all have taken
    steps = min(map(len, taken))
    times = np.array([steps_of_one[:steps] for steps_of_one in taken])
    return np.array([block.mean(axis=1) for block in np.array_split(times, min(steps, _MOST_BLOCKS), axis=1)])


def _in_slices(taken: Sequence[np.ndarray], window: float) -> np.ndarray:
    """Returns the time per step in equal slices of a window: (slices, members).

    A first step may have begun before the window. A last one that is not completed counts by its time so far, as at
    most one step.
    """
    import numpy as np

    slices = min(_MOST_BLOCKS, max(map(len, taken)))
    bounds = np.linspace(0.0, window, slices + 1)
    times = []
    for steps_of_one in taken:
        missing = window - float(steps_of_one.sum())
        progress = np.arange(len(steps_of_one) + 1.0)
        ends = min(0.0, missing) + np.concatenate([[0.0], np.cumsum(steps_of_one)])
        if missing > 0:
            last = min(1.0, missing / float(steps_of_one.mean())) if len(steps_of_one) else 1.0
            progress, ends = np.append(progress, len(steps_of_one) + last), np.append(ends, window)
        times.append(window / slices / np.diff(np.interp(bounds, ends, progress)))
    return np.array(times).T


def _chance(differences: np.ndarray) -> float:
    """Returns how often noise with this autocorrelation has at least this mean: a t test of the effective sample.

    Degrees of freedom are half the sample's, since the autocorrelation is an estimate.
    """
    from scipy import special

    mean = float(differences.mean())
    standard_error = _error_of_mean(differences)
    if not standard_error:
        return 0.0 if mean > 0 else 1.0
    return float(special.stdtr(len(differences) / 2 - 1, -mean / standard_error))


def _error_of_mean(values: np.ndarray, caution: float = 0.0) -> float:
    """Returns the standard error of the mean of a series; 0 if its values are equal but for rounding.

    The first autocorrelation decides how many independent values it is worth. It is corrected for its bias in short
    series (source: Marriott and Pope 1954, "Bias in the estimation of autocorrelations"), and taken `caution` of its
    standard errors, 1/sqrt(n), higher: too low a guess makes an interval too narrow.
    """
    count, mean = len(values), float(values.mean())
    rest = values - mean
    squares = float(rest @ rest)
    if squares <= 1e-18 * count * mean**2:
        return 0.0
    correlation = float(rest[1:] @ rest[:-1]) / squares
    correlation = max(0.0, correlation + (1 + 4 * correlation) / count + caution / math.sqrt(count))
    effective = max(_LEAST_EFFECTIVE_STEPS, count * (1 - correlation) / (1 + correlation))
    return math.sqrt(squares / count / (effective - 1))
