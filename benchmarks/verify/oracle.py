"""Two references that every variable manager is compared with: scalars in NumPy, and one device with the whole batch.

The first: loss = mean over the batch of x * a * b, with scalars a = 1, b = 2 and x = the 16 numbers -1..14 in order,
two per tower and step; learning rate 2^-5, weight decay 2^-4. What must come out is computed in float64 by NumPy,
without any of the code under test. The second: a small convolutional network without batch normalisation, on N towers
and on one device with the N-fold batch.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cluster.member import Alone, Team
from benchmarks.input.tower_input import TowerInput
from benchmarks.topology.devices import HOST, Devices
from benchmarks.training import objectives, optimizers, training_step
from models import building, splitting
from models.layers import Layers
from variable_mgr.expected import DECAY, MOMENTUM, PER_TOWER, RATE, STEPS, Trajectory, X
from variable_mgr.manager import VariableManager

_STEP_SECONDS = 120.0
_IMAGES_PER_TOWER, _IMAGE_SIZE, _CLASSES = 3, 8, 5

MakeManager = Callable[..., VariableManager]


def trained(
    make_manager: MakeManager,
    devices: Devices,
    optimizer: str,
    config: tf.compat.v1.ConfigProto,
    team: Team | None = None,
    *,
    in_turn: bool = False,
) -> Trajectory:
    """Trains the scalars under a manager and returns what came out, as this process sees it.

    Args:
        make_manager: makes the manager under test.
        devices: of this process' towers.
        optimizer: `sgd` or `momentum`.
        config: of the session.
        team: the processes that train together.
        in_turn: the workers' steps follow each other.
    """
    team = team or Alone()
    options = tf.compat.v1.RunOptions()
    options.experimental.collective_graph_key = team.collective_key
    with tf.Graph().as_default() as graph, tf.device(team.device or None), graph.container(_container(devices)):
        step = training_step.build_training_step(
            _product_model(),
            _numbers(devices),
            devices,
            manager=make_manager(),
            optimizer=optimizers.make(optimizer, learning_rate=RATE, momentum=MOMENTUM),
            objective=objectives.Objective(loss=lambda outputs, labels: tf.reduce_mean(outputs), weight_decay=DECAY),
        )
        a, b = _copies("a"), _copies("b")
        trajectory = Trajectory()
        with tf.compat.v1.Session(team.target, graph=graph, config=_configured(config, team)) as session:
            _initialize(step, session, team, devices, options)
            for number in range(STEPS):
                if in_turn:
                    trajectory.loss.append(_in_turn(step, session, team, devices, number))
                else:
                    trajectory.loss.append(_bounded(step, session, team, options))
                trajectory.a.append([float(value) for value in session.run(a)])
                trajectory.b.append([float(value) for value in session.run(b)])
    return trajectory


def _container(devices: Devices) -> str:
    """Names what keeps the shared state of one graph apart from that of the next one in the same cluster."""
    return f"oracle{devices.place.group}"


def _configured(config: tf.compat.v1.ConfigProto, team: Team) -> tf.compat.v1.ConfigProto:
    team.configure(config)
    return config


def _initialize(
    step: training_step.Step,
    session: tf.compat.v1.Session,
    team: Team,
    devices: Devices,
    options: tf.compat.v1.RunOptions,
) -> None:
    name = f"{_container(devices)} is initialised"
    step.initialize(session, alone=team.is_leader, shared_is_there=lambda: team.meet(name), options=options)


def _bounded(
    step: training_step.Step,
    session: tf.compat.v1.Session,
    team: Team,
    options: tf.compat.v1.RunOptions | None = None,
) -> float:
    """Runs one step, for which others may never do their part: a fault of a manager must not make us wait for ever."""
    team.expect("A step of the comparison", _STEP_SECONDS)
    loss = step.run(session, options)
    team.expect_nothing()
    return loss


def _in_turn(
    step: training_step.Step, session: tf.compat.v1.Session, team: Team, devices: Devices, number: int
) -> float:
    """Runs this worker's step when those before it have run theirs; all go on together."""
    loss = 0.0
    team.meet(f"{_container(devices)} step {number}")  # or one would step before the others have read the last one
    for worker in range(devices.place.workers):
        if worker == devices.place.worker:
            loss = _bounded(step, session, team)
        team.meet(f"{_container(devices)} step {number} of worker {worker}")
    return loss


def convolutional_weights(
    make_manager: MakeManager,
    devices: Devices,
    towers_in_total: int,
    config: tf.compat.v1.ConfigProto,
    team: Team | None = None,
    *,
    divided: bool = False,
) -> dict[str, np.ndarray]:
    """Trains a small convolutional network and returns its weights by name.

    Args:
        make_manager: makes the manager under test, given as `divided` the names of the weights that are.
        devices: one device per tower, or one alone.
        towers_in_total: decides on the data, so that one device alone trains on the same images as many towers.
        config: of the session.
        team: the processes that train together, each on its part of the images.
        divided: whether each tower holds some columns of the dense layers.
    """
    team = team or Alone()
    options = tf.compat.v1.RunOptions()
    options.experimental.collective_graph_key = team.collective_key
    generator = np.random.default_rng(1)
    count, here = _IMAGES_PER_TOWER * towers_in_total, len(devices.towers)
    workers, worker = devices.place.workers, devices.place.worker
    images = generator.normal(size=(count, _IMAGE_SIZE, _IMAGE_SIZE, 3)).astype(np.float32)
    labels = generator.integers(0, _CLASSES, count)
    images, labels = np.split(images, workers)[worker], np.split(labels, workers)[worker]
    with tf.Graph().as_default() as graph, tf.device(team.device or None), graph.container(_container(devices)):
        inputs = []
        for device, i, j in zip(devices.towers, np.split(images, here), np.split(labels, here), strict=True):
            with tf.device(device):
                inputs.append(TowerInput(tf.constant(i), tf.constant(j)))
        model = splitting.split(_convolutional_model()) if divided else _convolutional_model()
        manager = make_manager(divided=model.divided)
        step = training_step.build_training_step(
            model,
            inputs,
            devices,
            manager=manager,
            optimizer=optimizers.make("momentum", learning_rate=0.1, momentum=MOMENTUM),
            objective=objectives.Objective(loss=objectives.cross_entropy, weight_decay=0.01),
        )
        with tf.compat.v1.Session(team.target, graph=graph, config=_configured(config, team)) as session:
            _initialize(step, session, team, devices, options)
            for _ in range(STEPS):
                _bounded(step, session, team, options)
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


def _numbers(devices: Devices) -> list[TowerInput]:
    """Two numbers per tower and step, in order over the towers of all workers, then over the steps, round and round."""
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


def _copies(name: str) -> list[tf.Variable]:
    """All copies of a weight, in tower order, whatever the manager."""
    every = tf.compat.v1.global_variables()
    copies = (variable for variable in every if variable.op.name.endswith(f"/product/{name}"))
    return sorted(copies, key=lambda variable: (len(variable.op.name), variable.op.name))
