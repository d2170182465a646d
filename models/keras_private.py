"""What Keras has no public name for: the private names of its layers and operations that this suite uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


def layers_in(layer: Any) -> Sequence[Any]:
    """Returns the layers in a layer or model, at any depth: `layers` exists for models only. An operation has none."""
    if not isinstance(layer, keras.Layer):
        return ()
    return layer._flatten_layers(include_self=False)


def is_rematerialized(layer: Any) -> bool:
    """Returns whether a layer was made in a `keras.RematScope`. An operation never is, nor a layer of older Keras."""
    return bool(getattr(layer, "_remat_mode", None))


def number_of_calls(operation: Any) -> int:
    """Returns how often an operation of a model is called: `input` and `output` are those of the first call."""
    return len(operation._inbound_nodes)


def without_calls(operation: Any) -> Any:
    """Returns the operation after removing it from the models that call it, so that another one can."""
    operation._inbound_nodes.clear()
    operation._outbound_nodes.clear()
    return operation


def last_operation(model: Any, output: int) -> tuple[Any, int]:
    """Returns the operation that computes an output of a graph of layers, and which of its outputs that is.

    The operation is None if it is called twice.
    """
    graph = getattr(model, "_functional", model)
    last, _, index = graph.outputs[output]._keras_history
    calls = [node for nodes in graph._nodes_by_depth.values() for node in nodes if node.operation is last]
    return (last if len(calls) == 1 else None), index


def initializer_of(variable: Any) -> Any:
    """Returns what makes the first value of a variable that was made without one."""
    return variable._initializer
