from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.training.placement_table import placement_table
from models import building, parts
from tests.support.steps import on_cpus, step_of
from variable_mgr.modifiers import Modifiers

KERNEL_BYTES, BIAS_BYTES = 4 * 6 * 3, 4 * 3


def _table(manager: str, optimizer: str, shared_on: str, **modifiers: bool) -> dict:
    plan = on_cpus(2, shared_on)
    with building.stateless_building(seed=0):
        images = keras.Input((6,))
        model = building.adapt(keras.Model(images, keras.layers.Dense(3, name="logits")(images)))
    with tf.Graph().as_default():
        model = parts.split(model) if modifiers.get("fc_model_parallel") else model
        inputs = [TowerInput(tf.ones([2, 6]), tf.zeros([2], tf.int64))] * 2
        _, made = step_of(model, inputs, plan, manager, Modifiers(**modifiers), optimizer=optimizer)
        return placement_table(made, plan, training=True, variables=model.variables)


@pytest.mark.row("S3.11")
@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("momentum", 1), ("rmsprop", 2), ("adam", 2)])
def test_copies_and_their_slots_are_on_every_tower(optimizer: str, slots: int) -> None:
    table = _table("replicated", optimizer, "cpu")
    one = KERNEL_BYTES + BIAS_BYTES
    assert (table["variables"], table["weights"]) == (4, 4)
    assert table["variable_bytes_per_device"] == {"/device:CPU:0": one, "/device:CPU:1": one}
    assert table["slot_bytes_per_device"] == (
        {name: slots * one for name in table["variable_bytes_per_device"]} if slots else {}
    )
    assert table["gradient_bytes_per_device"] == {"/device:CPU:0": one, "/device:CPU:1": one}


@pytest.mark.row("S1.2", "S3.11", "G3.2")
def test_shared_variables_and_their_slots_are_where_they_live() -> None:
    assert {*_table("parameter_server", "sgd", "cpu")["variable_bytes_per_device"]} == {"/device:CPU:0"}
    table = _table("parameter_server", "momentum", "gpu")
    assert table["variables"] == 2
    assert table["variable_bytes_per_device"] == {"/device:CPU:0": KERNEL_BYTES, "/device:CPU:1": BIAS_BYTES}
    assert table["slot_bytes_per_device"] == table["variable_bytes_per_device"]
    assert set(table["gradient_bytes_per_device"].values()) == {KERNEL_BYTES + BIAS_BYTES}


@pytest.mark.row("G1.5")
def test_staging_areas_are_in_the_table() -> None:
    assert _table("parameter_server", "sgd", "gpu")["staged_bytes_per_device"] == {}
    staged = _table("parameter_server", "sgd", "gpu", staged_vars=True)["staged_bytes_per_device"]
    # Each tower stages the weights of the next step and its gradients.
    assert staged == {f"/device:CPU:{tower}": 2 * (KERNEL_BYTES + BIAS_BYTES) for tower in range(2)}


def test_a_tower_makes_gradients_of_its_own_columns_only() -> None:
    table = _table("replicated", "sgd", "cpu", fc_model_parallel=True)
    # Three columns of the kernel [6, 3] and three of the bias, one and two of them.
    assert table["gradient_bytes_per_device"] == {"/device:CPU:0": 4 * 7 * 1, "/device:CPU:1": 4 * 7 * 2}
    assert table["variable_bytes_per_device"] == table["gradient_bytes_per_device"]
    assert (table["variables"], table["weights"]) == (4, 4)
