"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from results.intervals import Interval
from results.text import amount, rounded


@pytest.mark.parametrize(
    ("value", "text"),
    [(23.14e9, "23.1 GFLOP"), (95e9, "95.0 GFLOP"), (1e12, "1.00 TFLOP"), (999.96e9, "1.00 TFLOP"), (5, "5.00 FLOP"),
     (0.5, "0.5 FLOP"), (0, "0 FLOP"), (9.996e3, "10.0 kFLOP"), (3.2e19, "32000 PFLOP")],
)  # fmt: skip
def test_amounts_have_three_digits(value: float, text: str) -> None:
    assert amount(value, "FLOP") == text


@pytest.mark.parametrize(
    ("number", "low", "high", "text"),
    [
        (1560.96, 341.33, 9678.06, "1600 (340 to 9700)"),
        (161132.15, 137949.31, 180938.78, "161000 (138000 to 181000)"),
        (2790.31, 2787.4, 2793.1, "2790.3 (2787.4 to 2793.1)"),
        (1.8812, 1.2, 2.9, "1.88 (1.20 to 2.90)"),
        (5.0, 0.1, 300.0, "5.0 (0.10 to 300)"),
        (313.734, 313.734, 313.734, "314 (314 to 314)"),
        (-3.21, -14.9, 9.7, "-3.2 (-15 to 9.7)"),
        (12.0, 3.0, math.inf, "12.0 (3.00 to inf)"),
        (1e300, 1.0, 2e300, "1e+300 (1.0 to 2e+300)"),
    ],
)
def test_the_second_digit_of_the_noise_is_the_last(number: float, low: float, high: float, text: str) -> None:
    assert Interval(number, low, high).text() == text


def test_without_noise_a_number_has_three_digits() -> None:
    assert [rounded(number) for number in (0, 0.012345, 9.999, 123.456, 98765.4)] == [
        *("0", "0.0123", "10.0", "123", "98800"),
    ]
