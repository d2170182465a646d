"""From what steps take to round trips and bandwidth, under a made-up clock."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable

import pytest

from benchmarks.cluster import network
from benchmarks.cluster.network import Link


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


def test_the_first_call_does_not_count(clock: Clock) -> None:
    assert network.typical_seconds(clock.takes(0.9, 0.3, 0.3, 0.2, 0.1)) == pytest.approx(0.2)
    assert clock.calls == 6


def test_noise_yields_numbers_all_the_same(clock: Clock) -> None:
    assert network.round_trip(clock.takes(0.004), clock.takes(0.002)) == pytest.approx(0.002 / 21)
    assert network.bandwidth(clock.takes(0.02), clock.takes(0.016)) == pytest.approx(2**24 / 0.016)


HOSTS = {"ps 0": "h0", "worker 0": "h1", "worker 1": "h2"}


def test_links_that_stand_out_are_named() -> None:
    links = [
        Link("ps 0", "worker 0", 0.4e-3, 1.2e9, 1.1e9),
        Link("ps 0", "worker 1", 3.1e-3, 1.3e9, 0.3e9),
        Link("worker 0", "worker 1", 0.4e-3, 1.2e9, 1.2e9),
    ]
    check = "check the network between h{} and h{} (which interfaces, their speed), and what else runs there."
    assert network.quality_warnings(links, HOSTS) == [
        "worker 1 -> ps 0 carries 0.3 GB/s, others 1.2: " + check.format(2, 0),
        "A round trip ps 0 -> worker 1 -> ps 0 takes 3.1 ms, others 0.4: " + check.format(0, 2),
    ]


def test_links_within_a_host_are_not_compared_with_those_between_hosts() -> None:
    host_of = {"ps 0": "h0", "worker 0": "h0", "worker 1": "h1"}
    links = [
        Link("ps 0", "worker 0", 0.1e-3, 5e9, 5e9),
        Link("ps 0", "worker 1", 1e-3, 1e9, 1e9),
        Link("worker 0", "worker 1", 1e-3, 1e9, 1e9),
    ]
    assert network.quality_warnings(links, host_of) == []
    assert (
        "check what else runs on h0."
        in network.quality_warnings([Link("ps 0", "worker 0", 1e-3, 1e9, 9e9)], host_of)[0]
    )


def test_a_lone_task_has_no_links() -> None:
    assert network.quality_warnings([], {}) == []
    assert network.to_dict([], [])["links"] == []
