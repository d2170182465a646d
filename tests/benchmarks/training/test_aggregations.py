from __future__ import annotations

import pytest
import tensorflow as tf

from benchmarks.training.placement_table import aggregations
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.reductions import wrappers

NAMES = ("kernel", "bias")


def _of_reduction(spec: str, towers: int = 3, **modifiers: object) -> dict[str, set[tuple[str, str]]]:
    place = Place(tuple(f"/device:CPU:{tower + 1}" for tower in range(towers)), "/device:CPU:0")
    with tf.Graph().as_default():
        gradients = []
        for device in place.towers:
            with tf.device(device):
                gradients.append({name: tf.random.normal([12]) for name in NAMES})
        made = wrappers.reduction(place, Modifiers(**modifiers), spec)
        made.mean([list(own.values()) for own in gradients])
        found = aggregations(gradients)
    return {name: set(map(tuple, group["operations"])) for group in found for name in group["gradients"]}


def test_the_host_sums_what_is_copied_there() -> None:
    assert _of_reduction("pscpu") == dict.fromkeys(NAMES, {("AddN", "/device:CPU:0")})


def test_towers_sum_in_turn() -> None:
    assert _of_reduction("psgpu") == {"kernel": {("AddN", "/device:CPU:1")}, "bias": {("AddN", "/device:CPU:2")}}


@pytest.mark.parametrize("modifiers", [{}, {"gradient_repacking": 2}, {"compact_gradient_transfer": True}])
def test_around_a_ring_every_tower_sums(modifiers: dict[str, object]) -> None:
    on_all = {("AddV2", f"/device:CPU:{tower + 1}") for tower in range(3)}
    assert _of_reduction("xring", **modifiers) == dict.fromkeys(NAMES, on_all)


def test_collectives_sum_on_every_tower() -> None:
    on_all = {("CollectiveReduceV2", f"/device:CPU:{tower + 1}") for tower in range(3)}
    assert _of_reduction("collective") == dict.fromkeys(NAMES, on_all)


def test_nothing_is_summed_of_one_tower() -> None:
    assert _of_reduction("pscpu", towers=1) == {}


def test_staged_gradients_are_summed_after_their_stage() -> None:
    with tf.Graph().as_default():
        own = [{name: tf.random.normal([2]) for name in NAMES} for _ in range(2)]
        staged = []
        for tower, gradients in enumerate(own):
            tf.raw_ops.Stage(values=list(gradients.values()), shared_name=f"area {tower}")
            staged.append(tf.raw_ops.Unstage(dtypes=[tf.float32] * 2, shared_name=f"area {tower}"))
        with tf.device("/cpu:1"):
            tf.add_n([values[0] for values in staged])
        assert aggregations(own) == [{"operations": [["AddN", "/device:CPU:1"]], "gradients": ["kernel"]}]
