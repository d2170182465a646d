"""What every manager promises, over all managers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training.placement_table import size_bytes
from models import building
from models.layers import Layers
from tests.support.rotation import rotating
from tests.support.steps import on_cpus, step_of
from variable_mgr import factory
from variable_mgr.catalog import IN_ONE_PROCESS
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import HOST, Place

pytestmark = pytest.mark.xdist_group("managers")  # they share what has been trained
every_manager = pytest.mark.parametrize("name", IN_ONE_PROCESS)
BATCH, CLASSES = 12, 5


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


class _Trained:
    """A model after some steps under a manager, on fixed data split evenly over the towers."""

    def __init__(
        self, name: str, towers: int, make_model: Callable[[], building.Model], shared_on: str = "cpu", steps: int = 5
    ) -> None:
        generator = np.random.default_rng(1)
        self.images = np.split(generator.normal(size=(BATCH, 8, 8, 3)).astype(np.float32), towers)
        labels = np.split(generator.integers(0, CLASSES, BATCH), towers)
        with tf.Graph().as_default():
            inputs = [TowerInput(tf.constant(i), tf.constant(j)) for i, j in zip(self.images, labels, strict=True)]
            plan = on_cpus(towers, shared_on)
            step, self.manager = step_of(make_model(), inputs, plan, name, optimizer="momentum", weight_decay=0.01)
            drift = self.manager.replica_drift()
            everything = {v.op.name: v for v in tf.compat.v1.global_variables()}
            with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=towers))) as session:
                step.initialize(session)
                self.initial = session.run(everything)
                for _ in range(steps):
                    step.take(session)
                self.final = session.run(everything)
                parts = session.run(self.manager.checkpoint_variables())
                self.checkpoint = {name: np.concatenate(values, axis=-1) for name, values in parts.items()}
                self.drift = None if drift is None else float(session.run(drift))


_trained = functools.cache(_Trained)


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
    one = _trained("replicated", 1, _convolutional)
    many = _trained(name, towers, _convolutional, shared_on)
    assert many.checkpoint.keys() == one.checkpoint.keys()
    for variable, value in one.checkpoint.items():
        assert np.abs(value - one.initial[f"tower_0/{variable}"]).max() > 1e-3, f"{variable} was not trained at all"
        np.testing.assert_allclose(many.checkpoint[variable], value, atol=1e-5, rtol=1e-5)


def test_a_shared_weight_decays_once_however_many_towers_read_it() -> None:
    with tf.Graph().as_default() as graph:
        model = _convolutional()
        inputs = [TowerInput(tf.zeros([2, 8, 8, 3]), tf.zeros([2], tf.int64)) for _ in range(3)]
        step_of(model, inputs, on_cpus(3), "parameter_server", weight_decay=0.01)
    products = [operation for operation in graph.get_operations() if operation.type == "Mul"]
    of_weights = [product for product in products if {each.op.type for each in product.inputs} & {"ReadVariableOp"}]
    assert len(of_weights) == sum(variable.decayed for variable in model.variables) > 0


@every_manager
def test_copies_start_equal_and_dropout_seeds_differ(name: str) -> None:
    trained = _trained(name, 3, _with_state, steps=1)
    copies: dict[str, list[np.ndarray]] = {}
    for variable, value in trained.initial.items():
        if variable.startswith("tower_") and not variable.endswith("momentum"):
            copies.setdefault(variable.split("/", 1)[1], []).append(value)
    seeds = [values for variable, values in copies.items() if variable.startswith("seed_")]
    assert seeds, "the model has dropout"
    for values in seeds:
        assert len({tuple(value) for value in values}) == 3
    for variable, values in copies.items():
        if not variable.startswith("seed_"):
            assert all((value == values[0]).all() for value in values), variable


def _moving_averages(trained: _Trained, tower: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes in NumPy what a tower's first batch makes of the averages: of a 3x3 convolution, padded by one pixel.

    The old averages, 0 and 1, count 0.9, and the variance is the unbiased one.
    """
    kernel = next(value for key, value in trained.initial.items() if key.endswith("/conv/kernel"))
    padded = np.pad(trained.images[tower].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    outputs = np.einsum("bxychw,hwco->bxyo", windows, kernel).reshape(-1, kernel.shape[-1])
    return 0.1 * outputs.mean(axis=0), 0.9 + 0.1 * outputs.var(axis=0, ddof=1)


@every_manager
def test_moving_averages_of_the_checkpoint_are_those_of_tower_0_and_dropout_draws_anew(name: str) -> None:
    """Each tower that has a copy keeps its own averages."""
    trained = _trained(name, 2, _with_state, steps=1)
    found = {0: {key: trained.checkpoint[f"conv_bn/moving_{key}"] for key in ("mean", "variance")}}
    if name == "replicated":
        found[1] = {key: trained.final[f"tower_1/conv_bn/moving_{key}"] for key in ("mean", "variance")}
    for tower, averages in found.items():
        mean, variance = _moving_averages(trained, tower)
        np.testing.assert_allclose(averages["mean"], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(averages["variance"], variance, rtol=1e-4)
    seeds = [variable for variable in trained.final if "/seed_" in variable]
    assert len(seeds) == 2
    for variable in seeds:
        assert (trained.final[variable] != trained.initial[variable]).any()


def test_drift_is_zero_where_copies_are_equal_and_unknown_elsewhere() -> None:
    assert _trained("replicated", 3, _convolutional).drift == 0.0
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


@pytest.mark.row("S1.2", "S3.11", "G3.2")
def test_number_and_place_of_copies() -> None:
    weights = 4  # conv kernel and bias, logits kernel and bias

    def created(manager: str, shared_on: str = "cpu") -> list[tf.Variable]:
        homes = _trained(manager, 2, _convolutional, shared_on).manager.homes()
        return [variable for home in homes for variable in home.values()]

    shared, copies = created("parameter_server"), created("replicated")
    assert [variable.device for variable in shared] == ["/device:CPU:0"] * weights
    assert {variable.device for variable in created("parameter_server", "gpu")} == {"/device:CPU:0", "/device:CPU:1"}
    assert [variable.device for variable in copies] == ["/device:CPU:0"] * weights + ["/device:CPU:1"] * weights
    assert sum(map(size_bytes, copies)) == 2 * sum(map(size_bytes, shared))
