"""A simulated step: it agrees with closed formulas where these are exact, and never gets slower by a faster link."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.predict import outlook, prediction
from benchmarks.predict.hosts import Cpu, Hardware, Memory, Network, Reached, find_hardware, link_rates, reached
from benchmarks.predict.hosts import LinkRate as Rate
from benchmarks.predict.prediction import Subject, expected_maximum, gains, limit, link_that_limits, step
from benchmarks.predict.simulation import Task, simulate
from benchmarks.predict.step_graph import Exchange, Hop, LayerShare, Layout, shares, tasks_of_step
from results.text import rounded

ONE = [LayerShare("all", 1.0, 1.0)]
THREE = [LayerShare("a", 0.5, 0.1), LayerShare("b", 0.3, 0.2), LayerShare("c", 0.2, 0.7)]
PERFECT = Reached(1, 1, 1, 1, 1, 10, 1, 0)


def seconds(parts: list[LayerShare], exchange: Exchange, compute: float, **bytes_per_sec: float) -> float:
    """The time of a step over links named by letters."""
    rates = {name: Rate(rate) for name, rate in bytes_per_sec.items()}
    return simulate(tasks_of_step(parts, exchange, rates, compute)).end_seconds


def test_messages_on_a_network_take_turns_so_a_large_one_delays_a_small_one_little() -> None:
    tasks = [Task("large", "network", 9, is_sliced=True), Task("small", "network", 1, is_sliced=True)]
    tasks.append(Task("after", "device", 1, ("small",)))
    timeline = simulate(tasks)
    assert timeline.busy_seconds()["network"] == pytest.approx(10)
    (begin,) = (span.begin_seconds for span in timeline.spans if span.task.name == "after")
    assert 2 <= begin < 2.5 and timeline.end_seconds == pytest.approx(10), "the link serves both at half its rate"


def test_one_layer_is_read_computed_and_sent_one_after_the_other() -> None:
    exchange = Exchange(reads=((Hop("x", 8),),), gradients=((Hop("x", 6),), (Hop("y", 4),)))
    assert seconds(ONE, exchange, 3, x=2, y=4) == pytest.approx(8 / 2 + 3 + 6 / 2 + 4 / 4)


def test_nothing_overlaps_what_comes_at_the_end_and_all_overlaps_what_is_a_step_later() -> None:
    stages = ((Hop("x", 8),),)
    assert seconds(THREE, Exchange(gradients=stages, when="all at the end"), 3, x=2) == pytest.approx(3 + 8 / 2)
    assert seconds(THREE, Exchange(stages, stages, "a step later"), 3, x=2) == pytest.approx(2 * 8 / 2)
    assert seconds(THREE, Exchange(stages, stages, "a step later"), 30, x=2) == pytest.approx(30)


def test_gradients_are_sent_from_the_last_layer_to_the_first_while_earlier_ones_are_computed() -> None:
    # Forward 10, backward 20: c is ready at 14, b at 20, a at 30. The link is free when each comes.
    assert seconds(THREE, Exchange(gradients=((Hop("x", 10),),)), 30, x=2) == pytest.approx(30 + 0.1 * 10 / 2)
    # A slow link is busy from 14 on.
    assert seconds(THREE, Exchange(gradients=((Hop("x", 100),),)), 30, x=2) == pytest.approx(14 + 100 / 2)


def test_kernels_that_send_do_not_overlap_computing() -> None:
    exchange = Exchange(gradients=((Hop("x", 8, on_device=True),),))
    assert seconds(THREE, exchange, 3, x=2) == pytest.approx(3 + 8 / 2)


def test_latency_delays_and_several_messages_occupy_the_link() -> None:
    def end(compute: float, messages: int, every: int = 1) -> float:
        exchange = Exchange(gradients=((Hop("x", 10, messages=messages),),), every=every)
        return simulate(tasks_of_step(THREE, exchange, {"x": Rate(2, 1.0)}, compute)).end_seconds

    assert end(30, 1) == pytest.approx(30 + 0.1 * 10 / 2 + 1)
    assert end(3, 1) == pytest.approx(1.4 + 10 / 2 + 1), "the link is busy from the end of c on"
    assert end(3, 4) == pytest.approx(1.4 + 10 / 2 + 3 * 4), "three collectives, one after the other"
    assert end(3, 4, every=2) == pytest.approx(1.4 + 10 / 2 + 3 * 2)


def test_small_layers_are_joined_and_nothing_is_lost() -> None:
    layers = [(f"layer {number}", number % 3, 4 * (number % 5)) for number in range(1, 300)]
    parts = shares(layers)
    assert 8 < len(parts) < 40
    assert sum(part.work for part in parts) == pytest.approx(1) and sum(p.weights for p in parts) == pytest.approx(1)


def subject(layout: Layout, exchange: Exchange, host: str = "dgx-1-p100", **fields: object) -> Subject:
    made = Subject(
        parts=THREE,
        hardware=find_hardware(host),
        batch_per_device=64,
        exchange=exchange,
        exchange_of_one=Exchange(),
        step_seconds=0.3,
        layout=layout,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def test_what_costs_most_limits() -> None:
    exchange = Exchange(gradients=((Hop("network out", 5e9), Hop("network in", 5e9)),))
    made = subject(Layout(8, 4, 4), exchange, "ec2-p2.8xlarge")
    found = gains(made, step(made))
    assert limit(found) == "network" and found["network"] > 0.9
    alone = subject(Layout(8, 4, 4), Exchange())
    assert limit(gains(alone, step(alone))) == "computing"
    assert link_that_limits({"computing": 0.9, "network": 0.1, "PCIe": 0.3}) == "PCIe"
    assert link_that_limits({"computing": 0.9, "network": 0.01}) is None, "2 % are not worth a faster link"


def test_gpus_that_share_a_board_or_a_switch_are_slower() -> None:
    k80 = subject(Layout(1), Exchange(), "ec2-p2.8xlarge")
    alone, both = step(k80, PERFECT), step(dataclasses.replace(k80, layout=Layout(2)), PERFECT)
    assert alone.end_seconds == both.end_seconds == pytest.approx(0.3)
    half = dataclasses.replace(PERFECT, board=0.5)
    assert step(dataclasses.replace(k80, layout=Layout(2)), half).end_seconds == pytest.approx(0.6)
    assert step(k80, half).end_seconds == pytest.approx(0.3)
    host = find_hardware("ec2-p2.8xlarge")
    rates = {count: link_rates(host, PERFECT, count) for count in (1, 2, 4)}
    assert [rates[count]["host to device"].bytes_per_sec for count in rates] == [16e9, 8e9, 8e9]
    assert [rates[count]["device to device"].bytes_per_sec for count in rates] == [16e9, 16e9, 8e9], "one link of two"
    assert rates[1]["network out"] == Rate(1.25e9, pytest.approx(50e-6))


def test_a_synchronous_step_waits_for_the_slowest_device_and_an_asynchronous_one_does_not() -> None:
    uneven = dataclasses.replace(PERFECT, spread=0.1)
    made = subject(Layout(8, 8, 8), Exchange())
    slower = 1 + 0.1 * expected_maximum(64)
    assert step(made, uneven).end_seconds == pytest.approx(0.3 * slower)
    without = dataclasses.replace(made, exchange=Exchange(when="without waiting"))
    assert step(without, uneven).end_seconds == pytest.approx(0.3)
    every_4 = dataclasses.replace(made, exchange=Exchange(every=4))
    assert step(every_4, uneven).end_seconds == pytest.approx(0.3 * (1 + 0.05 * expected_maximum(64)))
    # Of two: 1 / sqrt(pi); of 1,000: 3.2414 (tables of order statistics).
    assert expected_maximum(1) == 0 and expected_maximum(2) == pytest.approx(0.5642, abs=0.03)
    assert expected_maximum(1000) == pytest.approx(3.2414, abs=0.03)


def test_what_one_device_exchanged_is_taken_out_of_its_time() -> None:
    exchange = Exchange(reads=((Hop("host to device", 1.6e9),),))  # 0.1 s on a perfect link
    made = subject(Layout(1), exchange, exchange_of_one=exchange)
    computing = prediction.compute_seconds(made, PERFECT)
    assert 0.2 <= computing < 0.3
    assert step(made, PERFECT).end_seconds == pytest.approx(0.3, rel=2e-3)


def test_the_interval_is_around_the_rate_and_includes_what_is_not_known_of_one_device() -> None:
    exchange = Exchange(gradients=((Hop("network out", 5e8), Hop("network in", 5e8)),))
    made = subject(Layout(8, 4, 4), exchange, "ec2-p2.8xlarge")
    found, wider = prediction.predict(made), prediction.predict(dataclasses.replace(made, uncertain=2))
    assert found.low < 0.9 * found.images_per_sec < found.images_per_sec < found.high
    assert found.images_per_sec == pytest.approx(32 * 64 / found.timeline.end_seconds)
    assert found.efficiency == pytest.approx(0.3 / found.timeline.end_seconds) and found.efficiency < 1
    assert wider.low == pytest.approx(found.low / 2) and wider.high == pytest.approx(2 * found.high)


def test_what_is_said_of_a_prediction_follows_from_it() -> None:
    exchange = Exchange(gradients=((Hop("network out", 5e9), Hop("network in", 5e9)),))
    made = subject(Layout(8, 4, 4), exchange, "ec2-p2.8xlarge")
    found = outlook.point(made, "mine", "mine", {"faster": lambda: dataclasses.replace(made, exchange=Exchange())})
    names = dict.fromkeys(("hardware", "model", "manager", "precision", "source"), "")
    lines = list(outlook.as_text(outlook.Outlook(**names, images_per_sec_of_one=64 / 0.3, points=[found])))
    (row,) = (line for line in lines if line.split()[:1] == ["32"])
    assert " network " in row and "faster (" in row and "mine" not in row
    better = made.images / step(made, better=("network in", "network out")).end_seconds
    assert f"With network twice as fast, 32 devices would reach {rounded(better)} images/s." in lines


def test_the_interval_of_cpus_that_read_from_servers_has_gradients_that_are_sent_early() -> None:
    stages = ((Hop("network out", 5e8),),)
    cpu = Hardware(
        title="", memory=Memory(gbytes_per_second=10, source=""), cpu=Cpu(copies_gbytes_per_second=5, source=""),
        network=Network(gbytes_per_second=1, latency_microseconds=0, source=""),
    )  # fmt: skip
    made = subject(Layout(1, 2, 1), Exchange(stages, stages, "all at the end"), hardware=cpu)
    early = dataclasses.replace(made, exchange=Exchange(stages, stages))
    found, fastest = prediction.predict(made), prediction.predict(early)
    assert found.high == fastest.high and found.images_per_sec < fastest.images_per_sec


def test_the_slow_end_of_each_share_is_slow() -> None:
    exchange = Exchange(gradients=((Hop("device to host", 1e9), Hop("host memory", 1e9)), (Hop("network out", 1e8),)))
    made = subject(Layout(8, 4, 4), exchange, "ec2-p2.8xlarge")
    for name in ("pcie", "network", "memory", "board", "spread"):
        slow, fast = (dataclasses.replace(reached(), **{name: getattr(reached(end), name)}) for end in ("low", "high"))
        assert step(made, slow).end_seconds > step(made, fast).end_seconds, name
