from __future__ import annotations

from collections.abc import Sequence

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


ON_ALL = ("/device:CPU:1", "/device:CPU:2", "/device:CPU:3")


@pytest.mark.parametrize(
    ("spec", "modifiers", "operation", "kernel_on", "bias_on"),
    [
        ("pscpu", {}, "AddN", ["/device:CPU:0"], ["/device:CPU:0"]),
        ("psgpu", {}, "AddN", ["/device:CPU:1"], ["/device:CPU:2"]),
        ("xring", {}, "AddV2", ON_ALL, ON_ALL),
        ("xring", {"gradient_repacking": 2}, "AddV2", ON_ALL, ON_ALL),
        ("xring", {"compact_gradient_transfer": True}, "AddV2", ON_ALL, ON_ALL),
        ("collective", {}, "CollectiveReduceV2", ON_ALL, ON_ALL),
    ],
)
def test_sums_are_found_where_the_reduction_makes_them(
    spec: str, modifiers: dict[str, object], operation: str, kernel_on: Sequence[str], bias_on: Sequence[str]
) -> None:
    on = {"kernel": kernel_on, "bias": bias_on}
    expected = {name: {(operation, device) for device in devices} for name, devices in on.items()}
    assert _of_reduction(spec, **modifiers) == expected


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
