from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import building, specs
from models.seeds import LateSeed, late


def test_values_are_those_that_keras_draws() -> None:
    keras.utils.set_random_seed(5)
    usual = keras.initializers.RandomNormal()((4, 3)).numpy()
    keras.utils.set_random_seed(5)
    with building.no_own_variables():
        initializer = keras.initializers.RandomNormal(seed=LateSeed())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with building.no_own_variables():
            value = initializer((4, 3))
        np.testing.assert_array_equal(session.run(value), usual)
        np.testing.assert_array_equal(session.run(value), usual, "and each time the same")


def test_eager_values_need_no_placeholder() -> None:
    assert late((1, 2)).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("is_late", [True, False])
def test_nothing_is_drawn_while_the_graph_is_optimised(is_late: bool) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        seed = late((1, 2)) if is_late else (1, 2)
        variable = tf.Variable(tf.random.stateless_normal((64,), seed))
        assert bool(_draws(session, variable.initializer)) == is_late


def test_all_weights_of_a_model_are_drawn_late() -> None:
    model = building.build(specs.find("vgg16"), data_format="NHWC", num_classes=11, seed=1)
    with tf.Graph().as_default() as graph:
        for variable in model.variables:
            variable.initial_value()
        random = [o for o in graph.get_operations() if o.type.startswith("StatelessRandom")]
        drawn = [o for o in random if o.outputs[0].dtype == tf.float32]
        assert len(drawn) == len([v for v in model.variables if len(v.shape) > 1]) == 16
        assert all(any(i.op.type == "PlaceholderWithDefault" for i in _inputs(o)) for o in drawn)


def _draws(session: tf.compat.v1.Session, operation: tf.Operation) -> list[str]:
    """Returns the operations that draw random numbers when the optimised graph runs."""
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    session.run(operation, options=options, run_metadata=metadata)
    return [
        node.name for graph in metadata.partition_graphs for node in graph.node if "StatelessRandomNormal" in node.op
    ]


def _inputs(operation: tf.Operation) -> list[tf.Tensor]:
    """Returns all that an operation depends on."""
    return [*operation.inputs, *(far for near in operation.inputs for far in _inputs(near.op))]
