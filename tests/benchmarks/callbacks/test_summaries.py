"""What summaries of gradients and weights have, compared with NumPy."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.callbacks.options import Summaries
from benchmarks.callbacks.summaries import SummaryCallback, of_gradients, of_weights
from benchmarks.graph.epochs import Epochs
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import Taken
from benchmarks.training.options import Schedule, Training
from variable_mgr.manager import TowerUpdate


def values(summary: tf.Tensor) -> dict[str, tf.compat.v1.Summary.Value]:
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        return {value.tag: value for value in tf.compat.v1.Summary.FromString(session.run(summary)).value}


def test_gradients_are_means_over_towers_or_parts() -> None:
    with tf.Graph().as_default():
        towers = [
            TowerUpdate(gradients={"a": tf.constant(a), "b": tf.constant([[b], [b]])}, state={})
            for a, b in (([1.0, 5.0], 2.0), ([3.0, np.inf], 4.0))
        ]
        found = values(of_gradients(towers, divided=["b"]))
    shared, divided = (found[f"gradients/{name}"].histo for name in "ab")
    assert (shared.num, shared.sum) == (1, 2.0), "values that are not finite are left out"
    assert (divided.num, divided.sum, divided.sum_squares) == (4, 12.0, 40.0)


def test_weights_are_whole_and_have_norms() -> None:
    with tf.Graph().as_default():
        parts = [tf.compat.v1.get_variable(f"part_{n}", initializer=[[float(n)], [2.0]]) for n in range(2)]
        found = values(of_weights({"w": parts}))
    assert (found["weights/w"].histo.num, found["weights/w"].histo.sum) == (4, 5.0)
    assert found["norms/w"].simple_value == pytest.approx(np.linalg.norm([0.0, 2.0, 1.0, 2.0]))


def test_numbers_are_the_rate_of_the_step_and_the_images_per_second_since_the_last_ones() -> None:
    log, epochs = RunLog(images_per_step=20, towers=1), Epochs(images_per_epoch=20, images_per_step=20)
    training = Training(learning_rate=0.5, schedule=Schedule(initial=0.5, boundaries=(2.0,), rates=(0.5, 0.25)))
    config = types.SimpleNamespace(summaries=Summaries(summary_verbosity=1), training=training)
    built = types.SimpleNamespace(manager=types.SimpleNamespace(checkpoint_variables=dict))
    follower = types.SimpleNamespace(is_leader=False)
    run: Any = types.SimpleNamespace(config=config, built=built, epochs=epochs, log=log, team=follower, directory=None)
    summary = SummaryCallback(run)
    log.warmup.add(Taken(1.0, 4.0))
    log.measured.add(Taken(3.0, 2.0, observed={"top_1_accuracies": 0.25}))
    log.latest = log.measured
    of_step = {"loss": 2.0, "top_1_accuracy": 0.25}
    assert summary._numbers(2) == {**of_step, "learning_rate": 0.5, "images_per_sec": 20 * 2 / 4}
    log.measured.add(Taken(5.0, 2.0, observed={"top_1_accuracies": 0.25}))
    assert summary._numbers(3) == {**of_step, "learning_rate": 0.25, "images_per_sec": 20 / 5}
    assert summary._numbers(4) == {**of_step, "learning_rate": 0.25}
