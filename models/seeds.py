"""Seeds of values that are drawn once, when a graph's variables are initialised.

From a constant seed TensorFlow draws while it optimises the graph: on one thread, and what comes to more than 10 MB is
thrown away and drawn again when it is wanted. A seed that might be fed is unknown until then.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def seed_at_run_time(seed: Any) -> tf.Tensor:
    """Returns a seed, [2], whose values the optimisation of a graph does not see; the plain seed outside of graphs."""
    with tf.device("/device:CPU:0"):  # where random numbers want their seeds, also those of a GPU
        constant = tf.convert_to_tensor(seed)
        return constant if tf.executing_eagerly() else tf.compat.v1.placeholder_with_default(constant, constant.shape)


class RunTimeSeed(keras.random.SeedGenerator):
    """Gives an initialiser the seed that Keras would have given it, in every call the same, but at run time."""

    def next(self, ordered: bool = True) -> Any:
        """Returns the seed."""
        return seed_at_run_time(self.state.value)
