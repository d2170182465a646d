"""Which of several towers or workers is slower than the others by more than the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# A smaller difference is not worth a search for its cause.
_LEAST_RATIO = 1.05
_ERROR_RATE = 0.02


def straggler(seconds: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Returns the slowest and how many times as long it takes as the others; None if it may be noise.

    Each is compared with the others in the same steps, so what slows all of them does not count. It is a straggler if
    it takes at least 5 % longer than their mean, and an exact sign-flip test rejects that the difference is
    noise, at an error rate of 2 % for all that could be named together. Consecutive steps are not independent: long
    runs are cut into as few blocks as the test needs, and each block counts as one step, that of its medians.

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
    blocks = min(steps, 2 + math.ceil(math.log2(len(members) / _ERROR_RATE)))
    medians = np.array([np.median(block, axis=1) for block in np.array_split(times, blocks, axis=1)])
    found = None
    for row, index in enumerate(members):
        own, others = medians[:, row], np.delete(medians, row, axis=1).mean(axis=1)
        ratio = float(own.mean() / others.mean())
        is_slower = ratio >= _LEAST_RATIO and _chance(own - others) <= _ERROR_RATE / len(members)
        if is_slower and (found is None or ratio > found[1]):
            found = (index, ratio)
    return found


def _chance(differences: np.ndarray) -> float:
    """Returns how often the mean is at least as large if each difference had either sign with equal chance."""
    count = len(differences)
    signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
    means = signs @ differences
    return float(np.mean(means >= means[0] - 1e-12 * abs(means[0])))
