"""Seeds of the values that initialise variables.

With a constant seed, TensorFlow draws while it optimises the graph: on one thread, and a value above 10 MB is discarded
and drawn again at run time. A seed from a placeholder is unknown to the graph optimisation.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def seed_at_run_time(seed: Any) -> tf.Tensor:
    """Returns a seed, [2], that the graph optimisation does not know; outside graphs, the plain seed."""
    with tf.device("/device:CPU:0"):  # random operations read their seeds on the host, also on a GPU
        constant = tf.convert_to_tensor(seed)
        return constant if tf.executing_eagerly() else tf.compat.v1.placeholder_with_default(constant, constant.shape)


class RunTimeSeed(keras.random.SeedGenerator):
    """Gives an initialiser its Keras seed, the same in every call, through `seed_at_run_time`."""

    def next(self, ordered: bool = True) -> Any:
        """Returns the seed."""
        return seed_at_run_time(self.state.value)
