from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.training import objectives, training_step
from benchmarks.training.training_step import Tower
from models import building
from results.measurement import Observed
from variable_mgr.manager import UpdateOp


class _Looked(keras.layers.Layer):
    """Adds the rows of a table in reverse order, so that all of them have the table's shape."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=shape[1:], name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.ops.take(self.table, [2, 1, 0], axis=0)


@pytest.mark.parametrize("copied", [True, False])
def test_the_gradient_of_a_table_is_that_of_each_of_its_rows(copied: bool) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((3, 1))
        model = building.adapt(keras.Model(images, keras.layers.Flatten()(_Looked(name="looked")(images))))
    objective = objectives.Objective(loss=lambda outputs, _: tf.reduce_sum(outputs * [1.0, 2.0, 3.0]))
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tower = Tower(model, objective, copied=copied)
        _, update = tower.train([tf.zeros((3, 1))], tf.zeros((1, 3, 1)), tf.constant([0]))
        (gradient,) = session.run(list(update.gradients.values()))
    assert gradient.tolist() == [[3.0], [2.0], [1.0]]


def test_inference_uses_the_moving_averages_and_not_the_batch() -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((1,))
        model = building.adapt(keras.Model(images, keras.layers.BatchNormalization(epsilon=0.0)(images)))
    objective = objectives.Objective(loss=lambda outputs, _: tf.reduce_sum(outputs))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = [variable.initial_value() for variable in model.variables]
        score = Tower(model, objective).infer(values, tf.constant([[1.0], [5.0]]), tf.constant([0, 0]))
        assert session.run(score.loss) == pytest.approx(6.0), "averages start as 0 and 1"


def test_towers_wait_for_input_from_the_first_request_to_the_last_batch() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        scores = [objectives.Score(tf.constant(loss), Observed()) for loss in (2.0, 4.0)]
        times = tf.constant([[10.0, 13.0], [11.0, 17.0]], tf.float64)
        inputs = [
            TowerInput(tf.zeros([]), tf.zeros([]), asked=each[0], arrived=each[1]) for each in (times[0], times[1])
        ]
        loop = training_step._loop(UpdateOp(tf.no_op()), scores, inputs, Observed())
        assert session.run([loop.observed["input_wait_seconds"], loop.loss]) == [7.0, 3.0]


def test_a_tower_has_not_waited_for_a_batch_that_came_before_the_update() -> None:
    def update() -> np.float32:
        time.sleep(0.2)
        return np.float32(0.0)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            updated = UpdateOp(tf.numpy_function(update, [], tf.float32).op)
        staged = TowerInput(tf.zeros([]), tf.zeros([]), stage=tf.no_op(), arrived=begun + 0.1)
        loop = training_step._loop(updated, [objectives.Score(tf.constant(1.0), Observed())], [staged], Observed())
        assert session.run(loop.observed["input_wait_seconds"]) == 0.0


@pytest.mark.parametrize(("alone", "names"), [(True, ["own", "shared"]), (False, ["own"])])
def test_only_the_leader_initialises_what_is_on_parameter_servers(alone: bool, names: list[str]) -> None:
    run: list[tf.Operation] = []
    with tf.Graph().as_default():
        for name, device in (("own", "/job:worker/task:1"), ("shared", "/job:ps/task:0")):
            with tf.device(device):
                tf.Variable(0.0, name=name)
        session = SimpleNamespace(run=lambda operation, **_: run.extend(operation.control_inputs))
        training_step.Step([], []).initialize(session, alone=alone)
    stored = itertools.chain(*(each.control_inputs or [each] for each in run))  # of several devices, one group of each
    assert sorted(each.inputs[0].op.name for each in stored) == names
