from __future__ import annotations

import math

import pytest

from results.gate.decision import judge
from results.gate.findings import Verdict
from results.gate.trial import CONFIRMING_ROUNDS, Trial

WOBBLE = (0.004, -0.004, 0.001, -0.001)


def fed(changes: list[float], *, max_rounds: int = 15) -> Trial:
    """A trial on rounds with these changes and a little noise, up to where it is over."""
    trial = Trial(0.05, max_rounds=max_rounds)
    for number, change in enumerate(changes):
        if trial.is_over:
            break
        trial.add(200.0, 200.0 * (1 + change) * math.exp(WOBBLE[number % 4]))
    return trial


def test_equal_sides_end_after_the_fewest_rounds() -> None:
    trial = fed([0.0] * 15)
    assert trial.is_over
    assert trial.decision.verdict is Verdict.UNCHANGED
    assert len(trial.log_ratios) == 5


@pytest.mark.parametrize(("change", "verdict"), [(-0.15, Verdict.REGRESSED), (0.2, Verdict.IMPROVED)])
def test_a_change_is_repeated_before_it_is_called_one(change: float, verdict: Verdict) -> None:
    seen = fed([change] * 5)
    assert not seen.is_over
    assert seen.decision.verdict is Verdict.INCONCLUSIVE
    assert seen.decision.is_suspect
    almost = fed([change] * (5 + CONFIRMING_ROUNDS - 1))
    assert almost.decision.verdict is Verdict.INCONCLUSIVE
    done = fed([change] * 15)
    assert done.decision.verdict is verdict
    assert len(done.log_ratios) == 5 + CONFIRMING_ROUNDS
    assert f"the last {CONFIRMING_ROUNDS} repeats alone showed it again" in done.decision.reason


def test_a_small_drop_in_fresh_rounds_is_not_enough_though_all_together_show_it() -> None:
    changes = [-0.12] * 5 + [-0.04] * 10
    trial = fed(changes)
    assert trial.decision.verdict is Verdict.INCONCLUSIVE
    assert trial.decision.is_suspect
    assert "the last 10 repeats alone did not show" in trial.decision.reason
    # Over all of them it is large and sure enough: it is the repetition that is missing.
    assert judge([math.log1p(change) for change in changes], threshold=0.05, fresh=15).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("changes", "verdict"), [([-0.066, -0.04], Verdict.REGRESSED), ([0.0707, 0.0417], Verdict.IMPROVED)]
)
def test_a_change_that_is_not_clear_has_all_rounds(changes: list[float], verdict: Verdict) -> None:
    unclear = fed(changes * 8)
    assert len(unclear.log_ratios) == 15
    assert unclear.decision.verdict is verdict
    assert len(fed([2 * change for change in changes] * 8).log_ratios) == 5 + CONFIRMING_ROUNDS


def test_a_change_that_is_seen_too_late_to_be_repeated_is_not_decided() -> None:
    quiet_then_slow = [0.0, -0.08] * 5 + [0.0] + [-0.12] * 4
    trial = fed(quiet_then_slow)
    before = fed(quiet_then_slow[: 15 - CONFIRMING_ROUNDS])
    assert not before.decision.is_suspect
    assert fed(quiet_then_slow[:14]).decision.is_suspect
    assert fed(quiet_then_slow[:14]).progress.endswith("not decided")
    assert trial.is_over
    assert trial.decision.is_suspect
    assert trial.decision.verdict is Verdict.INCONCLUSIVE
    assert "no repeats were left" in trial.decision.reason


def test_it_says_where_it_stands() -> None:
    assert fed([]).progress == "no repeats yet"
    assert fed([-0.1]).progress == "1 repeat: 9.6 % slower, at least 5 are needed"
    assert fed([-0.1] * 6).progress == "6 repeats: 10.0 % slower, repeating it"
    assert fed([0.3, -0.25] * 3).progress == "6 repeats: 1.3 % slower, not decided"
    assert fed([0.01] * 5).progress == "5 repeats: 1.1 % faster, unchanged"
    assert fed([-0.1] * 9).progress == "9 repeats: 10.0 % slower, regressed"
