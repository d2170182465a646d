"""Bytes by link, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from variable_mgr import factory, traffic
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place

WORKERS = 3


@dataclasses.dataclass(frozen=True)
class _Variable:
    """A variable of which only the size matters; all are float32."""

    kind: str
    shape: tuple[int, ...]


VARIABLES = [
    _Variable("weight", (10, 10)),  # 400 bytes, to ps 0
    _Variable("weight", (20,)),  # 80 bytes, to ps 1
    _Variable("statistic", (3,)),  # 12 bytes, to ps 1
    _Variable("tower_state", (7,)),
]


def _links(manager: str, servers: int, *, training: bool = True, **modifiers: object) -> dict[str, int]:
    ps = tuple(f"/job:ps/replica:0/task:{index}/cpu:0" for index in range(servers))
    place = Place(("/cpu:0", "/cpu:1"), "/cpu:0", ps=ps, workers=WORKERS)
    made = factory.make(manager, place, shared_devices=(place.host,), modifiers=Modifiers(**modifiers))
    return made.links(VARIABLES, training=training)


@pytest.mark.parametrize(("compact", "back"), [(False, 1.0), (True, 0.5)])
def test_every_worker_gets_all_and_only_the_first_sends_moving_averages_back(compact: bool, back: float) -> None:
    sent = _links("parameter_server", 2, compact_gradient_transfer=compact)
    for worker in range(WORKERS):
        assert sent[f"ps 0 -> worker {worker}"] == 400
        assert sent[f"ps 1 -> worker {worker}"] == 92
        assert sent[f"worker {worker} -> ps 0"] == 400 * back
        assert sent[f"worker {worker} -> ps 1"] == 80 * back + (12 if worker == 0 else 0)
    assert len(sent) == 4 * WORKERS
    assert traffic.busiest_server(sent) == WORKERS * 400 * (1 + back)


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
    assert manager.links(VARIABLES) == {
        "ps 0 -> worker 0": 400 * fetched,
        "ps 0 -> worker 1": 400 * fetched,
        "ps 1 -> worker 0": 92 * fetched,
        "ps 1 -> worker 1": 92 * fetched,
        "worker 0 -> ps 0": 400 * sent_back,
        "worker 1 -> ps 0": 400 * sent_back,
        "worker 0 -> ps 1": 80 * sent_back + 12,
        "worker 1 -> ps 1": 80 * sent_back,
    }
    assert manager.link_transfers(VARIABLES) == 2 * 3 * fetched + 2 * 2 * fetched + 1, "averages once, from worker 0"
    inference = manager.links(VARIABLES, training=False)
    assert sum(inference.values()) == 2 * 492 * fetched and all(link.startswith("ps") for link in inference)
    assert manager.link_transfers(VARIABLES, training=False) == 2 * 3 * fetched


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
    assert traffic.busiest_server(sent) is None


def test_one_process_sends_nothing() -> None:
    place = Place(("/cpu:0",), "/cpu:0")
    assert not factory.make("replicated", place, shared_devices=("/cpu:0",), modifiers=Modifiers()).links(VARIABLES)


@pytest.mark.parametrize("features_are_images", [False, True])
def test_images_need_no_gradient(features_are_images: bool) -> None:
    """Two towers with 4 images each send 784 features, 100 hidden units and 10 logits to each other."""
    layers = traffic.DividedLayers(4, 784, (100, 10), features_are_images=features_are_images)
    forward = 4 * (8 * 784 + 8 * 100 + 4 * 10)
    backward = forward - 4 * 8 * 784 * features_are_images
    assert layers.activation_bytes(2) == forward + backward
    assert layers.activation_transfers(2) == 2 * 3 + 2 * (2 if features_are_images else 3)
