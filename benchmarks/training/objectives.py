"""What training minimises."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from benchmarks.errors import UsageError
from models.building import ModelVariable
from results.measurement import Observed
from variable_mgr.reductions.kernels import on_each

# From logits and labels to the mean loss of a batch, a scalar.
LossFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Score(NamedTuple):
    """A tower's mean loss over its batch, a scalar, and the accuracies if they are requested."""

    loss: tf.Tensor
    observed: Observed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised: the mean per-example loss plus `weight_decay` / 2 times the squares of the decayed weights.

    With `with_accuracy`, towers also compute the shares of correctly classified images.
    """

    loss: LossFunction
    weight_decay: float = 0.0
    with_accuracy: bool = False

    def score(self, logits: tf.Tensor, labels: tf.Tensor) -> Score:
        """Returns the mean loss, and if requested the accuracies, of logits [batch, classes] and labels [batch]."""
        loss = self.loss(logits, labels)
        if not self.with_accuracy:
            return Score(loss, Observed())
        top_1, top_5 = (tf.reduce_mean(tf.cast(in_top(logits, labels, k), tf.float32)) for k in (1, 5))
        return Score(loss, Observed(top_1_accuracies=top_1, top_5_accuracies=top_5))

    def with_decay(self, variable: ModelVariable, value: tf.Tensor, gradient: tf.Tensor | None) -> tf.Tensor:
        """Returns the gradient of the whole objective, given that of the loss.

        The gradient of the decay term is added directly; computing the term would cost another read of every weight.

        Raises:
            UsageError: the loss does not depend on the variable.
        """
        if gradient is None:
            raise UsageError(
                f"The loss does not depend on the weight {variable.name}, so it has no gradient: remove it from the "
                "model, or set trainable=False."
            )
        gradient = tf.convert_to_tensor(gradient)  # that of a table is of the rows that were looked up
        return gradient + self.weight_decay * value if variable.decayed and self.weight_decay else gradient

    def penalty(self, decayed: Sequence[tf.Variable]) -> tf.Tensor:
        """Returns `weight_decay` / 2 times the squares of these variables, a scalar, each summed on its device."""
        sums = on_each((variable.device for variable in decayed), tf.nn.l2_loss, decayed)
        return self.weight_decay * tf.add_n(sums)

    def decay_of(self, variables: Iterable[ModelVariable]) -> dict[str, float]:
        """Returns by name the factor of each decayed weight in its gradient."""
        return {variable.name: self.weight_decay for variable in variables if variable.decayed and self.weight_decay}


def in_top(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """Returns for each image whether the label's logit is finite, and fewer than k classes have a larger one or NaN."""
    own = tf.gather(logits, labels, batch_dims=1)
    # GPUs sum integers of 32 bits in host memory; float32 counts to 2**24.
    not_larger = tf.reduce_sum(tf.cast(logits <= own[:, tf.newaxis], tf.float32), axis=1)
    return tf.math.is_finite(own) & (logits.shape[-1] - not_larger < k)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean softmax cross-entropy of logits [batch, classes] and labels [batch]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def smoothed_cross_entropy(smoothing: float) -> LossFunction:
    """Returns the mean cross-entropy with labels of which all classes get the share `smoothing` in equal parts.

    Source: Szegedy et al. 2016, "Rethinking the Inception architecture", arXiv:1512.00567, section 7.
    """
    if not smoothing:
        return cross_entropy

    def loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        every = tf.fill(tf.shape(logits), 1.0 / logits.shape[-1])
        of_every = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=every, logits=logits))
        return (1.0 - smoothing) * cross_entropy(logits, labels) + smoothing * of_every

    return loss
