"""A number with its 95 % interval, and which of two rates is the higher: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results.intervals import Interval, between_runs, geometric_mean, is_faster, of_repeats, slower_than_best, spread

UNKNOWN = Interval(6.0)


def test_a_difference_is_as_wide_as_both_numbers_together() -> None:
    assert Interval(10, 7, 14).minus(Interval(6, 3, 10)) == Interval(4, 4 - 5, 4 + 5)


def test_a_ratio_is_as_wide_as_both_numbers_together_on_a_logarithmic_scale() -> None:
    ratio = Interval(6, 6 * math.exp(-0.3), 6 * math.exp(0.3)).over(Interval(2, 2 * math.exp(-0.4), 2 * math.exp(0.4)))
    assert (ratio.value, *ratio.bounds) == pytest.approx((3, 3 * math.exp(-0.5), 3 * math.exp(0.5)))
    widened = Interval(6, 6 * math.exp(-0.3), 6 * math.exp(0.3)).widened(0.2)
    assert (widened.value, *widened.bounds) == pytest.approx((6, 6 * math.exp(-0.5), 6 * math.exp(0.5)))


def test_the_fastest_rate_is_the_shortest_time() -> None:
    assert Interval(100, 50, 200).inverse(200) == Interval(2, 1, 4)
    assert Interval(0.1, 0.05, 0.2).scaled(100) == Interval(10, 5, 20)


def test_what_is_unknown_stays_unknown_and_is_on_no_side() -> None:
    known = Interval(10, 7, 14)
    for of, value in (
        (known.minus(UNKNOWN), 4),
        (UNKNOWN.minus(known), -4),
        (UNKNOWN.over(known), 0.6),
        (known.over(UNKNOWN), 10 / 6),
        (UNKNOWN.inverse(3), 0.5),
        (UNKNOWN.scaled(2), 12),
        (UNKNOWN.widened(0.1), 6),
        (Interval.of(6, None, 7), 6),
    ):
        assert (of.value, of.bounds, of.range(), of.side_of(0)) == (pytest.approx(value), (None, None), "", 0)
    assert UNKNOWN.bounded == Interval(6, 6, 6) and known.bounded is known
    assert (UNKNOWN.text(), known.text("{:.0f}".format)) == ("6.00", "10 (7 to 14)")


@pytest.mark.parametrize(("number", "side"), [(6, 1), (7, 0), (10, 0), (14, 0), (15, -1)])
def test_a_bound_belongs_to_the_interval(number: float, side: int) -> None:
    assert Interval(10, 7, 14).side_of(number) == side


def test_repeats_that_differ_by_all_floats_have_an_interval() -> None:
    found = of_repeats([1e-50, 1e3])
    assert 0 <= found.low < found.value < found.high < math.inf


def test_the_interval_of_repeats_by_hand() -> None:
    """Logs 0 and 2: mean 1, standard error 1, t of one degree of freedom 12.706."""
    found = of_repeats([1.0, math.exp(2.0)])
    assert [math.log(number) for number in (found.value, found.low, found.high)] == pytest.approx(
        [1, 1 - 12.706, 1 + 12.706], abs=1e-3
    )


def test_the_rate_of_a_single_run_is_exact() -> None:
    assert geometric_mean([1 / 3 * 100]) == 1 / 3 * 100


def test_how_much_runs_differ_shows_only_in_what_was_run_again() -> None:
    assert spread([[100.0], [50.0]]) == (0.1, 0)
    assert spread([[100.0, 110.0], [50.0]]) == (0.1, 0)
    assert spread([[100.0, 100.0], [50.0, 55.0]]) == pytest.approx((math.log(1.1) / 2, 2))


def test_a_spread_that_few_repeats_show_widens_more_than_one_that_is_assumed() -> None:
    # 97.5 % of a t distribution with 4 degrees of freedom are below 2.776.
    ends = (2 * math.exp(-0.2776), 2 * math.exp(0.2776))
    assert Interval(2.0, 2.0, 2.0).widened(0.1, 4).bounds == pytest.approx(ends, rel=1e-4)
    assert Interval(2.0, 2.0, 2.0).widened(0.1).high == pytest.approx(2 * math.exp(0.2))


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_an_interval_that_is_widened_by_few_repeats_of_another_setting_holds_the_truth(repeats: int) -> None:
    drawn = np.exp(0.05 * np.random.default_rng(repeats).standard_normal((1000, repeats + 1)))
    ranges = [Interval(own, own, own).widened(*between_runs([others])) for own, *others in drawn.tolist()]
    assert sum(each.low < 1 < each.high for each in ranges) >= 940


def test_what_blocks_have_in_common_hides_no_difference() -> None:
    slowing = [1.0, 0.8, 1.3, 0.9]
    fast, slow = [100 * f for f in slowing], [97 * f for f in (1.001, 0.799, 1.302, 0.9)]
    assert slower_than_best([fast, slow]) == [1]
    assert slower_than_best([slow, fast, fast]) == [0]
    assert slower_than_best([fast[:2], [0.97 * rate for rate in fast[:2]]]) == [], "two blocks show no spread"
    # By a t test of four blocks with t = 4.5: 3.18 is enough for 95 %, and 5.84 for 99 %.
    swinging = [rate * math.exp(swing - 0.03) for rate, swing in zip(fast, (0.0115, -0.0115) * 2, strict=True)]
    assert slower_than_best([fast, swinging]) == [], "the test is repeated, so 95 % is not enough"
    assert slower_than_best([fast, [*slow, 1000.0]]) == [1], "a block that only one has is ignored"
    assert slower_than_best([fast, [97.0, 104.0, 99.0, 101.0]]) == []


def test_intervals_or_pairs_show_which_of_two_is_faster() -> None:
    slowing, noise = (1.0, 0.8, 1.3), (1.001, 0.999, 1.002)
    blocks = [[100.0 * f for f in slowing], [97.0 * f * by for f, by in zip(slowing, noise, strict=True)]]
    low, high, wide = Interval(99, 98, 100), Interval(102, 101, 103), Interval(100, 80, 120)
    assert is_faster(high, low) and not is_faster(low, high) and not is_faster(Interval(101, 100, 102), low)
    assert is_faster(wide, wide, blocks) and is_faster(UNKNOWN, UNKNOWN, blocks)
    assert not is_faster(wide, wide, [each[:2] for each in blocks]), "two blocks show no spread"
    assert not is_faster(wide, wide, blocks[::-1])
    assert not is_faster(UNKNOWN, low) and not is_faster(high, UNKNOWN)
