"""What training minimises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from models.building import ModelVariable

# From logits and labels to the mean loss of a batch, a scalar.
LossFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised: the mean per-example loss plus `weight_decay` / 2 times the squares of the kernels."""

    loss: LossFunction
    weight_decay: float

    def with_decay(self, variable: ModelVariable, value: tf.Tensor, gradient: tf.Tensor | None) -> tf.Tensor:
        """Returns the gradient of the whole objective, given that of the loss.

        That of the decay term is written down; computing the term itself would cost another read of every weight.

        Raises:
            ValueError: there is none.
        """
        if gradient is None:
            raise ValueError(f"The loss does not depend on {variable.name}: every weight must reach the loss.")
        return gradient + self.weight_decay * value if variable.decayed and self.weight_decay else gradient


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean softmax cross-entropy of logits [batch, classes] and labels [batch]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
