"""Asynchronous towers of a parameter server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.timing import Numbers
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training.objectives import LossFunction
from benchmarks.training.training_step import Step
from models import building
from tests.support.steps import on_cpus, step_of
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers

UNITS = 200_000
TOWERS = 3


def _weights_model() -> building.Model:
    """x [batch, UNITS] times a kernel [UNITS, 1]: the gradient of the sum is x, whatever the weights are."""
    with building.stateless_building(seed=0):
        x = keras.Input((UNITS,))
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="dense")
        return building.adapt(keras.Model(x, dense(x)))


def _sum(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(outputs)


def _build(towers: int, images: Callable[[int], tf.Tensor], loss: LossFunction = _sum) -> tuple[Step, tf.Variable]:
    inputs = [TowerInput(images(tower), tf.fill([1], tf.constant(tower, tf.int64))) for tower in range(towers)]
    modifiers = Modifiers(asynchronous=True)
    step, manager = step_of(
        _weights_model(), inputs, on_cpus(towers), "parameter_server", modifiers, learning_rate=1.0, loss=loss
    )
    return step, manager.checkpoint_variables()["dense/kernel"][0]


def test_no_update_is_lost_or_torn() -> None:
    """Tower i adds -(i + 1) to every weight in each of its steps, so the sum tells how often each did."""
    taken = [0] * TOWERS
    with tf.Graph().as_default():
        step, kernel = _build(TOWERS, lambda tower: tf.fill([1, UNITS], tower + 1.0))
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=TOWERS))) as session:
            step.initialize(session)

            def tower(number: int) -> Callable[[], tuple[float, int, Numbers]]:
                loop = step.loops[number]
                run = session.make_callable([loop.loss, loop.staleness, loop.operation])

                def take() -> tuple[float, int, Numbers]:
                    taken[number] += 1
                    loss, staleness, _ = run()
                    return loss, staleness, {}

                return take

            with FreeRunningTowers([tower(number) for number in range(TOWERS)]) as towers:
                global_steps = [towers.take() for _ in range(100)]
            weights = session.run(kernel)
    assert sum(taken) >= 100 * TOWERS
    np.testing.assert_array_equal(weights, -float(sum((number + 1) * count for number, count in enumerate(taken))))
    stale = [part.staleness for step_ in global_steps for part in step_.tower_steps]
    assert min(stale) >= 0 and max(stale) >= 1, "the towers ran at the same time"


@pytest.mark.row("S3.3")
@pytest.mark.parametrize("updates_by_the_other", [0, 1, 3])
def test_staleness_counts_the_updates_of_others(updates_by_the_other: int) -> None:
    """Tower 0 waits after it has read the weights and before it updates them; tower 1 does not."""
    has_read, may_go_on = threading.Event(), threading.Event()

    def one_after_waiting(outputs: np.ndarray, labels: np.ndarray) -> np.float32:
        if labels[0] == 0:
            has_read.set()
            assert may_go_on.wait(20.0)
        return np.float32(1.0)

    def loss(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(outputs) * tf.numpy_function(one_after_waiting, [outputs, labels], tf.float32)

    with tf.Graph().as_default():
        step, _ = _build(2, lambda tower: tf.ones([1, UNITS]), loss)
        with tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=2))) as session:
            step.initialize(session)
            slow, fast = (session.make_callable([loop.staleness, loop.operation]) for loop in step.loops)
            found = []
            waiting = threading.Thread(target=lambda: found.append(slow()[0]))
            waiting.start()
            assert has_read.wait(20.0)
            assert [fast()[0] for _ in range(updates_by_the_other)] == [0] * updates_by_the_other
            may_go_on.set()
            waiting.join(20.0)
    assert found == [updates_by_the_other]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_the_oracle_in_turn_is_the_plain_one_for_one_tower(optimizer: str) -> None:
    rule = expected.Rule(optimizer)
    in_turn, together = Modifiers(asynchronous=True), Modifiers()
    one, two = (expected.of_manager("parameter_server", in_turn, rule, towers) for towers in (1, 2))
    assert one.error(expected.of_manager("parameter_server", together, rule, 1)) < 1e-12
    assert two.error(expected.of_manager("parameter_server", together, rule, 2)) > 0.01
