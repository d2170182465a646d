"""The bytes on each device, and which operation sums each gradient, from a graph that has been built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.devices.device_plan import DevicePlan
from results.placement_tables import aggregated, grouped
from variable_mgr.manager import VariableManager, VariableSpec

# These send by themselves, without a pair of _Send and _Recv.
COLLECTIVES = ("CollectiveReduceV2", "NcclAllReduce")
_ADDITIONS = ("Add", "AddV2", "AddN")
# Queues between workers and the chief are called `gradient/NAME/WORKER`; see `variable_mgr.managers.gathering`.
_QUEUE_OF_GRADIENTS = "gradient/"

# By gradient, the towers of which a tensor holds a contribution; what another worker sends counts as one more.
_Parts = Mapping[str, frozenset[str]]


def placement_table(
    manager: VariableManager, devices: DevicePlan, *, training: bool, variables: Sequence[VariableSpec]
) -> dict[str, Any]:
    """Returns the placement of a run, for the record, whose manager has created its variables in the default graph.

    It has descriptions of the devices and the manager; `variables` and `weights`, their numbers over all copies; and
    bytes per device of variables, of the optimizer's state (`slot`), of the gradients that each tower computes, and of
    staging areas (`staged`: images, weights, gradients). `variable_groups` has every one of the model's
    `variables`, see `results.placement_tables.grouped`.
    """
    placed = [(spec, home[spec.name]) for home in manager.homes() for spec in variables if spec.name in home]
    copies: dict[tuple[str, str, tuple[int, ...], int], list[str]] = {}
    for spec, variable in placed:
        copies.setdefault((spec.name, spec.kind, spec.shape, size_bytes(variable)), []).append(variable.device)
    weights = {spec.name for spec in variables if spec.kind == "weight"}
    gradients: list[tuple[str, int]] = []
    for name, parts in manager.checkpoint_variables().items():
        if training and name in weights:  # each tower has a gradient of each weight, or of its part of it
            of_each_tower = parts if len(parts) > 1 else [*parts] * len(devices.towers)
            gradients += zip(map(_canonical, devices.towers), map(size_bytes, of_each_tower), strict=True)
    created = tf.compat.v1.global_variables()
    names = {variable.op.name for variable in created}
    # The name of an optimizer's slot is below its variable's name.
    slots = [(v.device, size_bytes(v)) for v in created if v.op.name.rpartition("/")[0] in names]
    operations = tf.compat.v1.get_default_graph().get_operations()
    staged = [(_canonical(op.device), sum(map(size_bytes, op.inputs))) for op in operations if op.type == "Stage"]
    return {
        "devices": devices.description,
        "tower_devices": list(devices.towers),
        "manager": manager.describe() if training else manager.explain().weights,
        "variables": len(placed),
        "weights": sum(spec.kind == "weight" for spec, _ in placed),
        "variable_bytes_per_device": per_device((variable.device, size_bytes(variable)) for _, variable in placed),
        "slot_bytes_per_device": per_device(slots),
        "gradient_bytes_per_device": per_device(gradients),
        "staged_bytes_per_device": per_device(staged),
        "variable_groups": grouped((*of_copy, on) for of_copy, on in copies.items()),
    }


def size_bytes(tensor: tf.Tensor | tf.Variable) -> int:
    """Returns the size of a tensor of known shape."""
    return math.prod(tensor.shape) * tensor.dtype.size


def per_device(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Adds up pairs of a device and a size, by device."""
    total: Counter[str] = Counter()
    for device, size in sizes:
        total[device] += size
    return dict(total)


def _canonical(device: str) -> str:
    """Returns the name that variables give for their device: `/device:CPU:0` for `/cpu:0`."""
    return tf.DeviceSpec.from_string(device).to_string()


def aggregations(gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[dict[str, Any]]:
    """Returns for the record which operations, as pairs of type and device, sum which gradients.

    An addition sums a gradient if it holds more towers' parts than any of its inputs. Gradients that travel packed
    into one vector are summed where the vector is.
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
    if operation.type in _ADDITIONS and len(inputs) > 1:
        for name, parts in _together(inputs).items():
            if all(parts != own.get(name) for own in inputs):
                yield name
    elif operation.type in COLLECTIVES:
        yield from _together(inputs)


def _together(inputs: Sequence[_Parts]) -> dict[str, frozenset[str]]:
    towers_of: dict[str, frozenset[str]] = {}
    for parts in inputs:
        for name, towers in parts.items():
            towers_of[name] = towers_of.get(name, frozenset()) | towers
    return towers_of


def _from_worker(operation: tf.Operation) -> Iterator[_Parts]:
    queue = _shared_name(operation.inputs[0].op)
    if queue.startswith(_QUEUE_OF_GRADIENTS):
        name = queue.removeprefix(_QUEUE_OF_GRADIENTS).rpartition("/")[0]
        yield {name: frozenset([queue])}


def _shared_name(operation: tf.Operation) -> str:
    return str(operation.get_attr("shared_name").decode())
