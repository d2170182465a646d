"""Trains under a manager, for comparison with two references: scalars in NumPy, and one device with the whole batch.

The first problem, two scalars, and its reference are in `variable_mgr.expected`. The second is a small convolutional
network without batch normalisation, on N towers and on one device with the N-fold batch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cluster.member import Team
from benchmarks.config.variable_update import Variables
from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.graph import run_graph
from benchmarks.training import objectives, optimizers, training_step
from benchmarks.training.options import Training
from models import building
from models.layers import Layers
from variable_mgr.expected import DECAY, MOMENTUM, PER_TOWER, RATE, STEPS, WITH_MOMENTUM, Rule, Trajectory, X
from variable_mgr.manager import VariableManager
from variable_mgr.place import HOST

_IMAGES_PER_TOWER, _IMAGE_SIZE, _CLASSES = 3, 8, 5
_UNTRAINED = 3.0
MOST_STAGES = 3  # the convolutional network has a convolution and two dense layers


def trained(training: OracleSession, variables: Variables, rule: Rule, *, in_turn: bool = False) -> Trajectory:
    """Trains the scalars under a manager and returns their trajectory, as this process sees it.

    With `in_turn`, the workers take their steps one after the other.
    """
    trajectory = Trajectory()
    with training:
        session, manager = _start_on_scalars(training, variables, rule)
        copies = manager.copies()
        a, b, untrained = ([whole for (whole,) in copies[f"product/{name}"]] for name in ("a", "b", "untrained"))
        for number in range(STEPS):
            trajectory.loss.append(training.step_in_turn(number) if in_turn else training.step())
            trajectory.a.append([float(value) for value in session.run(a)])
            trajectory.b.append([float(value) for value in session.run(b)])
            changes = np.subtract(session.run(untrained), _UNTRAINED)
            trajectory.others = float(np.max([trajectory.others, *np.abs(changes)]))
    return trajectory


def changed_by_gradients(training: OracleSession, variables: Variables) -> float:
    """Computes the gradients of a step of the scalars without applying them.

    Returns:
        The largest change of any variable that this process uses, which must be 0.
    """
    with training:
        session, _ = _start_on_scalars(training, variables, WITH_MOMENTUM)
        everything = tf.compat.v1.global_variables()
        training.step_together()  # so that no momentum is zero
        before = session.run(everything)
        training.compute_gradients()
        after = session.run(everything)
    changes = [np.max(np.abs(np.subtract(a, b, dtype=np.float64))) for a, b in zip(after, before, strict=True)]
    return float(np.max(changes))


def _start_on_scalars(
    training: OracleSession, variables: Variables, rule: Rule
) -> tuple[tf.compat.v1.Session, VariableManager]:
    objective = objectives.Objective(loss=lambda outputs, labels: tf.reduce_mean(outputs), weight_decay=DECAY)
    return training.start(_product_model(), _numbers(training.devices), variables, rule, RATE, objective)


def _optimizer_of(rule: Rule, learning_rate: float) -> optimizers.Optimizer:
    """Returns the optimizer that is to follow a rule."""
    training = Training(
        optimizer=cast(Any, rule.optimizer),
        learning_rate=learning_rate,
        momentum=MOMENTUM,
        gradient_clip=rule.clip_value,
        gradient_clip_norm=rule.clip_norm,
        lars_trust_coefficient=rule.trust_coefficient,
    )
    return optimizers.make(training, learning_rate)


class OracleSession:
    """One graph, its session, and the processes that train it together; use it as a context, once."""

    def __init__(self, devices: DevicePlan, config: tf.compat.v1.ConfigProto, team: Team) -> None:
        self.devices, self.team, self._config = devices, team, team.configured(config)
        # Keeps the shared state of one graph apart from that of the next one in the same cluster.
        self._name = f"oracle{devices.place.group}"
        self._options = tf.compat.v1.RunOptions()
        self._options.experimental.collective_graph_key = team.collective_key
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> OracleSession:
        self.team.deadlines.preparation("Preparing a comparison")
        self._graph = self._contexts.enter_context(tf.Graph().as_default())
        self._contexts.enter_context(tf.device(self.team.device or None))
        self._contexts.enter_context(self._graph.container(self._name))
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.close()
        self.team.deadlines.none()

    def start(
        self,
        model: building.Model,
        inputs: Sequence[TowerInput],
        variables: Variables,
        rule: Rule,
        learning_rate: float,
        objective: objectives.Objective,
    ) -> tuple[tf.compat.v1.Session, VariableManager]:
        """Builds a training step of the model under the manager of `variables`, and initialises everything.

        Returns the session, and the manager.

        Raises:
            UsageError: the model cannot be divided over so many devices.
        """
        divided, manager = run_graph.divided(variables, model, self.devices)
        optimizer = _optimizer_of(rule, learning_rate)
        step = training_step.build_training_step(
            divided, inputs, self.devices, manager=manager, optimizer=optimizer, objective=objective
        )
        session = tf.compat.v1.Session(self.team.target, graph=self._graph, config=self._config)
        self._session, self._step = self._contexts.enter_context(session), step
        step.initialize(
            session,
            alone=self.team.is_leader,
            shared_is_there=lambda: self.team.meet(f"{self._name} is initialised"),
            options=self._options,
        )
        return session, manager

    def step(self) -> float:
        """Runs one step and returns its loss; its deadline is that of reading the results, too."""
        self.team.deadlines.step("A step of a comparison")
        return self._step.take(self._session, self._options)

    def step_together(self) -> None:
        """Runs one step, and waits until all others have done so."""
        self.step()
        self.team.meet(f"{self._name} has stepped")

    def compute_gradients(self) -> None:
        """Computes what the towers compute in a step, and stores nothing."""
        self.team.deadlines.step("Computing gradients")
        computed = [[*update.gradients.values(), *update.state.values()] for update in self._step.updates]
        self._session.run(tf.group(*itertools.chain(*computed)), options=self._options)

    def step_in_turn(self, number: int) -> float:
        """Runs this worker's step after those of the workers before it; all continue together."""
        loss = 0.0
        self.team.meet(f"{self._name} step {number}")  # all must have read the results of the last step
        for worker in range(self.devices.place.workers):
            if worker == self.devices.place.worker:
                loss = self.step()
            self.team.meet(f"{self._name} step {number} of worker {worker}")
        return loss


def convolutional_weights(
    training: OracleSession,
    variables: Variables,
    towers_in_total: int,
    rule: Rule = WITH_MOMENTUM,
) -> dict[str, np.ndarray]:
    """Trains a small convolutional network and returns its weights by name.

    Args:
        training: has one device per tower, or one alone; each process trains on its part of the images.
        variables: the manager; or a pipeline with a stage on each device, instead of towers.
        towers_in_total: decides the data, so that one device alone trains on the images of all towers.
        rule: updates the weights.

    Raises:
        UsageError: the network cannot be divided over so many devices.
    """
    devices = training.devices
    generator = np.random.default_rng(1)
    count, here = _IMAGES_PER_TOWER * towers_in_total, len(devices.towers)
    workers, worker = devices.place.workers, devices.place.worker
    images = generator.normal(size=(count, _IMAGE_SIZE, _IMAGE_SIZE, 3)).astype(np.float32)
    labels = generator.integers(0, _CLASSES, count)
    images, labels = np.split(images, workers)[worker], np.split(labels, workers)[worker]
    with training:
        inputs = []
        feeds = 1 if variables.pipeline else here
        for device, i, j in zip(devices.towers, np.split(images, feeds), np.split(labels, feeds), strict=False):
            with tf.device(device):
                inputs.append(TowerInput(tf.constant(i), tf.constant(j)))
        objective = objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.01)
        session, manager = training.start(_convolutional_model(), inputs, variables, rule, 0.1, objective)
        for _ in range(STEPS):
            training.step()
        weights = session.run(manager.checkpoint_variables())
    return {name: np.concatenate(columns, axis=-1) for name, columns in weights.items()}


class _Product(keras.layers.Layer):
    """x * a * b with scalars a and b; a third scalar is neither used nor trained."""

    def build(self, input_shape: object) -> None:
        self.a = self.add_weight(shape=(), initializer=keras.initializers.Constant(1.0), name="a")
        self.b = self.add_weight(shape=(), initializer=keras.initializers.Constant(2.0), name="b")
        constant = keras.initializers.Constant(_UNTRAINED)
        self.add_weight(shape=(), initializer=constant, name="untrained", trainable=False)

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


def _numbers(devices: DevicePlan) -> list[TowerInput]:
    """Returns two numbers per tower and step, in order over the towers of all workers, then over the steps."""
    towers, here = devices.place.towers_in_total, len(devices.towers)
    first = devices.place.worker * here
    with tf.device(HOST):
        dataset = tf.data.Dataset.from_tensor_slices(X.astype(np.float32)[:, np.newaxis]).repeat()
        iterator = tf.compat.v1.data.make_one_shot_iterator(dataset.batch(PER_TOWER * towers))
        parts = tf.split(iterator.get_next(), towers)[first : first + here]
    inputs = []
    for device, part in zip(devices.towers, parts, strict=True):
        with tf.device(device):
            inputs.append(TowerInput(tf.ensure_shape(part, [PER_TOWER, 1]), tf.zeros([PER_TOWER], tf.int64)))
    return inputs
