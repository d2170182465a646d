"""Two references that every variable manager is compared with: scalars in NumPy, and one device with the whole batch.

The first: loss = mean over the batch of x * a * b, with scalars a = 1, b = 2 and x = the 16 numbers -1..14 in order,
two per tower and step; learning rate 2^-4, weight decay 2^-4. What must come out is computed in float64 by NumPy,
without any of the code under test. The second: a small convolutional network without batch normalisation, on N towers
and on one device with the N-fold batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks import objectives, optimizers, training
from benchmarks.devices import HOST, Devices
from benchmarks.inputs import TowerInput
from models import building, splitting
from models.layers import Layers
from variable_mgr.manager import VariableManager

STEPS = 5
_RATE = _DECAY = 2.0**-4
_MOMENTUM = 0.9
_X = np.arange(-1.0, 15.0)
_PER_TOWER = 2
_IMAGES_PER_TOWER, _IMAGE_SIZE, _CLASSES = 3, 8, 5

MakeManager = Callable[..., VariableManager]


@dataclasses.dataclass
class Trajectory:
    """The scalars a and b of every copy, and the mean loss, after each step."""

    a: list[list[float]] = dataclasses.field(default_factory=list)
    b: list[list[float]] = dataclasses.field(default_factory=list)
    loss: list[float] = dataclasses.field(default_factory=list)

    def error(self, other: Trajectory) -> float:
        """Returns the largest relative difference, absolute below 1; infinite if steps or copies are missing."""
        pairs = ((self.a, other.a), (self.b, other.b), (self.loss, other.loss))
        return max(relative_error(np.asarray(mine), np.asarray(theirs)) for mine, theirs in pairs)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the largest relative difference, absolute below 1; infinite for other shapes or what is not finite."""
    if got.shape != wanted.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.max(np.abs(got - wanted) / np.maximum(1.0, np.abs(wanted))))


def expected(
    towers: int, optimizer: str, *, exchanged: bool, mode: str = "plain", copies: int = 0, average_every: int = 0
) -> Trajectory:
    """Computes what must come out, one model per tower, in float64.

    Args:
        towers: how many.
        optimizer: `sgd` or `momentum`.
        exchanged: whether the gradients are averaged over the towers.
        mode: `plain`; `relaxed` applies the gradients of the step before, zeros first; `staged` computes with the
            weights of two updates ago and applies the gradients of the step before, the first of which are of batch 0,
            which filled the stages.
        copies: how many copies of the weights to report; 0: one per tower.
        average_every: steps after which the weights of all towers are set to their mean; 0: never.
    """
    weights = np.tile([[1.0], [2.0]], (1, towers))  # [a or b, tower]
    momentum, velocity = (_MOMENTUM if optimizer == "momentum" else 0.0), np.zeros_like(weights)
    history, earlier, trajectory = [weights, weights], np.zeros_like(weights), Trajectory()
    for step in range(-1 if mode == "staged" else 0, STEPS):
        batch = step + 1 if mode == "staged" else step
        used = history[-2] if mode == "staged" else weights
        numbers = np.take(_X, np.arange(_PER_TOWER * towers * batch, _PER_TOWER * towers * (batch + 1)), mode="wrap")
        mean_x = numbers.reshape(towers, _PER_TOWER).mean(axis=1)
        gradients = mean_x * used[::-1] + _DECAY * used
        if exchanged:
            gradients = np.tile(gradients.mean(axis=1, keepdims=True), (1, towers))
        applied, earlier = (gradients if mode == "plain" else earlier), gradients
        if step < 0:
            continue
        velocity = momentum * velocity + applied
        weights = weights - _RATE * velocity
        if average_every and (step + 1) % average_every == 0:
            weights = np.tile(weights.mean(axis=1, keepdims=True), (1, towers))
        history.append(weights)
        trajectory.loss.append(float(np.mean(mean_x * used[0] * used[1])))
        trajectory.a.append([float(value) for value in weights[0][: copies or towers]])
        trajectory.b.append([float(value) for value in weights[1][: copies or towers]])
    return trajectory


def expected_in_turn(towers: int, optimizer: str) -> Trajectory:
    """Computes what must come out if the towers of a parameter server apply their own gradients, one after the other.

    Every tower's step draws the numbers of all towers and uses its own part, see `_numbers`.
    """
    weights, momentum, trajectory = np.array([1.0, 2.0]), (_MOMENTUM if optimizer == "momentum" else 0.0), Trajectory()
    velocity = np.zeros_like(weights)
    for step in range(STEPS):
        losses = []
        for tower in range(towers):
            begin = _PER_TOWER * (towers * (step * towers + tower) + tower)
            mean_x = np.take(_X, np.arange(begin, begin + _PER_TOWER), mode="wrap").mean()
            losses.append(mean_x * weights[0] * weights[1])
            velocity = momentum * velocity + mean_x * weights[::-1] + _DECAY * weights
            weights = weights - _RATE * velocity
        trajectory.loss.append(float(np.mean(losses)))
        trajectory.a.append([float(weights[0])])
        trajectory.b.append([float(weights[1])])
    return trajectory


def trained(
    make_manager: MakeManager, devices: Devices, optimizer: str, config: tf.compat.v1.ConfigProto
) -> Trajectory:
    """Trains the scalars under a manager and returns what came out."""
    with tf.Graph().as_default() as graph:
        step = training.build_training_step(
            _product_model(),
            _numbers(devices.towers),
            devices,
            manager=make_manager(),
            optimizer=optimizers.make(optimizer, learning_rate=_RATE, momentum=_MOMENTUM),
            objective=objectives.Objective(loss=lambda outputs, labels: tf.reduce_mean(outputs), weight_decay=_DECAY),
        )
        a, b = _copies("a"), _copies("b")
        trajectory = Trajectory()
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            step.initialize(session)
            for _ in range(STEPS):
                trajectory.loss.append(step.run(session))
                trajectory.a.append([float(value) for value in session.run(a)])
                trajectory.b.append([float(value) for value in session.run(b)])
    return trajectory


def convolutional_weights(
    make_manager: MakeManager,
    devices: Devices,
    towers_in_total: int,
    config: tf.compat.v1.ConfigProto,
    *,
    divided: bool = False,
) -> dict[str, np.ndarray]:
    """Trains a small convolutional network and returns its weights by name.

    Args:
        make_manager: makes the manager under test, given as `divided` the names of the weights that are.
        devices: one device per tower, or one alone.
        towers_in_total: decides on the data, so that one device alone trains on the same images as many towers.
        config: of the session.
        divided: whether each tower holds some columns of the dense layers.
    """
    generator = np.random.default_rng(1)
    count, here = _IMAGES_PER_TOWER * towers_in_total, len(devices.towers)
    images = generator.normal(size=(count, _IMAGE_SIZE, _IMAGE_SIZE, 3)).astype(np.float32)
    labels = generator.integers(0, _CLASSES, count)
    with tf.Graph().as_default() as graph:
        inputs = []
        for device, i, j in zip(devices.towers, np.split(images, here), np.split(labels, here), strict=True):
            with tf.device(device):
                inputs.append(TowerInput(tf.constant(i), tf.constant(j)))
        model = splitting.split(_convolutional_model()) if divided else _convolutional_model()
        manager = make_manager(divided=model.divided)
        step = training.build_training_step(
            model,
            inputs,
            devices,
            manager=manager,
            optimizer=optimizers.make("momentum", learning_rate=0.1, momentum=_MOMENTUM),
            objective=objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.01),
        )
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            step.initialize(session)
            for _ in range(STEPS):
                step.run(session)
            weights = session.run(manager.checkpoint_variables())
    return {name: np.concatenate(parts, axis=-1) for name, parts in weights.items()}


class _Product(keras.layers.Layer):
    """x * a * b with scalars a and b."""

    def build(self, input_shape: object) -> None:
        self.a = self.add_weight(shape=(), initializer=keras.initializers.Constant(1.0), name="a")
        self.b = self.add_weight(shape=(), initializer=keras.initializers.Constant(2.0), name="b")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x * tf.convert_to_tensor(self.a) * tf.convert_to_tensor(self.b)


def _product_model() -> building.Model:
    with building.stateless_building(seed=0):
        x = keras.Input((1,))
        return building.adapt(keras.Model(x, _Product(name="product")(x)))


def _convolutional_model() -> building.Model:
    with building.stateless_building(seed=5):
        layers = Layers("NHWC")
        images = keras.Input((_IMAGE_SIZE, _IMAGE_SIZE, 3))
        x = layers.pool(layers.conv(images, 6, 3, name="conv"), "max", 2, 2, name="pool")
        x = layers.dense(layers.flatten(x), 11, name="dense")
        return building.adapt(keras.Model(images, layers.classifier(x, _CLASSES)))


def _numbers(tower_devices: Sequence[str]) -> list[TowerInput]:
    """Two numbers per tower and step, in order over the towers, then over the steps, round and round."""
    towers = len(tower_devices)
    with tf.device(HOST):
        dataset = tf.data.Dataset.from_tensor_slices(_X.astype(np.float32)[:, np.newaxis]).repeat()
        iterator = tf.compat.v1.data.make_one_shot_iterator(dataset.batch(_PER_TOWER * towers))
        parts = tf.split(iterator.get_next(), towers)
    inputs = []
    for device, part in zip(tower_devices, parts, strict=True):
        with tf.device(device):
            inputs.append(TowerInput(tf.ensure_shape(part, [_PER_TOWER, 1]), tf.zeros([_PER_TOWER], tf.int64)))
    return inputs


def _copies(name: str) -> list[tf.Variable]:
    """All copies of a weight, in tower order, whatever the manager."""
    every = tf.compat.v1.global_variables()
    copies = (variable for variable in every if variable.op.name.endswith(f"/product/{name}"))
    return sorted(copies, key=lambda variable: (len(variable.op.name), variable.op.name))
