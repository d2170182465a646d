"""How often the check against stored sessions is wrong, and what it says; simulated with the rule itself, seeded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from results.gate.baseline_check import FEWEST_SESSIONS, SessionLimits
from results.gate.findings import Verdict

CHECKS = 2000
# Of a session's variance, four fifths are common to its rounds; the rest is what the median of three rounds leaves.
SHARED, OWN = 0.9, 0.65
# 1.4826 MAD of Student's distribution with 2 degrees, which has no variance.
T2_SIGMA = 1.4826 * 0.8165


def draws(generator: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws what sessions differ by, with a spread of 1."""
    if kind == "heavy tails":
        return generator.standard_t(2, shape) / T2_SIGMA
    normal = generator.normal(size=shape)
    if kind == "two modes":
        return generator.choice([-1.0, 1.0], shape) * math.sqrt(0.9) + normal * math.sqrt(0.1)
    return normal


def simulate(
    kind: str, noise: float, stored: int, *, drop: float = 0.0, steps: Sequence[float] = (0.0,), checks: int = CHECKS
) -> Counter[Verdict]:
    """Counts verdicts of checks of three rounds; `steps` are log levels of the stored sessions."""
    generator = np.random.default_rng([stored, round(1000 * noise), len(kind)])
    levels = SHARED * noise * draws(generator, kind, (checks, stored + 1, 1))
    logs = levels + OWN * noise * generator.normal(size=(checks, stored + 1, 3))
    past = np.exp(np.median(logs[:, :-1], axis=2) + np.resize(steps, stored)).tolist()
    today = (np.exp(logs[:, -1]) * (1 - drop)).tolist()
    judges = [SessionLimits(rates) for rates in past]
    return Counter(
        judge.judge(rates, threshold=judge.threshold).verdict for judge, rates in zip(judges, today, strict=True)
    )


@pytest.mark.parametrize("stored", [5, 10, 20])
@pytest.mark.parametrize(
    ("kind", "noise", "most"),
    [
        ("normal", 0.01, 0.001),
        ("normal", 0.03, 0.01),
        ("two modes", 0.01, 0.001),
        ("two modes", 0.03, 0.01),
        ("heavy tails", 0.01, 0.012),
        # One in a hundred of such sessions is 17 % slower, which a rule that finds 10 % at a noise of 2 % must believe.
        ("heavy tails", 0.03, 0.03),
    ],
)
def test_false_alarms_are_rare(kind: str, noise: float, most: float, stored: int) -> None:
    found = simulate(kind, noise, stored)
    assert found[Verdict.REGRESSED] <= most * CHECKS
    assert found[Verdict.IMPROVED] <= most * CHECKS


@pytest.mark.parametrize("stored", [5, 10, 20])
def test_a_second_session_today_makes_false_alarms_rare_with_heavy_tails(stored: int) -> None:
    generator = np.random.default_rng(stored)
    levels = SHARED * 0.03 * draws(generator, "heavy tails", (CHECKS, stored + 2, 1))
    logs = levels + OWN * 0.03 * generator.normal(size=(CHECKS, stored + 2, 3))
    past, today = np.exp(np.median(logs[:, :-2], axis=2)).tolist(), np.exp(logs[:, -2:].reshape(CHECKS, 6)).tolist()
    judges = [SessionLimits(rates) for rates in past]
    found = [judge.judge(rates, threshold=judge.threshold) for judge, rates in zip(judges, today, strict=True)]
    assert sum(decision.verdict is Verdict.REGRESSED for decision in found) <= 0.01 * CHECKS


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_an_old_step_up_raises_no_alarm_and_one_down_few(noise: float) -> None:
    slower = [math.log(0.94)] * 10 + [0.0] * 10
    assert simulate("normal", noise, 20, steps=slower)[Verdict.REGRESSED] <= 0.002 * CHECKS
    # A drop that was accepted: the last ten sessions were as slow as today.
    assert simulate("normal", noise, 20, steps=slower[::-1], drop=0.06)[Verdict.REGRESSED] <= 0.01 * CHECKS


@pytest.mark.parametrize(("noise", "stored", "least"), [(0.01, 5, 0.99), (0.02, 10, 0.95), (0.02, 20, 0.95)])
def test_a_drop_of_ten_percent_is_found(noise: float, stored: int, least: float) -> None:
    assert simulate("normal", noise, stored, drop=0.1)[Verdict.REGRESSED] >= least * CHECKS


def test_a_machine_of_one_percent_noise_is_mostly_told_to_be_unchanged() -> None:
    assert simulate("normal", 0.01, 10)[Verdict.UNCHANGED] >= 0.8 * CHECKS


def test_a_drop_of_the_threshold_is_rarely_called_unchanged() -> None:
    assert simulate("normal", 0.01, 10, drop=0.05)[Verdict.UNCHANGED] <= 0.025 * CHECKS


def test_the_smallest_drop_would_have_been_found() -> None:
    generator = np.random.default_rng(7)
    found = 0
    for _ in range(500):
        rates = np.exp(0.02 * generator.normal(size=11))
        judge = SessionLimits(rates[:10].tolist())
        smallest = judge.judge([1.0, 1.0], threshold=0.05).smallest_drop
        assert smallest is not None
        today = rates[10] * (1 - smallest)
        found += judge.judge([today, today, today], threshold=0.05).verdict is Verdict.REGRESSED
    assert found >= 0.93 * 500


QUIET = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 100.2]


@pytest.mark.parametrize("change", [-0.1, 0.1])
def test_a_clear_change_has_a_verdict_an_interval_and_numbers_in_its_reason(change: float) -> None:
    decision = SessionLimits(QUIET).judge([100 * (1 + change)] * 3, threshold=0.05)
    assert decision.verdict is (Verdict.REGRESSED if change < 0 else Verdict.IMPROVED)
    assert decision.change.value == pytest.approx(change)
    assert decision.change.low < change < decision.change.high
    assert f"10.0 % {'slower' if change < 0 else 'faster'} than the median of 7 stored sessions" in decision.reason
    assert "99 % bound" in decision.reason and "The threshold is 5 %." in decision.reason


def test_a_drop_below_the_threshold_is_no_regression() -> None:
    assert SessionLimits(QUIET).judge([96.0] * 3, threshold=0.05).verdict is not Verdict.REGRESSED
    assert SessionLimits(QUIET).judge([96.0] * 3, threshold=0.03).verdict is Verdict.REGRESSED


def test_equal_sessions_do_not_make_a_hair_a_change() -> None:
    decision = SessionLimits([100.0] * 20).judge([99.5] * 3, threshold=0.001)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert SessionLimits([100.0] * 20).judge([97.0] * 3, threshold=0.001).verdict is Verdict.REGRESSED


def test_one_half_of_the_rounds_is_no_regression() -> None:
    decision = SessionLimits(QUIET).judge([100.0, 100.0, 90.0, 90.0, 90.0], threshold=0.05)
    assert decision.verdict is Verdict.INCONCLUSIVE and decision.is_suspect
    assert "do not agree" in decision.reason


def test_nothing_repeats_a_single_round() -> None:
    decision = SessionLimits(QUIET).judge([80.0], threshold=0.05)
    assert decision.verdict is Verdict.INCONCLUSIVE and decision.is_suspect
    assert "a single run is not repeated" in decision.reason
    assert SessionLimits(QUIET).judge([100.0], threshold=0.05).verdict is Verdict.UNCHANGED


@pytest.mark.parametrize("stored", range(FEWEST_SESSIONS))
def test_too_few_sessions_are_counted_and_what_is_missing_is_said(stored: int) -> None:
    decision = SessionLimits([100.0] * stored).judge([50.0] * 3, threshold=0.05)
    assert decision.verdict is Verdict.INCONCLUSIVE and decision.smallest_drop is None
    assert (
        f" {stored} other stored session" in decision.reason
        and f"store {FEWEST_SESSIONS - stored} more" in decision.reason
    )
    assert (decision.change and decision.change.value) == (pytest.approx(-0.5) if stored else None)


def test_noise_that_hides_a_drop_is_said_with_the_smallest_that_it_does_not() -> None:
    noisy = [100.0, 110.0, 91.0, 105.0, 95.0, 112.0, 90.0]
    decision = SessionLimits(noisy).judge([93.0] * 3, threshold=0.05)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.smallest_drop is not None and f"{100 * decision.smallest_drop:.1f} %" in decision.reason


def test_a_session_that_strayed_as_far_before_makes_it_no_news() -> None:
    assert SessionLimits([*QUIET, 88.0]).judge([88.0] * 3, threshold=0.05).verdict is Verdict.INCONCLUSIVE
    assert SessionLimits([*QUIET, 88.0]).judge([80.0] * 3, threshold=0.05).verdict is Verdict.REGRESSED


def test_the_threshold_is_five_percent_or_twice_the_noise() -> None:
    assert SessionLimits(QUIET).threshold == 0.05
    assert SessionLimits([100.0] * 3).threshold == 0.05
    noisy = SessionLimits([100.0, 110.0, 91.0, 105.0, 95.0, 112.0, 90.0])
    assert noisy.threshold == pytest.approx(2 * noisy.noise) and noisy.threshold > 0.05
    assert SessionLimits([100.0, 10.0, 1000.0] * 2).threshold == 0.9
