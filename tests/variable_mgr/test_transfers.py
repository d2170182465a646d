"""What a step sends, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.config.variable_update import Variables
from benchmarks.graph.sent_bytes import manager_on_real_devices
from benchmarks.process.tensorflow_setup import Devices
from models.building import ModelVariable, VariableKind
from tests.support.steps import variable
from variable_mgr import factory
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS, find_algorithm
from variable_mgr.transfers import (
    DEVICE,
    HOST,
    Transfer,
    busiest_server,
    by_kind,
    by_link,
    total_bytes,
    total_number,
)

WORKERS = 3


def _variable(kind: VariableKind, *shape: int) -> ModelVariable:
    return variable("layer/kernel", np.zeros(shape, np.float32), kind)


WEIGHTS = [
    _variable("weight", 1000),
    _variable("weight", 24),  # with the first 4096 bytes
    _variable("statistic", 7),
]
VARIABLES = [
    _variable("weight", 10, 10),  # 400 bytes, to ps 0
    _variable("weight", 20),  # 80 bytes, to ps 1
    _variable("statistic", 3),  # 12 bytes, to ps 1
    _variable("tower_state", 7),
]


def _sent(manager: str, towers: int, *, on_host: bool = True, **modifiers: object) -> list[Transfer]:
    shared_on = "cpu" if on_host else "gpu"
    spec = {"all_reduce_spec": "pscpu" if on_host else "psgpu"} if manager == "replicated" else {}
    variables = Variables(variable_update=manager, shared_on=shared_on, modifiers=Modifiers(**{**spec, **modifiers}))
    return manager_on_real_devices(Devices(num_devices=towers), variables).transfers(WEIGHTS)


@pytest.mark.row("S3.1")
def test_by_hand() -> None:
    assert _sent("independent", 4) == []
    # Every one of 4 towers reads all from the host and sends all to it.
    from_host, each = _sent("parameter_server", 4), (4 * 2, 4 * 4096)
    assert total_bytes(from_host, "read") == total_bytes(from_host, "gradient") == 4 * 4096
    assert by_kind(from_host) == {"host to device": each, "device to host": each}
    # Each variable lives on one of the towers: three others read it.
    from_towers = _sent("parameter_server", 4, on_host=False)
    assert total_bytes(from_towers, "read") == total_bytes(from_towers, "gradient") == 3 * 4096
    assert by_kind(from_towers) == {"device to device": (2 * 3 * 2, 2 * 3 * 4096)}
    # Each of 4 towers of a ring sends 2 * 3/4 of the bytes.
    assert total_bytes(_sent("replicated", 4, all_reduce_spec="xring"), "gradient") == 4 * 2 * 3 * 4096 // 4
    assert total_bytes(_sent("local_sgd", 4, local_sgd_steps=4), "weight") == 2 * 4096
    assert total_bytes(_sent("local_sgd", 4, local_sgd_steps=3)) == 8 * 4096 // 3, "whole bytes, on average"
    # The two travel together, 1024 elements, so by xring.
    together = {"agg_small_grads_max_bytes": 4000, "all_reduce_spec": "pscpu:1000:xring"}
    assert total_bytes(_sent("replicated", 2, **together)) == 2 * 4096


@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_one_tower_on_its_own_device_sends_nothing(manager: str) -> None:
    assert total_bytes(_sent(manager, 1, on_host=False)) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(towers=st.integers(2, 64))
def test_no_algorithm_sends_less_than_is_needed(algorithm: str, towers: int) -> None:
    """Every tower must give its values away and get the mean: 2 (n-1) in all, but a group may share."""
    sent = total_bytes(ALGORITHMS[algorithm].transfers(towers, 1))
    assert sent is not None and sent >= 2 * (towers - 1)


def test_what_an_algorithm_does_not_state_is_unknown() -> None:
    unknown = find_algorithm("psgpu/xring").transfers(4, 1)
    assert total_bytes(unknown) is None and by_kind(unknown) is None
    assert total_bytes([*unknown, Transfer(HOST, DEVICE, 8, what="read")], "read") == 8


def _links(manager: str, servers: int, *, training: bool = True, **modifiers: object) -> dict[str, int]:
    ps = tuple(f"/job:ps/replica:0/task:{index}/cpu:0" for index in range(servers))
    place = Place(("/cpu:0", "/cpu:1"), "/cpu:0", ps=ps, workers=WORKERS)
    made = factory.make(manager, place, shared_devices=(place.host,), modifiers=Modifiers(**modifiers))
    return by_link(made.transfers(VARIABLES, training=training))


@pytest.mark.parametrize(("compact", "back"), [(False, 1.0), (True, 0.5)])
def test_every_worker_gets_all_and_only_the_first_sends_moving_averages_back(compact: bool, back: float) -> None:
    sent = _links("parameter_server", 2, compact_gradient_transfer=compact)
    for worker in range(WORKERS):
        assert sent[f"ps 0 -> worker {worker}"] == 400
        assert sent[f"ps 1 -> worker {worker}"] == 92
        assert sent[f"worker {worker} -> ps 0"] == 400 * back
        assert sent[f"worker {worker} -> ps 1"] == 80 * back + (12 if worker == 0 else 0)
    assert len(sent) == 4 * WORKERS
    assert busiest_server(sent) == WORKERS * 400 * (1 + back)


def test_masters_are_of_weights_only() -> None:
    sent = _links("distributed_replicated", 2)
    assert sent == {
        link: size
        for n in range(WORKERS)
        for ps, size in ((0, 400), (1, 80))
        for link in (f"ps {ps} -> worker {n}", f"worker {n} -> ps {ps}")
    }


def _one_client(**modifiers: object) -> VariableManager:
    """Two workers, the first with two towers and the second with two."""
    ps = tuple(f"/job:ps/replica:0/task:{index}/cpu:0" for index in range(2))
    hosts = ("worker 0", "worker 0", "worker 1", "worker 1")
    place = Place(("/cpu:0", "/cpu:1", "/cpu:2", "/cpu:3"), "worker 0", ps=ps, hosts=hosts)
    return factory.make("in_graph_parameter_server", place, shared_devices=(), modifiers=Modifiers(**modifiers))


@pytest.mark.parametrize(
    ("modifiers", "fetched", "sent_back"),
    [
        ({}, 1, 1),
        ({"staged_vars": True}, 1, 1),
        ({"compact_gradient_transfer": True}, 1, 0.5),
        ({"asynchronous": True}, 2, 2),
    ],
)
def test_one_client_has_each_worker_send_what_its_own_client_would(
    modifiers: dict[str, object], fetched: int, sent_back: float
) -> None:
    """Asynchronous towers, two of each worker, fetch and send on their own."""
    manager = _one_client(**modifiers)
    sent = manager.transfers(VARIABLES)
    assert by_link(sent) == {
        "ps 0 -> worker 0": 400 * fetched,
        "ps 0 -> worker 1": 400 * fetched,
        "ps 1 -> worker 0": 92 * fetched,
        "ps 1 -> worker 1": 92 * fetched,
        "worker 0 -> ps 0": 400 * sent_back,
        "worker 1 -> ps 0": 400 * sent_back,
        "worker 0 -> ps 1": 80 * sent_back + 12,
        "worker 1 -> ps 1": 80 * sent_back,
    }
    assert total_number(sent) == 2 * 3 * fetched + 2 * 2 * fetched + 1, "averages once, from worker 0"
    inference = manager.transfers(VARIABLES, training=False)
    assert total_bytes(inference, "read") == total_bytes(inference) == 2 * 492 * fetched
    assert total_number(inference) == 2 * 3 * fetched


def test_a_forward_pass_only_fetches() -> None:
    sent = _links("parameter_server", 2, training=False)
    assert sent == {f"ps {ps} -> worker {n}": size for n in range(WORKERS) for ps, size in ((0, 400), (1, 92))}
    assert not _links("distributed_replicated", 2, training=False)
    assert not _links("collective_all_reduce", 0, training=False)


@pytest.mark.parametrize(
    ("manager", "modifiers", "share"),
    [
        ("collective_all_reduce", {}, 1),
        ("collective_all_reduce", {"compact_gradient_transfer": True}, 0.5),
        ("local_sgd", {"local_sgd_steps": 4}, 0.25),
    ],
)
def test_a_ring_of_all_towers_crosses_from_each_worker_to_the_next(
    manager: str, modifiers: dict[str, object], share: float
) -> None:
    sent = _links(manager, 0, **modifiers)
    each = round(2 * 5 / 6 * 480 * share)
    assert sent == {"worker 0 -> worker 1": each, "worker 1 -> worker 2": each, "worker 2 -> worker 0": each}
    assert busiest_server(sent) is None


def test_one_process_sends_nothing_to_others() -> None:
    place = Place(("/cpu:0", "/cpu:1"), "/cpu:0")
    made = factory.make("replicated", place, shared_devices=("/cpu:0",), modifiers=Modifiers())
    assert not by_link(made.transfers(VARIABLES))
