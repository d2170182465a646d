"""The functions of `variable_mgr.reductions.kernels`: what they compute, on which devices, and what these send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tensorflow as tf

from variable_mgr.place import MeanFunction, Place, Turn
from variable_mgr.reductions import kernels

HOST = "/job:worker/device:CPU:9"


def towers(count: int) -> tuple[str, ...]:
    return tuple(f"/device:CPU:{tower}" for tower in range(count))


def placeholders(place: Place, elements: int = 24) -> list[tf.Tensor]:
    values = []
    for device in place.towers:
        with tf.device(device):
            values.append(tf.compat.v1.placeholder(tf.float32, [elements]))
    return values


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def sent(graph: tf.Graph) -> dict[tuple[str, str], int]:
    """Returns how many elements each device sends to each other one; a tensor is sent once, whatever reads it there."""
    moved = {
        (tensor.name, tensor.device, operation.device): tensor.shape.num_elements()
        for operation in graph.get_operations()
        for tensor in operation.inputs
        if tensor.device != operation.device
    }
    links: dict[tuple[str, str], int] = {}
    for (_, source, target), elements in moved.items():
        links[source, target] = links.get((source, target), 0) + elements
    return links


def sent_by(algorithm: MeanFunction, count: int, graph: tf.Graph, *, turn: int = 0) -> dict[tuple[str, str], int]:
    """Returns what is sent until every tower has its mean of 24 elements, by the numbers of the towers."""
    place = Place(towers(count), HOST)
    means = algorithm(placeholders(place), place, Turn(7, turn))
    assert len(means) == count
    for device, mean in zip(place.towers, means, strict=True):
        with tf.device(device):
            tf.identity(mean)
    return sent(graph)


def between(links: dict[tuple[str, str], int]) -> dict[tuple[int, int], int]:
    return {(int(source[-1]), int(target[-1])): elements for (source, target), elements in links.items()}


@pytest.mark.parametrize("algorithm", [kernels.copy_in_turn, kernels.ring, kernels.hierarchical, kernels.collective])
def test_the_mean_of_one_tower_is_its_tensor(algorithm: MeanFunction, graph: tf.Graph) -> None:
    place = Place(towers(1), HOST)
    values = placeholders(place)
    assert algorithm(values, place, Turn(0, 0))[0] is values[0]


def test_the_host_or_the_tower_in_turn_adds(graph: tf.Graph) -> None:
    links = between(sent_by(kernels.copy_to_host, 3, graph))
    assert links == {link: 24 for tower in range(3) for link in ((tower, 9), (9, tower))}
    with tf.Graph().as_default() as other:
        links = between(sent_by(kernels.copy_in_turn, 3, other, turn=1))
    assert links == {(0, 1): 24, (2, 1): 24, (1, 0): 24, (1, 2): 24}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_ring_sends_to_the_next_tower_only(count: int, graph: tf.Graph) -> None:
    each = 24 * 2 * (count - 1) // count
    assert between(sent_by(kernels.ring, count, graph)) == {
        (tower, (tower + 1) % count): each for tower in range(count)
    }


@pytest.mark.parametrize("count", [2, 4, 8])
def test_halving_and_doubling_send_half_a_tensor_to_the_farthest_partner(count: int, graph: tf.Graph) -> None:
    """Once while halving and once while doubling: n/2 towers away a half of the tensor, then a quarter, and so on."""
    expected = {}
    for round_, distance in enumerate([count >> shift for shift in range(1, count.bit_length())], start=1):
        expected |= {(tower, tower ^ distance): 2 * 24 // 2**round_ for tower in range(count)}
    assert between(sent_by(kernels.recursive_halving_doubling, count, graph)) == expected


@pytest.mark.parametrize(
    ("count", "turn", "adders"), [(4, 0, (0, 2)), (4, 1, (1, 3)), (4, 2, (0, 2)), (5, 2, (0, 4)), (3, 2, (0, 1))]
)
def test_each_of_two_groups_has_an_adder_in_turn(
    count: int, turn: int, adders: tuple[int, int], graph: tf.Graph
) -> None:
    groups = (range(count // 2), range(count // 2, count))
    expected = {adders: 24, adders[::-1]: 24}
    for adder, group in zip(adders, groups, strict=True):
        expected |= {link: 24 for tower in group if tower != adder for link in ((tower, adder), (adder, tower))}
    assert between(sent_by(kernels.hierarchical, count, graph, turn=turn)) == expected


@pytest.mark.parametrize(("algorithm", "hint"), [(kernels.collective, "ring"), (kernels.nccl, "nccl")])
def test_a_collective_is_of_all_towers_of_all_workers(algorithm: MeanFunction, hint: str, graph: tf.Graph) -> None:
    place = Place(towers(2), HOST, workers=3, worker=1, group=5)
    values = placeholders(place)
    means = algorithm(values, place, Turn(7, 0))
    reduces = [operation for operation in graph.get_operations() if operation.type == "CollectiveReduceV2"]
    assert [operation.inputs[0].name for operation in reduces] == [value.name for value in values]
    assert [operation.device for operation in reduces] == [mean.device for mean in means] == list(place.towers)
    for operation in reduces:
        assert [tf.get_static_value(tensor) for tensor in operation.inputs[1:]] == [6, 5, 8]
        attributes = {name: operation.get_attr(name) for name in ("merge_op", "final_op", "communication_hint")}
        assert attributes == {"merge_op": b"Add", "final_op": b"Id", "communication_hint": hint.encode()}
        assert operation.get_attr("timeout_seconds") == 0.0
    for mean in means:
        assert mean.op.type == "RealDiv" and tf.get_static_value(mean.op.inputs[1]) == 6


# A mean inside each of three workers, of two towers each, then across.

WORKERS = Place(
    towers=tuple(f"/job:worker/task:{worker}/device:CPU:{tower}" for worker in range(3) for tower in range(2)),
    host=HOST,
    virtual=True,
    hosts=tuple(f"/job:worker/task:{worker}/device:CPU:0" for worker in range(3) for _ in range(2)),
    group=10,
)


class Recorded:
    """A mean that remembers what it was asked for."""

    def __init__(self, mean: MeanFunction) -> None:
        self.mean = mean
        self.calls: list[tuple[list[Any], Place, Turn]] = []

    def __call__(self, values: Sequence[tf.Tensor], place: Place, turn: Turn) -> list[tf.Tensor]:
        self.calls.append((list(values), place, turn))
        return self.mean(values, place, turn)


@pytest.mark.parametrize(("tower", "head", "of_heads"), [(0, 0, 0), (1, 1, 0), (2, 0, 1), (5, 1, 2), (6, 0, 0)])
def test_two_levels_take_the_mean_of_workers_and_of_one_head_of_each(
    tower: int, head: int, of_heads: int, graph: tf.Graph
) -> None:
    inside, across = Recorded(kernels.ring), Recorded(kernels.copy_in_turn)
    values = placeholders(WORKERS)
    kernels.in_two_levels(values, WORKERS, Turn(7, tower), inside, across)
    for worker, (given, place, turn) in enumerate(inside.calls):
        own = slice(2 * worker, 2 * worker + 2)
        assert [value.name for value in given] == [value.name for value in values[own]]
        assert place == Place(WORKERS.towers[own], WORKERS.hosts[2 * worker], virtual=True, group=11 + worker)
        assert turn == Turn(7, head)
    ((given, place, turn),) = across.calls
    assert [value.device for value in given] == list(WORKERS.towers[head::2])
    assert place == Place(WORKERS.towers[head::2], HOST, group=14 + head), "of a group that no other collective has"
    assert turn == Turn(7, of_heads)


def test_one_worker_has_two_levels_too(graph: tf.Graph) -> None:
    place = Place(towers(2), HOST, hosts=(HOST, HOST))
    across = Recorded(kernels.copy_in_turn)
    results = kernels.in_two_levels(placeholders(place), place, Turn(0, 1), kernels.ring, across)
    assert [result.device for result in results] == list(place.towers)
    assert across.calls[0][1] == Place(place.towers[1:], HOST, group=4)


def test_two_levels_give_every_tower_the_mean_of_all_after_its_own(graph: tf.Graph) -> None:
    inside = Recorded(kernels.ring)
    results = kernels.in_two_levels(placeholders(WORKERS), WORKERS, Turn(0, 0), inside, kernels.copy_in_turn)
    assert [result.device for result in results] == list(WORKERS.towers)
    assert len({result.op.inputs[0].name for result in results}) == 1, "there is one mean of all"
    waited_for = [[operation.device for operation in result.op.control_inputs] for result in results]
    assert waited_for == [[device] for device in WORKERS.towers]
