from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results.gate.decision import in_words, judge, judge_apart
from results.gate.findings import Decision, Verdict

L = -math.log(0.95)
PASSES = (Verdict.UNCHANGED, Verdict.IMPROVED)
MIRRORED = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}

# Rounds as a quiet, a noisy or a broken machine makes them, around some true change.
log_ratios = st.builds(
    lambda center, spread, noise: [center + spread * value for value in noise],
    st.floats(-0.3, 0.3),
    st.sampled_from([0.0, 0.001, 0.02, 0.3]),
    st.lists(st.floats(-1, 1), min_size=2, max_size=15),
)
thresholds = st.sampled_from([0.01, 0.05, 0.1])


def paired(logs: list[float], threshold: float = 0.05) -> Decision:
    return judge(logs, threshold=threshold, fresh=len(logs) // 2)


def around(center: float, spread: float = 0.01) -> list[float]:
    return [center + spread * off for off in (-1, 1, 0.5, -0.5, 1, -1, -0.5, 0.5)]


@pytest.mark.parametrize(
    ("center", "verdict"),
    [
        (-0.08, Verdict.REGRESSED),
        (0.08, Verdict.IMPROVED),
        (0.0, Verdict.UNCHANGED),
        (-0.02, Verdict.UNCHANGED),
        (-0.045, Verdict.INCONCLUSIVE),
    ],
)
def test_clear_cases(center: float, verdict: Verdict) -> None:
    decision = paired(around(center))
    assert decision.verdict is verdict
    assert decision.change.value == pytest.approx(math.expm1(center))
    assert not decision.is_suspect


def test_the_interval_is_students() -> None:
    decision = paired([-0.01, 0.01, 0.03])  # mean 0.01, standard deviation 0.02, t(2) 4.3027
    half = 4.3027 * 0.02 / math.sqrt(3)
    assert decision.change.low == pytest.approx(math.expm1(0.01 - half), abs=1e-5)
    assert decision.change.high == pytest.approx(math.expm1(0.01 + half), abs=1e-5)


def test_a_drop_of_exactly_the_threshold_counts() -> None:
    for rate in range(1, 200):
        for slower, verdict in ((0.95 * rate, Verdict.REGRESSED), (0.951 * rate, Verdict.UNCHANGED)):
            assert paired([math.log(slower) - math.log(rate)] * 6).verdict is verdict


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_change_that_fresh_rounds_do_not_repeat_is_only_suspect(sign: int) -> None:
    logs = [sign * value for value in (0.1, 0.11, 0.1, 0.11, 0.1, 0.04, 0.045)]
    assert judge(logs, threshold=0.05, fresh=6).verdict is not Verdict.INCONCLUSIVE
    decision = judge(logs, threshold=0.05, fresh=2)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.is_suspect
    assert "the last 2 repeats alone did not" in decision.reason


def test_without_fresh_rounds_nothing_has_regressed() -> None:
    decision = judge(around(-0.2), threshold=0.05, fresh=0)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.is_suspect
    assert "no repeats were left to confirm it" in decision.reason


def test_apart_each_half_must_show_the_drop() -> None:
    base = around(0.0)
    assert judge_apart(base, around(-0.08), threshold=0.05).verdict is Verdict.REGRESSED
    for early, late in ((-0.04, -0.12), (-0.12, -0.04)):
        candidate = around(early)[:4] + around(late)[4:]
        decision = judge_apart(base, candidate, threshold=0.05)
        assert decision.is_suspect
        assert decision.verdict is Verdict.INCONCLUSIVE


def test_fewer_than_two_rounds_decide_nothing() -> None:
    none, one = (judge(logs, threshold=0.05, fresh=len(logs)) for logs in ([], [-0.2]))
    assert none.verdict is one.verdict is Verdict.INCONCLUSIVE
    assert none.smallest_drop is one.smallest_drop is none.change is None
    assert one.change.value == math.expm1(-0.2) and not one.change.is_known
    assert none.reason == one.reason == "Fewer than two repeats of both sides decide nothing. Run at least 5."


@given(log_ratios, thresholds, st.data())
def test_a_slower_candidate_never_makes_a_pass_of_a_regression(
    logs: list[float], threshold: float, data: st.DataObject
) -> None:
    slower = [log - data.draw(st.floats(0, 0.5)) for log in logs]
    if paired(logs, threshold).verdict is Verdict.REGRESSED:
        assert paired(slower, threshold).verdict not in PASSES
    base = [0.001 * number for number in range(len(logs))]
    if judge_apart(base, logs, threshold=threshold).verdict is Verdict.REGRESSED:
        assert judge_apart(base, slower, threshold=threshold).verdict not in PASSES


@given(log_ratios, thresholds, st.floats(0, 0.5))
def test_a_candidate_slower_throughout_stays_regressed(logs: list[float], threshold: float, by: float) -> None:
    if paired(logs, threshold).verdict is Verdict.REGRESSED:
        assert paired([log - by for log in logs], threshold).verdict is Verdict.REGRESSED


@given(log_ratios, thresholds)
def test_swapped_sides_mirror_the_decision(logs: list[float], threshold: float) -> None:
    base = [0.002 * (number % 3) for number in range(len(logs))]
    for one, other in (
        (paired(logs, threshold), paired([-log for log in logs], threshold)),
        (judge_apart(base, logs, threshold=threshold), judge_apart(logs, base, threshold=threshold)),
    ):
        assert other.verdict is MIRRORED.get(one.verdict, one.verdict)
        assert other.is_suspect == one.is_suspect
        assert 1 + other.change.value == pytest.approx(1 / (1 + one.change.value))
        assert 1 + other.change.high == pytest.approx(1 / (1 + one.change.low))
        assert other.smallest_drop == pytest.approx(one.smallest_drop)


@given(log_ratios, thresholds)
def test_a_verdict_fits_its_interval(logs: list[float], threshold: float) -> None:
    decision = paired(logs, threshold)
    assert decision.change.low <= decision.change.value <= decision.change.high
    assert threshold - 1e-9 <= decision.smallest_drop <= 1
    if decision.verdict is Verdict.REGRESSED:
        assert decision.change.high < 0 and decision.change.value <= -threshold + 1e-8
    if decision.verdict is Verdict.UNCHANGED:
        assert -threshold < decision.change.low and decision.change.high < 1 / (1 - threshold) - 1


@pytest.mark.parametrize(("noise", "rounds"), [(0.01, 3), (0.03, 6), (0.03, 15)])
def test_the_smallest_drop_is_found_in_95_of_100_cases(noise: float, rounds: int) -> None:
    generator = np.random.default_rng(rounds)
    seen = generator.standard_normal((1000, rounds)) * noise * math.sqrt(2)
    typical = seen[0] / np.std(seen[0], ddof=1) * noise * math.sqrt(2)
    smallest = paired(list(typical)).smallest_drop
    for share, low, high in ((1.0, 0.93, 0.985), (0.85, 0.0, 0.93)):
        drop = math.log1p(-share * smallest)
        found = np.mean([paired(list(row + drop)).verdict is Verdict.REGRESSED for row in seen])
        assert low <= found <= high


# By hand, or by scipy.stats, which the product does not use.


def numbers(reason: str) -> list[str]:
    return re.findall(r"[\d.]+ %(?: slower| faster)?", reason)


UNEVEN = [-0.1, -0.1, -0.07, -0.045, -0.045]  # means of the halves -0.09 and -0.045


@pytest.mark.parametrize(("base", "candidate"), [([0.0, 0.03], [0.01, 0.06, 0.05]), ([0.0] * 5, UNEVEN)])
def test_bounds_apart_are_those_of_welchs_test(base: list[float], candidate: list[float]) -> None:
    decision = judge_apart(base, candidate, threshold=0.05)
    welch = stats.ttest_ind(candidate, base, equal_var=False)
    low, high = welch.confidence_interval(0.95)
    assert decision.change.bounds == pytest.approx((math.expm1(low), math.expm1(high)))
    assert decision.change.value == pytest.approx(math.expm1(np.mean(candidate) - np.mean(base)))


@pytest.mark.parametrize("rounds", [2, 3])
def test_equal_rounds_apart_have_an_interval_of_no_width(rounds: int) -> None:
    decision = judge_apart([0.125] * rounds, [0.0] * rounds, threshold=0.05)
    assert decision.verdict is Verdict.REGRESSED
    assert decision.change.low == decision.change.value == decision.change.high == math.expm1(-0.125)
    assert decision.smallest_drop == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("logs", "quantile", "error"),
    [
        # Of 8 rounds: standard deviation 0.0084515, of a mean over 4 of them 0.0042258; t(7) 1.8946 in 95 % of cases.
        (around(0.0), 1.894579, 0.0042257713),
        # Of 3 rounds: standard deviation 0.001, and a half has one of them; t(2) is 2.9200.
        ([0.0, 0.001, 0.002], 2.919986, 0.001),
    ],
)
@pytest.mark.parametrize("fresh", [0, 1, 4])
def test_the_smallest_drop_of_quiet_rounds_must_repeat(
    logs: list[float], quantile: float, error: float, fresh: int
) -> None:
    smallest = judge(logs, threshold=0.05, fresh=fresh).smallest_drop
    assert smallest == pytest.approx(-math.expm1(-(L + quantile * error)))


def test_the_smallest_drop_apart_must_repeat_in_both_halves() -> None:
    # Half of the 5 % for each of the two halves, of 1 of the 3 rounds and of 2 of the 4.
    base, candidate = [0.0, 0.001, 0.002], [0.0, 0.002, 0.004, 0.006]
    again_error = math.sqrt(np.var(base, ddof=1) / 1 + np.var(candidate, ddof=1) / 2)
    quantile = stats.t.ppf(0.975, stats.ttest_ind(candidate, base, equal_var=False).df)
    smallest = judge_apart(base, candidate, threshold=0.05).smallest_drop
    assert smallest == pytest.approx(-math.expm1(-(L + quantile * again_error)))


def test_the_smallest_drop_of_noisy_rounds_must_exceed_its_bound() -> None:
    smallest = paired(around(0.0, spread=0.2)).smallest_drop
    errors = -math.log1p(-smallest) / (0.2 * 0.84515425 / math.sqrt(8))
    assert stats.nct.sf(stats.t.ppf(0.99, 7), 7, errors) == pytest.approx(0.95, abs=1e-6)


def test_a_bound_excludes_99_of_100_cases() -> None:
    # Standard error 0.01 and t(1) 31.8205: the bound is 0.318205 from the mean.
    for center, verdict in ((-0.3183, Verdict.REGRESSED), (-0.3181, Verdict.INCONCLUSIVE)):
        assert judge([center - 0.01, center + 0.01], threshold=0.05, fresh=1).verdict is verdict
    # Of a tenth of the error 0.0318205, which leaves 0.0194728 to the threshold.
    for center, verdict in ((-0.0194, Verdict.UNCHANGED), (-0.0195, Verdict.INCONCLUSIVE)):
        assert judge([center - 0.001, center + 0.001], threshold=0.05, fresh=1).verdict is verdict


def test_a_reason_gives_change_interval_repetition_and_threshold() -> None:
    regressed = judge([-0.1, -0.1, -0.11, -0.15], threshold=0.05, fresh=2).reason
    assert numbers(regressed)[0] == "10.9 % slower" and numbers(regressed)[-2:] == ["12.2 % slower", "5 %"]
    assert "over 4 repeats" in regressed and "and the last 2 repeats alone showed" in regressed
    assert "and the last repeat alone showed" in judge([-0.1] * 4, threshold=0.05, fresh=1).reason
    noisy = [-0.01, 0.01, 0.03]
    unchanged = judge(noisy, threshold=0.2, fresh=0).reason
    assert numbers(unchanged) == ["1.0 % faster", "95 %", "3.9 % slower", "6.1 % faster", "99 %", "20 %"]
    decision = judge(noisy, threshold=0.05, fresh=0)
    assert decision.verdict is Verdict.INCONCLUSIVE
    smallest = f"{100 * decision.smallest_drop:.1f} %"
    assert numbers(decision.reason) == ["1.0 % faster", "95 %", "3.9 % slower", "6.1 % faster", "5 %", smallest]


def test_a_reason_gives_the_halves_that_do_not_repeat_a_change() -> None:
    decision = judge_apart([0.0] * 5, UNEVEN, threshold=0.05)
    assert decision.is_suspect
    assert "but the earlier and the later half of them did not" in decision.reason
    assert decision.reason.endswith("threshold of 5 % again: 8.6 % slower and 4.4 % slower.")
    assert "over 2 repeats" in judge_apart([0.0, 0.03, 0.01], [0.01, 0.06], threshold=0.05).reason, "the fewer of them"


def test_no_change_is_not_slower() -> None:
    assert [in_words(change) for change in (0.0, -0.071, 0.5)] == ["0.0 % faster", "7.1 % slower", "50.0 % faster"]


def test_the_end_of_an_interval_that_no_float_can_hold_is_cut_off() -> None:
    assert judge([-1000.0, 1000.0], threshold=0.05, fresh=1).change.high == math.expm1(700)
