"""Cuts a model before its final dense layers, so that their columns can be divided over devices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from models.building import Model, ModelVariable, no_own_variables, ordered

Values = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class TailLayer:
    """A dense or dropout layer after the cut, as a function of (some columns of) its variables.

    Attributes:
        weights: names of a dense layer's kernel [inputs, outputs] and bias [outputs]; empty for dropout.
        outputs: number of a dense layer's columns; 0 for dropout.
        seeds: names of dropout's state; empty for a dense layer.
    """

    keras_layer: keras.layers.Layer
    weights: tuple[str, ...]
    outputs: int
    seeds: tuple[str, ...]

    def call(self, inputs: tf.Tensor, values: Values) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the layer in training mode, from [batch, inputs] to [batch, columns] and the new state by name.

        `values` holds the layer's variables by name; of the weights, only the columns to compute.
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
    """A model in two parts: from images to features [batch, features], and from features to logits.

    Attributes:
        variables: of both parts, in the order of the whole model.
        tail: the layers after the cut; the first is dense.
        features: width of the tail's input.
    """

    variables: Sequence[ModelVariable]
    tail: Sequence[TailLayer]
    features: int
    _trunk: keras.Model
    _names: Mapping[int, str]

    @property
    def divided(self) -> frozenset[str]:
        """Returns the names of the variables whose last axis can be divided: the tail's weights."""
        return frozenset(name for layer in self.tail for name in layer.weights)

    def compute_features(self, values: Values, images: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the part before the cut in training mode; of the values, by name, it ignores those of the tail.

        Returns:
            The features, [batch, features], and the new values of statistics and tower states, by name.
        """
        state_names = [self._names[id(variable)] for variable in self._trunk.non_trainable_variables]
        weights = [values[self._names[id(variable)]] for variable in self._trunk.trainable_variables]
        with no_own_variables():
            features, state = self._trunk.stateless_call(
                weights, [values[name] for name in state_names], images, training=True
            )
        return features, dict(zip(state_names, state, strict=True))


def why_not(model: SplitModel, towers: int) -> str | None:
    """Returns a sentence if the dense layers cannot be divided over that many towers, else None."""
    narrow = [layer for layer in model.tail if layer.weights and layer.outputs < towers]
    if not narrow:
        return None
    return (
        f"--fc_model_parallel: {narrow[0].keras_layer.name} has {narrow[0].outputs} column(s), fewer than the {towers} "
        "towers: drop the flag, or use fewer devices."
    )


def split(model: Model) -> SplitModel:
    """Cuts a model before its final dense layers and the dropout between them.

    Raises:
        ValueError: the model does not end in a dense layer.
    """
    dense, dropout = keras.layers.Dense, keras.layers.Dropout
    from_end = itertools.takewhile(lambda layer: isinstance(layer, dense | dropout), reversed(model.keras_model.layers))
    layers = itertools.dropwhile(lambda layer: isinstance(layer, dropout), reversed(list(from_end)))
    pairs = zip(ordered(model.keras_model), model.variables, strict=True)
    names = {id(keras_variable): variable.name for keras_variable, variable in pairs}
    tail: list[TailLayer] = []
    for layer in layers:
        weights = tuple(names[id(variable)] for variable in layer.trainable_variables)
        seeds = tuple(names[id(variable)] for variable in layer.non_trainable_variables)
        tail.append(TailLayer(layer, weights, layer.units if weights else 0, seeds))
    if not tail:
        raise ValueError(f"{model.keras_model.name} does not end in dense layers: there is nothing to divide.")
    cut = tail[0].keras_layer.input
    return SplitModel(
        variables=model.variables,
        tail=tail,
        features=cut.shape[-1],
        _trunk=keras.Model(model.keras_model.inputs, cut),
        _names=names,
    )
