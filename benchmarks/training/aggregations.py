"""Finds in a built graph which operation, on which device, sums each gradient over towers or workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from results.placement import aggregated

_ADDITIONS = ("Add", "AddV2", "AddN")
_COLLECTIVES = ("CollectiveReduceV2", "NcclAllReduce")
# Queues between workers and the chief are called `gradient/NAME/WORKER`; see `variable_mgr.managers.gathering`.
_QUEUE_OF_GRADIENTS = "gradient/"

# By gradient, the towers of which a tensor holds a contribution; what another worker sends counts as one more.
_Parts = Mapping[str, frozenset[str]]


def aggregations(gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[dict[str, Any]]:
    """Returns for the record which operations, as pairs of type and device, sum which gradients.

    An addition sums a gradient if it holds more towers' parts than any of its inputs. Gradients that travel packed
    into one vector are summed where the vector is.

    Args:
        gradients: of each tower, by the weight's name.
    """
    held: dict[str, _Parts] = {}  # by tensor
    for tower, own in enumerate(gradients):
        for name, tensor in own.items():
            held[tensor.name] = {**held.get(tensor.name, {}), name: frozenset([f"tower {tower}"])}
    staged: dict[str, list[_Parts]] = {}
    summed: dict[str, dict[tuple[str, str], None]] = {}
    for operation in tf.compat.v1.get_default_graph().get_operations():  # inputs come before their users
        inputs = [held[tensor.name] for tensor in operation.inputs if tensor.name in held]
        if operation.type == "Stage":
            staged[_shared_name(operation)] = [held.get(tensor.name, {}) for tensor in operation.inputs]
        outputs: list[_Parts] = [_together(inputs)] * len(operation.outputs) if inputs else []
        if operation.type == "Unstage":
            outputs = staged.get(_shared_name(operation), [])
        elif operation.type.startswith("QueueDequeue"):
            outputs = list(_from_worker(operation))
        for tensor, parts in zip(operation.outputs, outputs, strict=False):
            if parts:
                held[tensor.name] = {**parts, **held.get(tensor.name, {})}
        for name in _sums(operation, inputs):
            summed.setdefault(name, {})[operation.type, operation.device] = None
    return aggregated({name: list(operations) for name, operations in summed.items()})


def _sums(operation: tf.Operation, inputs: Sequence[_Parts]) -> Iterator[str]:
    """Yields the gradients that an operation sums."""
    if operation.type in _ADDITIONS and len(inputs) > 1:
        for name, parts in _together(inputs).items():
            if all(parts != own.get(name) for own in inputs):
                yield name
    elif operation.type in _COLLECTIVES:
        yield from _together(inputs)


def _together(inputs: Sequence[_Parts]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for parts in inputs:
        for name, towers in parts.items():
            found[name] = found.get(name, frozenset()) | towers
    return found


def _from_worker(operation: tf.Operation) -> Iterator[_Parts]:
    """Yields what comes out of a queue between processes."""
    queue = _shared_name(operation.inputs[0].op)
    if queue.startswith(_QUEUE_OF_GRADIENTS):
        name = queue.removeprefix(_QUEUE_OF_GRADIENTS).rpartition("/")[0]
        yield {name: frozenset([queue])}


def _shared_name(operation: tf.Operation) -> str:
    return str(operation.get_attr("shared_name").decode())
