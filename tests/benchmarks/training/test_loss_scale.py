from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training.computing import Computing, LossScaling
from benchmarks.training.loss_scale import all_finite
from tests.support.steps import on_cpus, step_of, variable

RATE, DECAY = 0.5, 0.125


class _Product:
    """A model of one weight, whose output is the weight times the image; its gradient is the image."""

    keras_model = None
    variables = (variable("kernel", np.float32(3.0), decayed=True),)

    def call(self, values: Any, images: tf.Tensor, *, training: bool) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return values[0] * images, {}


def _train(scaling: LossScaling | None, images: list[float], steps: int, **how: Any) -> tuple[list[float], list[float]]:
    """Returns the weight after each step, and the scale in each, of one tower per image."""
    plan = on_cpus(len(images))
    with tf.Graph().as_default() as graph:
        inputs = [TowerInput(images=tf.constant([image]), labels=tf.constant([0])) for image in images]
        step, manager = step_of(
            _Product(),
            inputs,
            plan,
            learning_rate=RATE,
            loss=lambda out, labels: tf.reduce_mean(out),
            weight_decay=DECAY,
            computing=Computing(loss_scaling=scaling),
            **how,
        )
        stored = [op.inputs[0].op.name for op in graph.get_operations() if op.type == "AssignVariableOp"]
        assert stored.count("loss_scale") in (0, 2), "when it is initialised, and once in a step, not for each copy"
        weight = manager.checkpoint_variables()["kernel"][0]
        config = device_plan.session_config(Devices(num_devices=len(images)))
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            step.initialize(session)
            weights, scales, skipped = [], [], []
            for _ in range(steps):
                observed, _ = session.run([dict(step.loops[0].observed), step.loops[0].operation])
                weights.append(float(session.run(weight)))
                if scaling and scaling.increase_every:
                    scales.append(float(observed["loss_scales"]))
                    skipped.append(float(observed["skipped_updates"]))
    for before, after, left_out in zip([3.0, *weights], weights, skipped, strict=False):
        assert (before == after) == bool(left_out)
    return weights, scales


def _plain(image: float, updates: int) -> list[float]:
    """Returns the weight after each update by gradient descent, in NumPy."""
    weight, found = np.float32(3.0), []
    for _ in range(updates):
        weight -= np.float32(RATE) * (np.float32(image) + np.float32(DECAY) * weight)
        found.append(float(weight))
    return found


def test_a_fixed_scale_changes_nothing_but_the_range() -> None:
    weights, scales = _train(LossScaling(1024.0), [2.0], 3)
    assert weights == pytest.approx(_plain(2.0, 3)) and scales == []


@pytest.mark.parametrize("manager", ["replicated", "parameter_server"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_all_towers_leave_out_the_updates_that_overflow_in_one(manager: str, optimizer: str) -> None:
    """Of the two towers' gradients one overflows, until the scale has been halved twice."""
    images = [2.0**-20, 2.0**100]
    how = {"manager": manager, "optimizer": optimizer}
    weights, scales = _train(LossScaling(2.0**29, 1000), images, 5, **how)
    assert scales == [2.0**29, 2.0**28, 2.0**27, 2.0**27, 2.0**27]
    assert weights[:2] == [3.0, 3.0]
    mean, _ = _train(None, [(images[0] + images[1]) / 2], 3, **how)
    assert weights[2:] == pytest.approx(mean, rel=1e-6)


def test_the_scale_grows_after_good_steps() -> None:
    weights, scales = _train(LossScaling(4.0, 2), [1.0], 6)
    assert scales == [4.0, 4.0, 8.0, 8.0, 16.0, 16.0]
    assert weights == pytest.approx(_plain(1.0, 6))


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_every_update_rule_can_be_guarded(optimizer: str) -> None:
    weights, _ = _train(LossScaling(4.0, 2), [1.0], 4, optimizer=optimizer)
    assert weights == pytest.approx(_train(None, [1.0], 4, optimizer=optimizer)[0], rel=1e-6)


@pytest.mark.parametrize(
    ("image", "every", "scales"),
    [
        (2.0**127, 1000, [1.0, 0.5, 0.25]),  # what still overflows at 1 must not look like steps that were taken
        (np.inf, 1000, [2.0**-23, 2.0**-24, 2.0**-24]),
        (1.0, 1, [2.0**31, 2.0**32, 2.0**32]),
    ],
)
def test_a_scale_has_limits_and_one_is_none(image: float, every: int, scales: list[float]) -> None:
    weights, found = _train(LossScaling(scales[0], every), [image, image], 3)
    assert found == scales and (weights[0] == 3.0) == (image > 1.0)


@pytest.mark.parametrize("number", [1.0, np.nan, np.inf])
def test_an_integer_such_as_a_counter_is_finite(number: float) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        is_finite = session.run(all_finite([tf.constant(7, tf.int64), tf.constant([2.0, number])]))
    assert is_finite == np.isfinite(number)
