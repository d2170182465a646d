"""What a step exchanges: the bytes of the simulated links are those that managers state."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.config.variable_update import Variables
from benchmarks.errors import UsageError
from benchmarks.graph.sent_bytes import manager_on_real_devices
from benchmarks.predict.exchange import exchange_of, model_parts
from benchmarks.predict.hosts import COPIES, HOST_MEMORY, LOOPBACK, find_hardware, link_rates, reached
from benchmarks.predict.prediction import COMPUTING, LATENCY, Subject, step
from benchmarks.predict.step_graph import Exchange, Layout, shares
from benchmarks.process.tensorflow_setup import Devices
from models.specs import find_model
from tests.support.steps import variable
from variable_mgr.catalog import IN_ONE_PROCESS, MANAGERS, WorksIn
from variable_mgr.modifiers import Modifiers
from variable_mgr.transfers import by_kind

WEIGHTS = [variable("a/kernel", np.zeros(1000, np.float32)), variable("b/kernel", np.zeros(24, np.float32))]
BYTES = 4096
PARTS = shares([("a", 3, 4000), ("b", 1, 96)])


def made(manager: str, layout: Layout, *, on: str = "cpu", scale: int = 1, **modifiers: object) -> Exchange:
    spec = {} if "all_reduce_spec" in modifiers or manager != "replicated" else {"all_reduce_spec": "pscpu"}
    variables = Variables(variable_update=manager, shared_on=on, modifiers=Modifiers(**{**spec, **modifiers}))
    larger = [dataclasses.replace(weight, shape=(scale * weight.shape[0],)) for weight in WEIGHTS]
    return exchange_of(variables, layout, larger)


def sent(exchange: Exchange) -> dict[str, float]:
    """The bytes that cross each link, of one device or host."""
    found: dict[str, float] = {}
    for hop in (hop for stage in (*exchange.reads, *exchange.gradients) for hop in stage if hop.size_bytes):
        if hop.link not in (HOST_MEMORY, COPIES):
            found[hop.link] = found.get(hop.link, 0.0) + sum(hop.size_of(part) for part in PARTS)
    return found


@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_the_bytes_of_tasks_are_those_that_a_manager_states(manager: str, on: str) -> None:
    reducing = {"all_reduce_spec": "xring"} if manager == "replicated" and on == "gpu" else {}
    modifiers = {"local_sgd_steps": 4} if manager == "local_sgd" else reducing
    variables = Variables(variable_update=manager, shared_on=on, modifiers=Modifiers(**modifiers))  # type: ignore[arg-type]
    stated = by_kind(manager_on_real_devices(Devices(device="gpu", num_devices=4), variables).transfers(WEIGHTS))
    found = sent(exchange_of(variables, Layout(4), WEIGHTS))
    assert {kind: 4 * size for kind, size in found.items()} == pytest.approx(
        {kind: size for kind, (_, size) in (stated or {}).items() if size}
    )


def test_the_host_reads_all_gradients_and_writes_their_mean_or_reads_and_writes_its_weights() -> None:
    for manager, moved in (("replicated", 4 + 1), ("parameter_server", 4 + 2)):
        hops = [hop for stage in made(manager, Layout(4)).gradients for hop in stage]
        assert [hop.size_bytes for hop in hops if hop.link == HOST_MEMORY] == [moved * BYTES]


def test_the_messages_of_a_ring_follow_each_other() -> None:
    (stage,) = made("replicated", Layout(4), all_reduce_spec="xring").gradients
    assert [hop.messages for hop in stage] == [2 * 3]


def test_a_step_has_three_times_the_operations_of_a_forward_pass() -> None:
    assert model_parts("mlp", None).flops_per_image == pytest.approx(3e9 * find_model("mlp").gflop_per_image, rel=0.02)


def test_a_ring_of_hosts_sends_twice_all_but_one_share() -> None:
    over_hosts = sent(made("collective_all_reduce", Layout(1, 4)))
    assert over_hosts == dict.fromkeys(("network out", "network in"), pytest.approx(2 * 3 / 4 * BYTES))


def test_the_link_of_a_server_is_shared_by_all_workers() -> None:
    """One server serves four hosts: it sends all weights to three of them, and to its own worker inside its host."""
    found = sent(made("parameter_server", Layout(1, 4, 1)))
    assert found["network out"] == found["network in"] == pytest.approx(3 * BYTES)
    assert found["between processes of a host"] == pytest.approx(2 * BYTES)
    # With a server on each of four hosts, the busiest has the largest variable.
    busiest = sent(made("parameter_server", Layout(1, 4, 4)))
    assert busiest["network out"] == pytest.approx(3 * 4000 + 96)


def test_a_variable_crosses_the_network_to_the_server_that_has_it() -> None:
    """Of two hosts, the one whose server has `a`: it sends gradients of `b` and values of `a`, and gets the others."""
    exchange = made("distributed_replicated", Layout(1, 2, 2))
    hops = [hop for stage in exchange.gradients for hop in stage if "network" in hop.link]
    crossed = [(hop.link, part.name, hop.size_of(part)) for hop in hops for part in PARTS]
    assert sorted(one for one in crossed if one[2]) == sorted(
        [("network out", "b", 96), ("network in", "a", 4000), ("network out", "a", 4000), ("network in", "b", 96)]
    )


def test_copies_of_masters_come_back_after_the_update_and_shared_weights_are_read_before() -> None:
    masters, shared = made("distributed_replicated", Layout(8, 2, 2)), made("parameter_server", Layout(8, 2, 2))
    assert not masters.reads and shared.reads
    assert sent(masters) == pytest.approx(sent(shared))
    assert sent(masters)["device to device"] == pytest.approx(7 / 8 * BYTES), "the mean over the worker's own devices"


def test_16_bits_are_half_of_what_is_sent() -> None:
    plain, compact = (made("replicated", Layout(4), compact_gradient_transfer=half) for half in (False, True))
    assert {link: size / 2 for link, size in sent(plain).items()} == pytest.approx(sent(compact))


@pytest.mark.parametrize(
    ("manager", "modifiers", "when"),
    [
        ("parameter_server", {}, "as they come"),
        ("parameter_server", {"staged_vars": True}, "a step later"),
        ("parameter_server", {"asynchronous": True}, "without waiting"),
        ("replicated", {"all_reduce_spec": "xring", "relaxed_consistency": True}, "a step later"),
        ("replicated", {"all_reduce_spec": "xring", "gradient_repacking": 2}, "all at the end"),
        ("local_sgd", {"local_sgd_steps": 4}, "all at the end"),
    ],
)
def test_modifiers_decide_what_waits(manager: str, modifiers: dict[str, object], when: str) -> None:
    assert made(manager, Layout(4), **modifiers).when == when


def test_a_cpu_computes_nothing_while_it_copies_and_adds() -> None:
    """Of two hosts, the one with the server: each of the two gets and sends all; inside, both ends copy."""
    variables = Variables(variable_update="distributed_replicated", shared_on="cpu")
    exchange = exchange_of(variables, Layout(1, 2, 1), WEIGHTS, on_cpus=True)
    hops = [hop for stage in exchange.gradients for hop in stage]
    assert all(hop.on_device == (hop.link == COPIES) for hop in hops)
    passed_on, added = 2 * (2 + 1) * BYTES, 2 * BYTES + 2 * BYTES
    assert sum(hop.size_bytes for hop in hops if hop.link == COPIES) == passed_on + added
    assert not [hop for hop in hops if hop.link == LOOPBACK], "the cores copy it"
    one = exchange_of(variables, Layout(1, 1, 1), WEIGHTS, on_cpus=True)
    assert not [hop for stage in one.gradients for hop in stage if "network" in hop.link]


def test_nccl_of_2017_kept_the_device_busy() -> None:
    variables = Variables(variable_update="replicated", shared_on="gpu", modifiers=Modifiers(all_reduce_spec="nccl"))
    for is_old in (False, True):
        ((hop,),) = exchange_of(variables, Layout(8), WEIGHTS, nccl_1=is_old).gradients
        assert hop.on_device is is_old


@pytest.mark.parametrize("host", ["ec2-p2.8xlarge", "dgx-h100"])
@pytest.mark.parametrize(
    ("manager", "hosts"),
    [
        (name, hosts)
        for name, entry in MANAGERS.items()
        for hosts in ((1,) if entry.processes == WorksIn.ONE else (1, 2, 16))
        if name != "distributed_all_reduce"  # states nothing
    ],
)
def test_a_faster_link_or_device_is_never_slower(manager: str, hosts: int, host: str) -> None:
    one = Subject(
        parts=PARTS,
        hardware=find_hardware(host),
        batch_per_device=8,
        exchange=made(manager, Layout(8, hosts, hosts), scale=100_000),
        exchange_of_one=Exchange(),
        step_seconds=0.1,
        layout=Layout(8, hosts, hosts),
    )
    base = step(one).end_seconds
    for better in (*link_rates(one.hardware, reached(), 8), COMPUTING, LATENCY):
        assert step(one, better=[better]).end_seconds <= base * (1 + 1e-9)


@pytest.mark.parametrize(
    ("manager", "modifiers", "problem"),
    [
        ("distributed_all_reduce", {}, "does not state what it sends"),
        ("independent", {}, "independent"),
    ],
)
def test_what_has_no_model_is_refused(manager: str, modifiers: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        made(manager, Layout(2, 2, 2), **modifiers)
