"""Cuts a model before the dense layers that end it, so that these can be divided over devices by columns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.building import Model, ModelVariable, no_own_variables

Values = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TailLayer:
    """A layer after the cut, dense or dropout, as a function of (some columns of) its variables.

    Attributes:
        weights: names of a dense layer's kernel [inputs, outputs] and bias [outputs]; empty for dropout.
        outputs: of a dense layer; 0 for dropout.
        seeds: names of dropout's state; empty for a dense layer.
    """

    keras_layer: keras.layers.Layer
    weights: tuple[str, ...]
    outputs: int
    seeds: tuple[str, ...]

    def call(self, inputs: tf.Tensor, values: Values) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the layer in training.

        Args:
            inputs: [batch, inputs].
            values: of its variables, by name; of the weights, the columns that are to be computed.

        Returns:
            [batch, columns], and the new state by name.
        """
        if self.weights:
            kernel, *bias = (values[name] for name in self.weights)
            outputs = tf.matmul(inputs, kernel)
            return self.keras_layer.activation(tf.nn.bias_add(outputs, bias[0]) if bias else outputs), {}
        with no_own_variables():
            outputs, state = self.keras_layer.stateless_call(
                [], [values[name] for name in self.seeds], inputs, training=True
            )
        return outputs, dict(zip(self.seeds, state, strict=True))


@dataclasses.dataclass(frozen=True)
class SplitModel:
    """A model in two parts: from images to features [batch, features], and the dense layers from there to the logits.

    Attributes:
        variables: of both parts, as the whole model has them.
        tail: the layers after the cut; the first is dense.
        features: width of what the tail starts from.
    """

    variables: Sequence[ModelVariable]
    tail: Sequence[TailLayer]
    features: int
    _trunk: keras.Model
    _names: Mapping[int, str]

    @property
    def divided(self) -> frozenset[str]:
        """Returns the names of the variables whose last axis can be divided: the dense layers' weights."""
        return frozenset(name for layer in self.tail for name in layer.weights)

    def compute_features(self, values: Values, images: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the part before the cut in training.

        Args:
            values: of all variables, by name; those of the tail are not used.
            images: one batch.

        Returns:
            The features, [batch, features], and the new values of the variables that are no weights, by name.
        """
        state_names = [self._names[id(variable)] for variable in self._trunk.non_trainable_variables]
        weights = [values[self._names[id(variable)]] for variable in self._trunk.trainable_variables]
        with no_own_variables():
            features, state = self._trunk.stateless_call(
                weights, [values[name] for name in state_names], images, training=True
            )
        return features, dict(zip(state_names, state, strict=True))


def why_not(model: SplitModel, towers: int) -> str | None:
    """Returns a sentence if the dense layers cannot be divided over so many towers, else None."""
    narrow = [layer for layer in model.tail if layer.weights and layer.outputs < towers]
    if not narrow:
        return None
    return (
        f"--fc_model_parallel: {narrow[0].keras_layer.name} has {narrow[0].outputs} column(s), fewer than the {towers} "
        "towers that are to hold some: leave it out, or use fewer devices."
    )


def split(model: Model) -> SplitModel:
    """Cuts a model before the dense layers that end it, with the dropout between them.

    Raises:
        ValueError: it does not end in a dense layer.
    """
    layers = model.keras_model.layers
    ending = list(
        itertools.takewhile(lambda layer: isinstance(layer, keras.layers.Dense | keras.layers.Dropout), layers[::-1])
    )[::-1]
    ending = list(itertools.dropwhile(lambda layer: isinstance(layer, keras.layers.Dropout), ending))
    if not ending:
        raise ValueError(f"{model.keras_model.name} does not end in dense layers: there is nothing to divide.")
    names = model.names_of_keras_variables()
    cut = ending[0].input
    return SplitModel(
        variables=model.variables,
        tail=[_tail_layer(layer, names) for layer in ending],
        features=cut.shape[-1],
        _trunk=keras.Model(model.keras_model.inputs, cut),
        _names=names,
    )


def _tail_layer(layer: Any, names: Mapping[int, str]) -> TailLayer:
    weights = tuple(names[id(variable)] for variable in layer.trainable_variables)
    seeds = tuple(names[id(variable)] for variable in layer.non_trainable_variables)
    return TailLayer(layer, weights, layer.units if weights else 0, seeds)
