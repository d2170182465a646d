"""From what steps take to round trips and bandwidth, under a made-up clock, and what the steps send."""

from __future__ import annotations

import itertools
import types
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cluster import launch_plan, member, network
from benchmarks.cluster.cluster_spec import Task
from benchmarks.cluster.network import Link
from variable_mgr.place import HOST


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
        "worker 1 -> ps 0 carries 0.3 GB/s, and the median is 1.2: " + check.format(2, 0),
        "A round trip ps 0 -> worker 1 -> ps 0 takes 3.1 ms, and the median is 0.4: " + check.format(0, 2),
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


FIRST, SECOND = Task("worker", 0), Task("worker", 1)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """The first of two servers in this process."""
    spec = launch_plan.with_free_ports(launch_plan.on_this_host("worker:2")).spec()
    options = member.with_collectives(tf.compat.v1.ConfigProto(device_count={"GPU": 0}))
    servers = [member.start_server(spec, task, options) for task in (FIRST, SECOND)]
    yield servers[0].target


def test_a_rate_is_that_of_its_direction(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock that counts what each task has sent: the second is half as fast."""
    sent: Counter[int] = Counter()
    monkeypatch.setattr(network, "time", types.SimpleNamespace(perf_counter=lambda: sent[0] / 20e6 + sent[1] / 10e6))
    carry = network.carry

    def counted(variable: tf.Variable, to: Task) -> tf.Operation:
        source = tf.DeviceSpec.from_string(variable.device).task
        size = variable.shape.num_elements() * variable.dtype.size

        def count() -> np.int32:
            sent[source] += size
            return np.int32(0)

        with tf.control_dependencies([carry(variable, to)]), tf.device(to.device + HOST):
            return tf.numpy_function(count, [], tf.int32).op

    monkeypatch.setattr(network, "carry", counted)
    link = network.measure(target, FIRST, FIRST, SECOND)
    assert (link.there_bytes_per_second, link.back_bytes_per_second) == pytest.approx((20e6, 10e6))


def test_every_hop_is_a_message_and_a_whole_tensor_is_carried(target: str) -> None:
    with tf.Graph().as_default():
        hops = network.chain(FIRST, SECOND, rounds=5)
        with tf.device(FIRST.device + HOST):
            variable = tf.Variable(tf.zeros([1024]))
        carried = network.carry(variable, SECOND)
        with tf.compat.v1.Session(target, config=network.session_config({FIRST, SECOND})) as session:
            session.run(variable.initializer)
            assert session.run(hops) == 10

            def received(fetched: tf.Tensor | tf.Operation) -> list[str]:
                metadata = tf.compat.v1.RunMetadata()
                options = tf.compat.v1.RunOptions(output_partition_graphs=True)
                session.run(fetched, options=options, run_metadata=metadata)
                nodes = [node for graph in metadata.partition_graphs for node in graph.node]
                return [node.attr["tensor_name"].s.decode() for node in nodes if node.op == "_Recv"]

            assert len(received(hops)) == 10
            (sent,) = received(carried)
    assert "ReadVariableOp" in sent, "what is read, and no slice of it"
