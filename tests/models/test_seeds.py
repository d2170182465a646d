from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.pipeline import tower_input
from models import building
from models.seeds import RunTimeSeed, seed_at_run_time
from tests.support.models import drawn_at_run_time


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomNormal,
        functools.partial(keras.initializers.VarianceScaling, 2.0, distribution="uniform"),
    ],
)
def test_values_are_those_that_keras_draws(initializer: Callable[..., Any]) -> None:
    keras.utils.set_random_seed(5)
    usual = initializer()((4, 3)).numpy()
    keras.utils.set_random_seed(5)
    eager = initializer(seed=RunTimeSeed())
    for _ in range(2):
        np.testing.assert_array_equal(eager((4, 3)).numpy(), usual)
    keras.utils.set_random_seed(5)
    with building.no_own_variables():
        in_graph = initializer(seed=RunTimeSeed())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with building.no_own_variables():
            values = [in_graph((4, 3)), in_graph((4, 3))]
        for value in session.run(values):
            np.testing.assert_array_equal(value, usual)


@pytest.mark.parametrize("is_constant", [False, True])
def test_only_from_constant_seeds_is_drawn_while_the_graph_is_optimised(is_constant: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        seed = (1, 2) if is_constant else seed_at_run_time((1, 2))
        variable = tf.Variable(tf.random.stateless_normal((64,), seed))
        assert bool(_draws(session, variable.initializer)) != is_constant


def test_images_are_drawn_at_run_time() -> None:
    spec = tower_input.InputSpec(batch_per_device=2, image_size=8, data_format="NHWC", num_classes=5, seed=1)
    with tf.Graph().as_default() as graph:
        tower_input.synthetic(["/cpu:0", "/cpu:1"], spec)
    assert drawn_at_run_time(graph) == [True] * 2 * 2


def _draws(session: tf.compat.v1.Session, operation: tf.Operation) -> list[str]:
    """Returns the operations that draw random numbers when the optimised graph runs."""
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    session.run(operation, options=options, run_metadata=metadata)
    return [
        node.name for graph in metadata.partition_graphs for node in graph.node if "StatelessRandomNormal" in node.op
    ]
