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
from variable_mgr.catalog import MANAGERS

RATE = DECAY = 2.0**-4
MOMENTUM = 0.9
STEPS = 4
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


def _expected(towers: int, optimizer: str, exchanged: bool) -> _Trajectory:
    """One model per tower in float64; `exchanged` averages the gradients over the towers."""
    a, b = np.full(towers, 1.0), np.full(towers, 2.0)
    velocity_a, velocity_b = np.zeros(towers), np.zeros(towers)
    trajectory = _Trajectory()
    for step in range(STEPS):
        numbers = np.take(X, np.arange(2 * towers * step, 2 * towers * (step + 1)), mode="wrap")
        mean_x = numbers.reshape(towers, 2).mean(axis=1)
        trajectory.loss.append(float(np.mean(mean_x * a * b)))
        gradient_a, gradient_b = mean_x * b + DECAY * a, mean_x * a + DECAY * b
        if exchanged:
            gradient_a, gradient_b = np.full(towers, gradient_a.mean()), np.full(towers, gradient_b.mean())
        if optimizer == "momentum":
            velocity_a, velocity_b = MOMENTUM * velocity_a + gradient_a, MOMENTUM * velocity_b + gradient_b
            gradient_a, gradient_b = velocity_a, velocity_b
        a, b = a - RATE * gradient_a, b - RATE * gradient_b
        trajectory.a.append(list(a))
        trajectory.b.append(list(b))
    return trajectory


def _copies(name: str) -> list[tf.Variable]:
    """All copies of a weight, in tower order, whatever the manager."""
    every = tf.compat.v1.global_variables()
    return sorted((v for v in every if v.op.name.endswith(f"/product/{name}")), key=lambda v: v.op.name)


def _trained(manager_name: str, towers: int, optimizer: str, shared_on: str) -> _Trajectory:
    plan = devices.plan("cpu", towers, virtual_gpus=1, shared_on=shared_on)
    with tf.Graph().as_default():
        step = training.build_training_step(
            _model(),
            _inputs(towers),
            plan,
            manager=factory.make(manager_name, tower_devices=plan.towers, shared_devices=plan.shared),
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


@pytest.mark.parametrize("shared_on", ["cpu", "gpu"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("towers", [1, 2, 3, 4])
@pytest.mark.parametrize("manager_name", MANAGERS)
def test_manager_does_the_arithmetic(manager_name: str, towers: int, optimizer: str, shared_on: str) -> None:
    expected = _expected(towers, optimizer, exchanged=manager_name != "independent")
    got = _trained(manager_name, towers, optimizer, shared_on)
    np.testing.assert_allclose(got.loss, expected.loss, rtol=1e-6, atol=1e-6)
    copies = 1 if manager_name == "parameter_server" else towers
    for name in ("a", "b"):
        values = getattr(got, name)
        assert [len(step) for step in values] == [copies] * STEPS
        np.testing.assert_allclose(values, [step[:copies] for step in getattr(expected, name)], rtol=1e-6, atol=1e-6)


def test_the_oracle_tells_a_sum_from_a_mean() -> None:
    """A check that cannot fail checks nothing: with two towers, summed gradients must be far from this oracle."""
    mean, apart = _expected(2, "sgd", exchanged=True), _expected(2, "sgd", exchanged=False)
    assert abs(mean.a[0][0] - apart.a[0][0]) > 0.01
