"""The fitted law: exact points, simulated noise with known parameters, and points that show little."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results.intervals import Interval
from results.report import scaling_law
from results.report.scaling_law import Fit, Point


def law(number: float, sigma: float, kappa: float, one: float = 100.0) -> float:
    """The rate by the law, written out once more."""
    return one * number / (1 + sigma * (number - 1) + kappa * number * (number - 1))


def points(*numbers: int, sigma: float = 0.0, kappa: float = 0.0, spread: float = 1e-9) -> list[Point]:
    return [Point(number, law(number, sigma, kappa), spread) for number in numbers]


@pytest.mark.parametrize(("sigma", "kappa"), [(0.05, 0.002), (0.2, 0.0), (0.0, 0.01), (0.0, 0.0)])
@pytest.mark.parametrize("numbers", [(1, 2, 4), (1, 2, 4, 8, 16), (2, 3, 7)])
def test_points_without_noise_give_their_parameters_back(sigma: float, kappa: float, numbers: tuple[int, ...]) -> None:
    fit = scaling_law.fit(points(*numbers, sigma=sigma, kappa=kappa))
    assert fit.sigma.value == pytest.approx(sigma, abs=1e-9)
    assert fit.kappa.value == pytest.approx(kappa, abs=1e-9)
    assert fit.rate(1).value == pytest.approx(100)
    assert fit.rate(32).value == pytest.approx(law(32, sigma, kappa))
    assert fit.efficiency(32).value == pytest.approx(law(32, sigma, kappa) / 3200)
    assert fit.misfit == 1 and fit.has_kappa


def test_where_half_is_lost_and_where_the_rate_falls_by_hand() -> None:
    # 1 + 0.1 (n - 1) + 0.01 n (n - 1) = 2 where n^2 + 9 n - 110 = 0; the rate is highest at sqrt(0.9 / 0.01).
    fit = scaling_law.fit(points(1, 2, 4, 8, sigma=0.1, kappa=0.01))
    assert fit.half_efficient.value == pytest.approx((-9 + math.sqrt(81 + 440)) / 2)
    assert fit.fastest.value == pytest.approx(math.sqrt(90))
    assert law(9.5, 0.1, 0.01) > max(law(8.5, 0.1, 0.01), law(10.5, 0.1, 0.01))
    amdahl = scaling_law.fit(points(1, 2, 4, sigma=0.1))
    assert amdahl.half_efficient.value == pytest.approx(11), "1 + 0.1 (n - 1) = 2"
    assert amdahl.fastest.value > 1e4
    ideal = scaling_law.fit(points(1, 2))
    assert ideal.half_efficient.value > 1e6 and ideal.fastest == Interval(math.inf, math.inf, math.inf)


def test_a_rate_that_falls_from_the_second_device_on_is_highest_with_one() -> None:
    falling = scaling_law.fit([Point(1, 100.0, 0.01), Point(2, 80.0, 0.01)])
    assert falling.sigma.value == pytest.approx(1.5)
    assert falling.fastest.value == 1


@pytest.mark.parametrize(
    ("sigma", "kappa", "numbers", "noise"),
    [(0.05, 0.002, (1, 2, 4, 8), 0.03), (0.05, 0.0, (1, 2, 4, 8), 0.02), (0.0, 0.004, (1, 2, 4), 0.05)],
)
def test_intervals_hold_the_truth_in_95_of_100_trials(
    sigma: float, kappa: float, numbers: tuple[int, ...], noise: float
) -> None:
    trials, repeats, twice = 200, 3, 2 * max(numbers)
    truth = {
        "sigma": sigma,
        "kappa": kappa,
        "rate": law(twice, sigma, kappa),
        "efficiency": law(2 * twice, sigma, kappa) / (200 * twice),
    }
    hits = dict.fromkeys(truth, 0)
    generator = np.random.default_rng(5)
    rates = np.array([law(number, sigma, kappa) for number in numbers])
    logs = np.log(rates)[:, None] + noise * generator.standard_normal((trials, len(numbers), repeats))
    spreads = np.sqrt(logs.var(axis=2, ddof=1).mean(axis=1) / repeats)
    for means, spread in zip(np.exp(logs.mean(axis=2)), spreads, strict=True):
        measured = [Point(number, float(rate), float(spread)) for number, rate in zip(numbers, means, strict=True)]
        fit = scaling_law.fit(measured, degrees=len(numbers) * (repeats - 1))
        found = (fit.sigma, fit.kappa, fit.rate(twice), fit.efficiency(2 * twice))
        for name, one in zip(truth, found, strict=True):
            hits[name] += one.low <= truth[name] <= one.high
    at_bound = {name for name in ("sigma", "kappa") if truth[name] == 0}
    for name, count in hits.items():
        assert 0.88 * trials <= count, name
        assert count <= 0.995 * trials or name in at_bound, f"{name}: the intervals are too wide"


def test_few_repeats_make_wider_intervals_than_a_known_spread() -> None:
    measured = points(1, 2, 4, 8, sigma=0.05, spread=0.01)
    known, estimated = scaling_law.fit(measured), scaling_law.fit(measured, degrees=2)
    assert _width(estimated.sigma) > 1.5 * _width(known.sigma)
    assert _width(scaling_law.fit(points(1, 2, 4, 8, sigma=0.05, spread=0.02)).sigma) > 1.5 * _width(known.sigma)
    assert scaling_law.fit(measured).rate(16) == known.rate(16), "equal points have equal intervals"


def _width(one: Interval) -> float:
    return one.high - one.low


def test_an_uncertain_point_counts_less() -> None:
    exact = points(1, 2, 4, 8, sigma=0.1, spread=0.001)
    wrong = [*exact, Point(16, 10 * law(16, 0.1, 0.0), 3.0)]
    assert scaling_law.fit(wrong).sigma.value == pytest.approx(0.1, rel=1e-3)


def test_the_farther_the_less_sure() -> None:
    fit = scaling_law.fit(points(1, 2, 4, 8, sigma=0.05, kappa=0.001, spread=0.01))
    widths = [_width(fit.efficiency(number)) for number in (8, 16, 32)]
    assert widths == sorted(widths)
    assert fit.most == 8


def test_faster_than_linear_is_a_straight_line_that_is_known_to_be_wrong() -> None:
    fit = scaling_law.fit([Point(n, 100.0 * n**1.2, 0.01) for n in (1, 2, 4, 8)])
    assert (fit.sigma.value, fit.kappa.value) == (0, 0)
    assert fit.misfit > 5
    assert fit.efficiency(16).value == 1
    assert fit.rate(1).low < 100 * 8**0.2 and fit.rate(1).high > 130, "the spreads are widened by the misfit"


def test_two_points_determine_sigma_alone() -> None:
    fit = scaling_law.fit(points(1, 4, sigma=0.1, kappa=0.01))
    assert not fit.has_kappa
    assert fit.kappa == Interval(0, 0, 0)
    assert fit.sigma.value == pytest.approx(0.1 + 4 * 0.01), "what kappa costs with 4 devices"
    same = scaling_law.fit([*points(1, 4, sigma=0.1), *points(4, sigma=0.1)])
    assert not same.has_kappa, "two different numbers"


def test_an_estimate_holds_its_value() -> None:
    odd = Fit(
        most=2, has_kappa=False, misfit=1.0, terms=np.array([1.0, 0.0, 0.0]), samples=np.tile([1.0, 0.1, 0], (9, 1))
    )
    assert odd.sigma == Interval(0.0, 0.0, 0.1)
