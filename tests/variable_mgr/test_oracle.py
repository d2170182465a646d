"""Every manager against arithmetic in NumPy that was written independently of the code under test.

loss = mean over the batch of x * a * b, with scalars a = 1, b = 2 and x = the 16 numbers -1..14 in order, two per tower
and step; learning rate 2^-4, weight decay 2^-4.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import devices, optimizers, training
from benchmarks.inputs import TowerInput
from models import building
from variable_mgr import factory
from variable_mgr.algorithms import ALGORITHMS, Place
from variable_mgr.catalog import MANAGERS
from variable_mgr.modifiers import Modifiers, why_not

PLAIN = Modifiers()
RATE = DECAY = 2.0**-4
MOMENTUM = 0.9
STEPS = 5
X = np.arange(-1.0, 15.0)


class _Product(keras.layers.Layer):
    def build(self, input_shape: object) -> None:
        self.a = self.add_weight(shape=(), initializer=keras.initializers.Constant(1.0), name="a")
        self.b = self.add_weight(shape=(), initializer=keras.initializers.Constant(2.0), name="b")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.convert_to_tensor(self.a) * tf.convert_to_tensor(self.b)


def _model() -> building.Model:
    with building.stateless_building(seed=0):
        x = keras.Input((1,))
        return building.adapt(keras.Model(x, _Product(name="product")(x)))


def _inputs(towers: int) -> list[TowerInput]:
    """Two numbers per tower and step, in order over the towers, then over the steps, round and round."""
    dataset = tf.data.Dataset.from_tensor_slices(X.astype(np.float32)[:, np.newaxis]).repeat().batch(2 * towers)
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    return [TowerInput(batch[2 * i : 2 * i + 2], tf.zeros([2], tf.int64)) for i in range(towers)]


@dataclasses.dataclass
class _Trajectory:
    """a and b of every copy, and the mean loss, after each step."""

    a: list[list[float]] = dataclasses.field(default_factory=list)
    b: list[list[float]] = dataclasses.field(default_factory=list)
    loss: list[float] = dataclasses.field(default_factory=list)


class _Update:
    """sgd or momentum on the two scalars of every copy."""

    def __init__(self, optimizer: str) -> None:
        self._momentum = MOMENTUM if optimizer == "momentum" else 0.0
        self._velocity = np.zeros((2, 1))

    def __call__(self, weights: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        self._velocity = self._momentum * self._velocity + gradients
        return weights - RATE * self._velocity


def _expected(towers: int, optimizer: str, exchanged: bool, mode: str = "plain") -> _Trajectory:
    """One model per tower in float64, [a or b, tower]; `exchanged` averages the gradients over the towers.

    Modes: `relaxed` applies the gradients of the step before, zeros first. `staged` computes with the weights of two
    updates ago and applies the gradients of the step before; the first are of batch 0, which filled the stages.
    """
    weights = np.tile([[1.0], [2.0]], (1, towers))
    update, trajectory = _Update(optimizer), _Trajectory()
    history, earlier = [weights, weights], np.zeros((2, towers))
    for step in range(-1 if mode == "staged" else 0, STEPS):
        batch = step + 1 if mode == "staged" else step
        used = history[-2] if mode == "staged" else weights
        numbers = np.take(X, np.arange(2 * towers * batch, 2 * towers * (batch + 1)), mode="wrap")
        mean_x = numbers.reshape(towers, 2).mean(axis=1)
        gradients = mean_x * used[::-1] + DECAY * used
        if exchanged:
            gradients = np.tile(gradients.mean(axis=1, keepdims=True), (1, towers))
        applied, earlier = (gradients if mode == "plain" else earlier), gradients
        if step < 0:
            continue
        weights = update(weights, applied)
        history.append(weights)
        trajectory.loss.append(float(np.mean(mean_x * used[0] * used[1])))
        trajectory.a.append(list(weights[0]))
        trajectory.b.append(list(weights[1]))
    return trajectory


def _copies(name: str) -> list[tf.Variable]:
    """All copies of a weight, in tower order, whatever the manager."""
    every = tf.compat.v1.global_variables()
    return sorted((v for v in every if v.op.name.endswith(f"/product/{name}")), key=lambda v: v.op.name)


def _trained(
    manager_name: str, towers: int, optimizer: str, shared_on: str = "cpu", modifiers: Modifiers = PLAIN
) -> _Trajectory:
    plan = devices.plan("cpu", towers, virtual_gpus=1, shared_on=shared_on)
    place = Place(plan.towers, devices.HOST)
    with tf.Graph().as_default():
        step = training.build_training_step(
            _model(),
            _inputs(towers),
            plan,
            manager=factory.make(manager_name, place, shared_devices=plan.shared, modifiers=modifiers),
            optimizer=optimizers.make(optimizer, learning_rate=RATE, momentum=MOMENTUM),
            objective=training.Objective(loss=lambda outputs, labels: tf.reduce_mean(outputs), weight_decay=DECAY),
        )
        a, b = _copies("a"), _copies("b")
        trajectory = _Trajectory()
        with tf.compat.v1.Session(config=devices.session_config("cpu", towers)) as session:
            for operation in step.initializers:
                session.run(operation)
            for _ in range(STEPS):
                trajectory.loss.append(float(session.run([step.loss, step.operation])[0]))
                trajectory.a.append([float(value) for value in session.run(a)])
                trajectory.b.append([float(value) for value in session.run(b)])
    return trajectory


def _compare(got: _Trajectory, expected: _Trajectory, copies: int, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(got.loss, expected.loss, rtol=tolerance, atol=tolerance)
    for name in ("a", "b"):
        values = getattr(got, name)
        assert [len(step) for step in values] == [copies] * STEPS
        wanted = [step[:copies] for step in getattr(expected, name)]
        np.testing.assert_allclose(values, wanted, rtol=tolerance, atol=tolerance)


every_count = pytest.mark.parametrize("towers", [1, 2, 3, 4])
every_optimizer = pytest.mark.parametrize("optimizer", ["sgd", "momentum"])


@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@every_optimizer
@every_count
@pytest.mark.parametrize("manager_name", MANAGERS)
def test_manager_does_the_arithmetic(manager_name: str, towers: int, optimizer: str, shared_on: str) -> None:
    expected = _expected(towers, optimizer, exchanged=manager_name != "independent")
    copies = 1 if manager_name == "parameter_server" else towers
    _compare(_trained(manager_name, towers, optimizer, shared_on), expected, copies)


def _refused(modifiers: Modifiers, towers: int) -> str | None:
    return why_not("replicated", modifiers, Place(tuple(f"/cpu:{i}" for i in range(towers)), devices.HOST))


TRANSFERS = {
    "plain": {},
    "relaxed": {"relaxed_consistency": True},
    "repacked": {"gradient_repacking": 2},
    "aggregated": {"agg_small_grads_max_bytes": 1024},
    "compact": {"compact_gradient_transfer": True},
    "everything": {"relaxed_consistency": True, "gradient_repacking": 1, "compact_gradient_transfer": True},
}


@pytest.mark.parametrize("transfer", TRANSFERS)
@every_count
@pytest.mark.parametrize("spec", [*ALGORITHMS, "xring#2", "pscpu:1:xring"])
def test_reduction_does_the_arithmetic(spec: str, towers: int, transfer: str) -> None:
    modifiers = Modifiers(all_reduce_spec=spec, **TRANSFERS[transfer])
    sentence = _refused(modifiers, towers)
    if sentence:
        pytest.skip(sentence)
    mode = "relaxed" if modifiers.relaxed_consistency else "plain"
    expected = _expected(towers, "sgd", exchanged=True, mode=mode)
    tolerance = 4e-3 if modifiers.compact_gradient_transfer else 1e-6
    _compare(_trained("replicated", towers, "sgd", modifiers=modifiers), expected, towers, tolerance)


@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@every_optimizer
@every_count
def test_staging_delays_exactly_as_it_says(towers: int, optimizer: str, shared_on: str) -> None:
    expected = _expected(towers, optimizer, exchanged=True, mode="staged")
    got = _trained("parameter_server", towers, optimizer, shared_on, Modifiers(staged_vars=True))
    _compare(got, expected, copies=1)


def test_the_oracle_tells_a_sum_from_a_mean_and_the_modes_apart() -> None:
    """A check that cannot fail checks nothing."""
    mean, apart = _expected(2, "sgd", exchanged=True), _expected(2, "sgd", exchanged=False)
    assert abs(mean.a[0][0] - apart.a[0][0]) > 0.01
    modes = [_expected(2, "sgd", exchanged=True, mode=mode) for mode in ("plain", "relaxed", "staged")]
    assert len({tuple(step[0] for step in mode.a) for mode in modes}) == 3
