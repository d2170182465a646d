"""From what steps take to round trips and bandwidth, under a made-up clock."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable

import pytest

from benchmarks.doctor import network


class Clock:
    """Made-up time: calls take what they are said to take."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> Callable[[], None]:
        each = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run() -> None:
            self.now += next(each)
            self.calls += 1

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The only clock that the measurement sees."""
    made = Clock()
    monkeypatch.setattr(network, "time", types.SimpleNamespace(perf_counter=made))
    return made


def test_what_a_step_costs_besides_is_in_no_number(clock: Clock) -> None:
    besides = 0.003
    few, many = clock.takes(0.2, besides + 0.001), clock.takes(0.2, besides + 0.021)
    assert network.round_trip(few, many) == pytest.approx(0.001)
    small, large = clock.takes(0.2, besides + 2**20 / 1e9), clock.takes(0.2, besides + 2**24 / 1e9)
    assert network.bandwidth(small, large) == pytest.approx(1e9)


def test_a_slow_link_is_not_measured_for_long(clock: Clock) -> None:
    large = clock.takes(160.0)
    assert network.bandwidth(clock.takes(10.0), large) == pytest.approx(2**20 / 10)
    assert clock.calls == 1
    assert network.typical_seconds(clock.takes(0.3, 0.3, 0.2, 0.1)) == pytest.approx(0.2)
    assert clock.calls == 5
    assert network.typical_seconds(clock.takes(0.9, 0.8)) == pytest.approx(0.8)
    assert clock.calls == 7


def test_a_first_call_that_is_held_up_does_not_count(clock: Clock) -> None:
    assert network.typical_seconds(clock.takes(0.9, 0.01, 0.02, 0.02)) == pytest.approx(0.02)


def test_noise_yields_numbers_all_the_same(clock: Clock) -> None:
    assert network.round_trip(clock.takes(0.004), clock.takes(0.002)) == pytest.approx(0.002 / 21)
    assert network.bandwidth(clock.takes(0.02), clock.takes(0.016)) == pytest.approx(2**24 / 0.016)
