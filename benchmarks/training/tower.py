"""What one tower computes: the forward pass, or that and its gradients; operation by operation, or compiled by XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.training.objectives import Objective, Score
from models.building import Model
from variable_mgr.manager import TowerUpdate


class Tower:
    """The computation of every tower of a model; the caller says on which device.

    Args:
        model: what is computed.
        objective: what is minimised.
        xla: compile it as a whole. Towers share what is compiled, as far as their devices are alike.
        decay_later: leave weight decay out of the gradients: the manager adds it.
    """

    def __init__(self, model: Model, objective: Objective, *, xla: bool = False, decay_later: bool = False) -> None:
        self._model = model
        self._decay = objective.decay_of(model.variables) if decay_later else {}
        self._objective = dataclasses.replace(objective, weight_decay=0.0) if decay_later else objective
        self._backward = _compiled(self._train) if xla else self._train
        self._forward = _compiled(self._infer) if xla else self._infer

    def train(
        self, values: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> tuple[Score, TowerUpdate]:
        """Returns the score, and gradients and new state.

        Args:
            values: of the model's variables.
            images: one batch, in the model's data format.
            labels: [batch].
            loss_scale: a scalar; gradients are computed of the loss times this, and then divided by it.
        """
        loss, accuracy, gradients, state = self._backward(list(values), images, labels, loss_scale)
        return Score(loss, accuracy), TowerUpdate(gradients=gradients, state=state, decay=self._decay)

    def infer(self, values: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor) -> Score:
        """Returns the score of a forward pass in inference mode; arguments as of `train`."""
        return Score(*self._forward(list(values), images, labels))

    def _train(
        self, values: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor, loss_scale: tf.Tensor | None
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor], dict[str, tf.Tensor], Mapping[str, tf.Tensor]]:
        logits, state = self._model.call(values, images, training=True)
        score = self._objective.score(logits, labels)
        weights = [(v, value) for v, value in zip(self._model.variables, values, strict=True) if v.kind == "weight"]
        loss = score.loss if loss_scale is None else loss_scale * score.loss
        gradients = tf.gradients(loss, [value for _, value in weights])
        if loss_scale is not None:
            gradients = [None if gradient is None else gradient / loss_scale for gradient in gradients]
        named = {
            variable.name: self._objective.with_decay(variable, value, gradient)
            for (variable, value), gradient in zip(weights, gradients, strict=True)
        }
        return score.loss, score.accuracy, named, state

    def _infer(
        self, values: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        logits, _ = self._model.call(values, images, training=False)
        score = self._objective.score(logits, labels)
        return score.loss, score.accuracy


def _compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)
