"""Layers of transformers that have no counterpart in Keras, or a slower one: its attention layer uses Einsum."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from models.seeds import RunTimeSeed

_POSITION_DEVIATION = 0.02
# Importing this module lets Keras load files with these layers.
_registered = keras.saving.register_keras_serializable("cnn_train_bench")


@_registered
class ClassTokenAndPositions(keras.layers.Layer):
    """Puts a learned class token before the other tokens, and adds a learned position to each.

    From [batch, tokens, width] to [batch, tokens + 1, width].
    """

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Declares the class token, which starts at zero, and the positions, which start normal."""
        _, tokens, width = input_shape
        self.class_token = self.add_weight(name="class_token", shape=(1, 1, width), initializer="zeros")
        self.positions = self.add_weight(
            name="positions",
            shape=(1, tokens + 1, width),
            initializer=keras.initializers.RandomNormal(stddev=_POSITION_DEVIATION, seed=RunTimeSeed()),
        )

    def call(self, inputs: Any) -> Any:
        """Adds a row of zeros to each image, and to all rows what is learned."""
        first = tf.pad(tf.convert_to_tensor(self.class_token), [[0, 0], [0, inputs.shape[1]], [0, 0]])
        return tf.pad(inputs, [[0, 0], [1, 0], [0, 0]]) + (tf.convert_to_tensor(self.positions) + first)

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape with one more token."""
        batch, tokens, width = input_shape
        return batch, tokens + 1, width


@_registered
class DotProductAttention(keras.layers.Layer):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).

    From [batch, tokens, 3 * width], where queries, keys and values of all heads follow each other, to
    [batch, tokens, width]. The softmax is in float32 for every compute type.
    """

    def __init__(self, heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {"heads": self.heads}

    def call(self, inputs: Any) -> Any:
        """Returns, for each token and head, the mean of all values weighted by how well their keys match its query."""
        _, tokens, width = self.compute_output_shape(inputs.shape)
        size = width // self.heads
        split = tf.reshape(inputs, [-1, tokens, 3, self.heads, size])
        queries, keys, values = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # [batch, heads, tokens, size]
        scores = tf.matmul(queries * tf.cast(size**-0.5, queries.dtype), keys, transpose_b=True)
        weights = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), scores.dtype)
        return tf.reshape(tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3]), [-1, tokens, width])

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape with a third of the columns."""
        batch, tokens, columns = input_shape
        return batch, tokens, columns // 3
