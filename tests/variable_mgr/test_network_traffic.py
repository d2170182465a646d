"""Bytes by link, worked out by hand."""

from __future__ import annotations

import pytest

from variable_mgr import network_traffic
from variable_mgr.manager import Placed
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place

WORKERS = 3


def _server(index: int) -> str:
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


ON_SERVERS = [
    Placed("name", "weight", _server(0), 400),
    Placed("name", "weight", _server(1), 80),
    Placed("name", "statistic", _server(1), 12),
]
OWN = Placed("name", "tower_state", "/job:worker/replica:0/task:0/device:CPU:0", 7)


def _place(servers: int) -> Place:
    ps = tuple(_server(index) for index in range(servers))
    return Place(("/cpu:0", "/cpu:1"), "/cpu:0", ps=ps, workers=WORKERS)


@pytest.mark.parametrize(("modifiers", "back"), [(Modifiers(), 1.0), (Modifiers(compact_gradient_transfer=True), 0.5)])
def test_every_worker_gets_all_and_only_the_first_sends_moving_averages_back(modifiers: Modifiers, back: float) -> None:
    sent = network_traffic.links("parameter_server", modifiers, _place(2), [*ON_SERVERS, OWN])
    for worker in range(WORKERS):
        assert sent[f"ps 0 -> worker {worker}"] == 400
        assert sent[f"ps 1 -> worker {worker}"] == 92
        assert sent[f"worker {worker} -> ps 0"] == 400 * back
        assert sent[f"worker {worker} -> ps 1"] == 80 * back + (12 if worker == 0 else 0)
    assert len(sent) == 4 * WORKERS
    assert network_traffic.busiest_server(sent) == WORKERS * 400 * (1 + back)


def test_a_forward_pass_only_fetches() -> None:
    sent = network_traffic.fetched(_place(2), [*ON_SERVERS, OWN])
    assert sent == {f"ps {ps} -> worker {n}": size for n in range(WORKERS) for ps, size in ((0, 400), (1, 92))}


@pytest.mark.parametrize(("manager", "every", "share"), [("collective_all_reduce", None, 1), ("local_sgd", 4, 0.25)])
def test_a_ring_of_all_towers_crosses_from_each_worker_to_the_next(
    manager: str, every: int | None, share: float
) -> None:
    placed = [Placed("name", "weight", device, 600) for device in ("/cpu:0", "/cpu:1")] + [OWN]
    sent = network_traffic.links(manager, Modifiers(local_sgd_steps=every), _place(0), placed)
    each = round(2 * 5 / 6 * 600 * share)
    assert sent == {"worker 0 -> worker 1": each, "worker 1 -> worker 2": each, "worker 2 -> worker 0": each}
    assert network_traffic.busiest_server(sent) is None


def test_one_process_sends_nothing() -> None:
    assert not network_traffic.links("replicated", Modifiers(), Place(("/cpu:0",), "/cpu:0"), [OWN])
