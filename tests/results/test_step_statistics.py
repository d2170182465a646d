from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from results.step_statistics import (
    MIN_STEPS_FOR_INTERVAL,
    _chance,
    _in_slices,
    rate,
    rate_interval,
    rate_jitter,
    rate_uncertainty,
    straggler,
)
from tests.support.rotation import rotating

Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]


def test_rate_is_images_over_time_and_not_a_mean_of_rates() -> None:
    # One step of 1 s and one of 3 s: 20 images in 4 s. The mean of the rates would be 6.67.
    assert rate([1.0, 3.0], 10) == pytest.approx(5.0)


def test_uncertainty_and_jitter_by_hand() -> None:
    seconds = [1 / 8, 1 / 10, 1 / 12, 1 / 10]  # rates 8, 10, 12, 10
    assert rate_uncertainty(seconds, 1) == pytest.approx(np.sqrt(2) / 2)
    assert rate_jitter(seconds, 1) == pytest.approx(1.4826 * 1.0)
    # Rates 6, 10 and 12: the median is 10, and the median of the distances 4, 0 and 2 is 2.
    assert rate_jitter([1 / 6, 1 / 10, 1 / 12], 1) == pytest.approx(1.4826 * 2)


def _noise(generator: np.random.Generator, correlation: float, steps: int) -> np.ndarray:
    return 0.1 * (1 + 0.05 * _autoregressive(generator, (2000, steps), correlation))


@pytest.mark.parametrize("steps", [8, 10, 20, 100])
@pytest.mark.parametrize("correlation", [0.0, 0.25, 0.5])
def test_an_interval_holds_the_true_rate_in_93_to_99_of_100_runs(steps: int, correlation: float) -> None:
    runs = _noise(np.random.default_rng(8), correlation, steps)
    bounds = np.array([rate_interval(run, 1).bounds for run in runs])
    held = np.mean((bounds[:, 0] <= 10.0) & (10.0 <= bounds[:, 1]))
    assert 0.93 <= held <= 0.99


@pytest.mark.parametrize("steps", [8, 20, 100])
def test_one_slow_step_and_a_drift_widen_an_interval(steps: int) -> None:
    still = _noise(np.random.default_rng(7), 0.0, steps)[0]
    drifts, one_is_slow = still * np.linspace(0.9, 1.1, steps), still.copy()
    one_is_slow[steps // 2] *= 3
    for seconds in (drifts, one_is_slow):
        found, of_still = (rate_interval(each, 1) for each in (seconds, still))
        assert found.log_half_width > 1.5 * of_still.log_half_width
        assert found.low < rate(seconds, 1) < found.high


def test_equal_steps_have_an_interval_of_no_width_and_too_few_have_none() -> None:
    assert rate_interval([0.1] * (MIN_STEPS_FOR_INTERVAL - 1), 4).bounds == (None, None)
    assert rate_interval([0.1] * MIN_STEPS_FOR_INTERVAL, 4).bounds == pytest.approx((40, 40))


def _error_at(correlation: float) -> float:
    return 1 / math.sqrt(8 * (1 - correlation) / (1 + correlation) - 1)


@pytest.mark.parametrize(
    ("deviations", "standard_error"),
    [
        # Autocorrelation -7/8, which no correction lifts above 0: all 8 steps count.
        ([-1, 1, -1, 1, -1, 1, -1, 1], 1 / math.sqrt(7)),
        # Autocorrelation 5/8, corrected above 1: as few steps as may count, 1.5.
        ([1, 1, 1, 1, -1, -1, -1, -1], 1 / math.sqrt(0.5)),
        # Autocorrelation 1/8, corrected by (1 + 4/8)/8, and taken 0.7 standard errors higher.
        ([1, 1, -1, -1, 1, 1, -1, -1], _error_at(1 / 8 + 1.5 / 8 + 0.7 / math.sqrt(8))),
    ],
)
def test_an_interval_by_hand(deviations: Sequence[int], standard_error: float) -> None:
    factor = math.exp(2.7764451 * standard_error / 4)  # a quantile of Student's t with 4 degrees of freedom
    found = rate_interval([4.0 + deviation for deviation in deviations], 8)
    assert (found.value, *found.bounds) == pytest.approx((2, 2 / factor, 2 * factor))


# Stragglers.


def _autoregressive(random: np.random.Generator, shape: tuple[int, int], correlation: float) -> np.ndarray:
    noise = random.standard_normal(shape)
    for step in range(1, shape[1]):
        noise[:, step] = correlation * noise[:, step - 1] + np.sqrt(1 - correlation**2) * noise[:, step]
    return noise


def _bursts(random: np.random.Generator, shape: tuple[int, int], steps: int) -> np.ndarray:
    """Disturbances that double the time of that many steps in a row, for a tenth of the time."""
    begins = random.random((shape[0], shape[1] + steps - 1)) < 0.1 / steps
    disturbed = [begins[:, before : before + shape[1]] for before in range(steps)]
    return 1 + np.any(disturbed, axis=0) + 0.05 * random.random(shape)


_NOISES = {
    "normal": lambda random, shape: np.abs(1 + 0.2 * random.standard_normal(shape)) + 1e-3,
    "lognormal": lambda random, shape: np.exp(0.3 * random.standard_normal(shape)),
    "spikes": lambda random, shape: 1 + (random.random(shape) < 0.1) * random.exponential(1, shape),
    "of all alike": lambda random, shape: (1 + random.random(shape[1])) * (1 + 0.1 * random.random(shape)),
    "autocorrelated": lambda random, shape: np.exp(0.1 * _autoregressive(random, shape, 0.5)),
    "large, autocorrelated": lambda random, shape: np.exp(0.5 * _autoregressive(random, shape, 0.6)),
    "bursts of 3": lambda random, shape: _bursts(random, shape, 3),
}
_SLOWER_NOISES = {
    "autocorrelated": lambda random, shape: np.exp(0.2 * _autoregressive(random, shape, 0.9)),
    "bursts of 10": lambda random, shape: _bursts(random, shape, 10),
}
_NOISES_AND_STEPS = [
    *((noise, steps) for noise in _NOISES.values() for steps in (10, 20, 100)),
    *((noise, steps) for noise in _SLOWER_NOISES.values() for steps in (100, 1000)),
]
_NAMES = [
    *(f"{name}, {steps}" for name in _NOISES for steps in (10, 20, 100)),
    *(f"slowly {name}, {steps}" for name in _SLOWER_NOISES for steps in (100, 1000)),
]


def in_step(seconds: Sequence[Sequence[float]], **options: float) -> tuple[int, float] | None:
    return straggler(seconds, [1.0], **options)


def apart(seconds: Sequence[Sequence[float]], window: float) -> tuple[int, float] | None:
    return straggler(seconds, [0.01, window - 0.02, 0.01], asynchronous=True)


@rotating("members", [2, 3, 8], first=1)
@pytest.mark.parametrize(("noise", "steps"), _NOISES_AND_STEPS, ids=_NAMES)
def test_of_equals_at_most_one_in_twenty_is_called_slow(noise: Noise, steps: int, members: int) -> None:
    random = np.random.default_rng(0)
    trials = 200
    named = sum(in_step(noise(random, (members, steps))) is not None for _ in range(trials))
    assert named <= 0.05 * trials


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize("noise", ["normal", "spikes", "of all alike", "autocorrelated"])
def test_the_slow_one_is_named(noise: str, members: int) -> None:
    random = np.random.default_rng(0)
    found = []
    for _ in range(50):
        seconds = _NOISES[noise](random, (members, 40))
        seconds[1] *= 1.5
        found.append(in_step(seconds))
    assert sum(one is not None and one[0] == 1 for one in found) >= 45
    assert np.median([one[1] for one in found if one]) == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(("factor", "least_ratio", "correlation"), [(1.3, 1.05, 0.3), (2.2, 2.0, 0.5)])
def test_in_twenty_steps_with_a_tenth_of_noise_the_slow_one_is_named(
    factor: float, least_ratio: float, correlation: float
) -> None:
    random = np.random.default_rng(0)
    named = 0
    for _ in range(100):
        seconds = np.exp(0.1 * _autoregressive(random, (4, 20), correlation))
        seconds[2] *= factor
        found = in_step(seconds, least_ratio=least_ratio)
        named += found is not None and found[0] == 2
    assert named >= 90


def test_one_long_step_makes_no_straggler_and_many_do() -> None:
    assert in_step([[1.0] * 20, [1.04] * 19 + [50.0]]) is None, "its mean is 3.5 x as long"
    found = in_step([[1.0] * 60, ([1.0] * 4 + [40.0]) * 12])
    assert found == (1, pytest.approx(14 ** (12 / 20))), "12 of its 20 blocks of three steps take 14 s a step"


def test_a_permanent_difference_that_is_small_is_none() -> None:
    assert in_step([[1.0] * 50, [1.04] * 50]) is None
    assert in_step([[1.0] * 50, [1.06] * 50]) == (1, pytest.approx(1.06))
    assert in_step([[1.0] * 50, [1.9] * 50], least_ratio=2.0) is None
    assert in_step([[1.0] * 50, [2.1] * 50], least_ratio=2.0) == (1, pytest.approx(2.1))


def test_a_difference_that_is_a_small_share_of_the_median_step_is_none() -> None:
    # 5 % of the median step are 0.01 s: of the largest step they would be 0.5 s.
    tenth = [[0.01] * 50, [0.019] * 50]
    assert straggler(tenth, [0.2, 0.2, 10.0]) is None
    assert straggler(tenth, [0.17, 0.17, 10.0]) == (1, pytest.approx(1.9))


def test_too_few_steps_name_no_worker() -> None:
    assert in_step([[1.0] * 6, [9.0] * 6]) is None
    assert in_step([[1.0] * 7, [9.0] * 7]) == (1, pytest.approx(9.0))
    assert in_step([]) is in_step([[1.0] * 50]) is None


def test_only_steps_that_all_have_taken_are_compared() -> None:
    assert in_step([[1.0] * 8, [], [2.0] * 8 + [900.0] * 99]) == (2, pytest.approx(2.0))


# Asynchronous stragglers have no common steps.


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_of_equal_asynchronous_members_at_most_one_in_twenty_is_called_slow(correlation: float) -> None:
    random = np.random.default_rng(0)
    named = 0
    for _ in range(200):
        ends = np.cumsum(np.exp(0.3 * _autoregressive(random, (3, 400), correlation)), axis=1)
        # Each has begun a step before the window opens at 100, and has not completed another when it closes at 200.
        within = [np.diff(own, prepend=0.0)[(own > 100) & (own <= 200)] for own in ends]
        named += apart(within, 100.0) is not None
    assert named <= 10


def test_an_asynchronous_member_with_few_steps_or_none_is_named() -> None:
    fast = [1.0] * 60
    assert apart([fast, []], 60.0) == (1, pytest.approx(60.0))
    assert apart([fast, [25.0, 25.0], fast], 60.0) == (1, pytest.approx(60 / 2.4))
    assert apart([fast, [80.0]], 60.0) == (1, pytest.approx(80.0)), "its step began before the window"
    assert apart([fast, [2.0] * 30], 60.0) == (1, pytest.approx(2.0))


def test_an_asynchronous_member_without_steps_is_named_though_another_begins_slowly() -> None:
    assert apart([[2.0] * 3 + [10.0] + [0.25] * 44, []], 27.0) == (1, pytest.approx(18.868, abs=0.001))


def test_one_pause_of_an_asynchronous_member_is_not_named() -> None:
    assert apart([[1.0] * 60, [1.0] * 20 + [20.0] + [1.0] * 20], 60.0) is None


def test_too_few_asynchronous_steps_name_no_worker() -> None:
    assert apart([[1.0] * 6, []], 6.0) is None
    assert apart([[1.0] * 7, []], 7.0) == (1, pytest.approx(7.0))
    assert apart([[], []], 7.0) is apart([[1.0] * 9], 9.0) is None


def test_of_two_slow_ones_the_slower_is_named() -> None:
    seconds = [[3.0] * 10, [2.0] * 10, *[[1.0] * 10] * 3]
    assert in_step(seconds) == (0, pytest.approx(3 / (5 / 4)))


def test_a_straggler_of_exactly_the_least_ratio_is_one() -> None:
    assert in_step([[2.0] * 10, [1.0] * 10], least_ratio=2.0) == (0, 2.0)


def test_times_in_slices_by_hand() -> None:
    # Slices of 1.25 s. Of the second member, the step that begins at 0.5 s is not completed, and counts as one.
    times = _in_slices([np.array([1.0, 1.0]), np.array([0.5])], 2.5)
    np.testing.assert_allclose(times, [[1.0, 1.25 / 1.375], [1.0, 1.25 / 0.625]])


def test_the_chance_of_a_mean_is_that_of_a_t_test_with_half_the_degrees_of_freedom() -> None:
    # Mean 1, deviations of 1, and no positive autocorrelation: t = sqrt(7). The distribution of 3 degrees is closed.
    scaled = np.sqrt(7 / 3)
    expected = 0.5 - (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi
    assert _chance(np.array([0.0, 2.0] * 4)) == pytest.approx(expected)
