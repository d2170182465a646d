"""Cuts a model into consecutive stages, each a function from one tensor to one tensor, for a pipeline of devices."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from models.building import Model, ModelVariable, no_own_variables, ordered


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive layers of a model.

    Attributes:
        layers: names of the first and the last layer.
        variables: of these layers, in the order in which Keras passes them.
    """

    layers: tuple[str, str]
    variables: Sequence[ModelVariable]
    _keras_model: keras.Model

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of what the stage takes, without the batch."""
        return tuple(self._keras_model.inputs[0].shape[1:])

    @property
    def weights(self) -> list[str]:
        """Returns the names of the trained variables."""
        return [variable.name for variable in self.variables if variable.kind == "weight"]

    def call(self, values: Mapping[str, tf.Tensor], inputs: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Runs the stage in training mode, given the images or the output of the stage before, [batch, ...].

        Returns:
            The output, [batch, ...], and the new values of statistics and tower states, by name.
        """
        weights = self.weights
        state_names = [variable.name for variable in self.variables[len(weights) :]]
        with no_own_variables():
            outputs, state = self._keras_model.stateless_call(
                [values[name] for name in weights], [values[name] for name in state_names], inputs, training=True
            )
        return outputs, dict(zip(state_names, state, strict=True))


def cut_points(model: Model) -> list[keras.KerasTensor]:
    """Returns the tensors, in order, of which each alone connects the layers before it with those after it.

    A model that calls a layer twice has none: Keras lists the layer once, with the tensors of its first call.
    """
    # Every operation comes after those that it needs, the input first.
    operations = model.keras_model.operations
    if any(len(operation._inbound_nodes) > 1 for operation in operations):
        return []
    last_use = {id(tensor): n for n, one in enumerate(operations[1:], 1) for tensor in keras.tree.flatten(one.input)}
    needed: set[int] = set()
    points = []
    for number, operation in enumerate(operations[:-1]):
        needed = {tensor for tensor in needed if last_use[tensor] > number} | {id(operation.output)}
        if number and len(needed) == 1:
            points.append(operation.output)
    return points


def cut(model: Model, at: Sequence[keras.KerasTensor]) -> list[Stage]:
    """Returns the stages between these of the model's cut points, in order: one more than points.

    The layers are then part of the stages too, so Keras no longer finds the model's cut points.
    """
    whole = model.keras_model
    pairs = zip(ordered(whole), model.variables, strict=True)
    described = {id(keras_variable): variable for keras_variable, variable in pairs}
    stages = []
    for start, end in itertools.pairwise([whole.inputs[0], *at, whole.outputs[0]]):
        with no_own_variables():
            part = keras.Model(start, end)
        names = [operation.name for operation in part.operations]
        stages.append(Stage((names[1], names[-1]), [described[id(variable)] for variable in ordered(part)], part))
    return stages


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
                found = (before + sent[start - 1], [*ends, 1 - start]) if group else (0, [])
                extended[end] = min(found, extended.get(end, found))
        best = extended
    return [-end for end in best[len(sums) - 1][1]] if len(sums) - 1 in best else None
