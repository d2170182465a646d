"""Cuts a model into parts that are functions of their variables by name.

A pipeline of devices gets consecutive parts, each from one tensor to one tensor. The final dense layers are cut off as
a tail, to divide their columns over devices.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from models.building import Model, ModelVariable, calling, no_own_variables, ordered
from models.keras_private import number_of_calls

Values = Mapping[str, tf.Tensor]
# Activations of Keras whose outputs depend on one element each, so that columns can be computed apart.
_OF_EACH_ELEMENT = (
    *("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign"),
    *("sigmoid", "hard_sigmoid", "hard_silu", "tanh", "hard_tanh", "exponential"),
)


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive layers of a model; their variables are in the order in which Keras passes them."""

    variables: Sequence[ModelVariable]
    _keras_model: keras.Model

    @property
    def layers(self) -> tuple[str, str]:
        """The names of the first and the last layer."""
        operations = self._keras_model.operations  # the input is one, too
        return operations[1].name, operations[-1].name

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of what the part takes, without the batch."""
        return tuple(self._keras_model.inputs[0].shape[1:])

    @property
    def weights(self) -> list[str]:
        """The names of the trained variables."""
        return [variable.name for variable in self.variables if variable.kind == "weight"]

    def call(self, values: Values, inputs: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the part in training mode, given the images or the output of the part before, [batch, ...].

        Returns:
            The output, [batch, ...], and the new values of statistics and tower states, by name.
        """
        weights = self.weights
        state_names = [variable.name for variable in self.variables[len(weights) :]]
        with calling(self._keras_model):
            outputs, state = self._keras_model.stateless_call(
                [values[name] for name in weights], [values[name] for name in state_names], inputs, training=True
            )
        return outputs, dict(zip(state_names, state, strict=True))


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
        trunk: the layers before the cut.
        tail: the layers after the cut; the first is dense.
        features: width of the trunk's output.
    """

    variables: Sequence[ModelVariable]
    trunk: Part
    tail: Sequence[TailLayer]
    features: int

    @property
    def divided(self) -> frozenset[str]:
        """The names of the variables whose last axis can be divided: the tail's weights."""
        return frozenset(name for layer in self.tail for name in layer.weights)


def split(model: Model) -> SplitModel:
    """Cuts a model before its final dense layers and the dropout between them; without any, the tail is empty.

    Layers of a derived class, with several calls or with an activation that is not known to be of each element, and
    operations that are no layers, are never in it.
    """
    from_end = itertools.takewhile(_can_be_in_the_tail, reversed(model.keras_model.operations))
    layers = itertools.dropwhile(lambda layer: type(layer) is keras.layers.Dropout, reversed(list(from_end)))
    tail: list[TailLayer] = []
    for layer in layers:
        weights = tuple(variable.name for variable in model.descriptions_of(layer.trainable_variables))
        seeds = tuple(variable.name for variable in model.descriptions_of(layer.non_trainable_variables))
        tail.append(TailLayer(layer, weights, layer.units if weights else 0, seeds))
    cut = tail[0].keras_layer.input if tail else model.keras_model.outputs[0]
    return SplitModel(model.variables, _part(model, model.keras_model.inputs[0], cut), tail, cut.shape[-1])


def _can_be_in_the_tail(operation: Any) -> bool:
    if number_of_calls(operation) != 1:
        return False
    if type(operation) is keras.layers.Dense:
        if len(operation.trainable_variables) < len(operation.variables):  # it is frozen, or has others besides (LoRA)
            return False
        return any(operation.activation is getattr(keras.activations, name) for name in _OF_EACH_ELEMENT)
    return type(operation) is keras.layers.Dropout


def cut_points(model: Model) -> list[keras.KerasTensor]:
    """Returns the tensors, in order, of which each alone connects the layers before it with those after it.

    A model that calls a layer twice has none: Keras lists the layer once, with the tensors of its first call.
    """
    # Every operation comes after those that it needs, the input first.
    operations = model.keras_model.operations
    if any(number_of_calls(operation) > 1 for operation in operations):
        return []
    last_use = {id(tensor): n for n, user in enumerate(operations[1:], 1) for tensor in keras.tree.flatten(user.input)}
    needed: set[int] = set()
    points = []
    for number, operation in enumerate(operations[:-1]):
        needed = {tensor for tensor in needed if last_use[tensor] > number} | {id(operation.output)}
        if number and len(needed) == 1:
            points.append(operation.output)
    return points


def cut(model: Model, at: Sequence[keras.KerasTensor]) -> list[Part]:
    """Returns the stages between these of the model's cut points, in order: one more than points.

    The layers are then part of the stages too, so Keras no longer finds the model's cut points.
    """
    whole = model.keras_model
    return [_part(model, *ends) for ends in itertools.pairwise([whole.inputs[0], *at, whole.outputs[0]])]


def _part(model: Model, start: keras.KerasTensor, end: keras.KerasTensor) -> Part:
    with no_own_variables():
        part = keras.Model(start, end)
    return Part(model.descriptions_of(ordered(part)), part)


def balanced(costs: Sequence[int], sent: Sequence[int], count: int) -> list[int] | None:
    """Groups consecutive pieces of a model so that the most expensive group is as cheap as possible.

    Among the groupings that are equal in this, it chooses the one that sends least. Every group has some cost.

    Args:
        costs: of each piece.
        sent: bytes that each piece sends to the next one.
        count: number of groups.

    Returns:
        Indices of the last piece of every group but the last, or None if fewer pieces than groups have a cost.
    """
    sums = list(itertools.accumulate(costs, initial=0))
    limits = sorted({end - start for start, end in itertools.combinations(sums, 2)})
    smallest = bisect.bisect_left(limits, True, key=lambda limit: _least_sent(sums, sent, count, limit) is not None)
    return _least_sent(sums, sent, count, limits[smallest]) if smallest < len(limits) else None


def _least_sent(sums: Sequence[int], sent: Sequence[int], count: int, limit: int) -> list[int] | None:
    """Returns the grouping that sends least with no group above the limit; `sums[i]` is the cost of i pieces.

    Of groupings that send equally much it returns the one whose groups end last: a ReLU stays with what it follows.
    """
    # By the number of pieces in the groups so far: what these send, and the negative indices of their last pieces.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for group in range(count):
        extended: dict[int, tuple[int, list[int]]] = {}
        for (start, (before, ends)), end in itertools.product(best.items(), range(1, len(sums))):
            if 0 < sums[end] - sums[start] <= limit:
                candidate = (before + sent[start - 1], [*ends, 1 - start]) if group else (0, [])
                extended[end] = min(candidate, extended.get(end, candidate))
        best = extended
    return [-end for end in best[len(sums) - 1][1]] if len(sums) - 1 in best else None
