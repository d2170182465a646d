"""What summaries of gradients and weights have, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.callbacks.summaries import of_gradients, of_weights
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
