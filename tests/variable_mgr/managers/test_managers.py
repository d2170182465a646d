"""What every manager promises, over all managers."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from models import building
from models.layers import Layers
from tests.support.arithmetic import weights_error
from tests.support.rotation import rotating
from tests.support.steps import on_cpus, step_of
from variable_mgr import expected, factory
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import HOST, Place

CLASSES = 5


def _make(name: str, towers: tuple[str, ...], shared: tuple[str, ...] = (HOST,)) -> VariableManager:
    return factory.make(name, Place(towers, HOST), shared_devices=shared, modifiers=Modifiers())


def _convolutional() -> building.Model:
    """A small convolutional network without batch norm or dropout, so that towers can be compared with one device."""
    with building.stateless_building(seed=5):
        layers = Layers("NHWC")
        images = keras.Input((8, 8, 3))
        x = layers.pool(layers.conv(images, 6, 3, name="conv"), "max", 2, 2, name="pool")
        return building.adapt(keras.Model(images, layers.classifier(layers.flatten(x), CLASSES)))


def _with_state() -> building.Model:
    """A network with moving averages and dropout."""
    with building.stateless_building(seed=5):
        layers = Layers("NHWC")
        images = keras.Input((8, 8, 3))
        x = layers.flatten(layers.conv_bn(images, 4, 3, name="conv"))
        x = layers.dropout(x, name="dropout")
        return building.adapt(keras.Model(images, layers.classifier(x, CLASSES)))


@pytest.mark.row("S1.5")
@rotating("towers", [2, 3, 4], first=1)
@pytest.mark.parametrize(
    ("name", "shared_on"),
    [
        ("collective_all_reduce", "cpu"),
        ("parameter_server", "cpu"),
        ("parameter_server", "gpu"),
        ("replicated", "cpu"),
    ],
)
def test_towers_equal_one_device_with_the_whole_batch(name: str, towers: int, shared_on: str) -> None:
    assert weights_error(name, towers, Modifiers(), shared_on=shared_on) <= expected.AFTER_CONVOLUTIONS


def test_a_shared_weight_decays_once_however_many_towers_read_it() -> None:
    with tf.Graph().as_default() as graph:
        model = _convolutional()
        inputs = [TowerInput(tf.zeros([2, 8, 8, 3]), tf.zeros([2], tf.int64)) for _ in range(3)]
        step_of(model, inputs, on_cpus(3), "parameter_server", weight_decay=0.01)
    products = [operation for operation in graph.get_operations() if operation.type == "Mul"]
    of_weights = [product for product in products if {each.op.type for each in product.inputs} & {"ReadVariableOp"}]
    assert len(of_weights) == sum(variable.decayed for variable in model.variables) > 0


@pytest.mark.parametrize("name", IN_ONE_PROCESS)
def test_seeds_of_towers_differ_and_the_averages_of_tower_0_are_saved(name: str) -> None:
    """What becomes of them in a step, `benchmarks.verify.model_oracle` compares."""
    manager = _make(name, ("/cpu:0", "/cpu:1", "/cpu:2"))
    with tf.Graph().as_default():
        manager.create(_with_state().variables)
        seeds = [v for v in tf.compat.v1.global_variables() if "/seed_" in v.op.name]
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=3))) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert len(seeds) == len({tuple(value) for value in session.run(seeds)}) == 3
    (average,) = manager.checkpoint_variables()["conv_bn/moving_mean"]
    assert average is manager.homes()[0]["conv_bn/moving_mean"] and "tower_1" not in average.op.name


def test_drift_is_unknown_where_no_copies_must_be_equal() -> None:
    for name, towers in (("replicated", 1), ("independent", 3), ("parameter_server", 3)):
        manager = _make(name, tuple(f"/cpu:{tower}" for tower in range(towers)))
        with tf.Graph().as_default():
            manager.create(_convolutional().variables)
            assert manager.replica_drift() is None


def test_drift_is_seen() -> None:
    """Replicas that were pulled apart on purpose."""
    manager = _make("replicated", ("/cpu:0", "/cpu:1"))
    with tf.Graph().as_default():
        manager.create(_convolutional().variables)
        drift = manager.replica_drift()
        (other,) = (v for v in tf.compat.v1.global_variables() if v.op.name == "tower_1/conv/bias")
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=2))) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(drift) == 0.0
            session.run(tf.raw_ops.AssignVariableOp(resource=other.handle, value=tf.fill([6], 0.25)))
            assert session.run(drift) == 0.25
