"""The bytes on each device, from a graph that has been built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.topology.devices import Devices
from results.placement import grouped
from variable_mgr.manager import VariableManager, VariableSpec


def placement_table(
    manager: VariableManager, devices: Devices, *, training: bool, variables: Sequence[VariableSpec]
) -> dict[str, Any]:
    """Returns the placement of a run, for the record, whose manager has created its variables in the default graph.

    It has descriptions of the devices and the manager; `variables` and `weights`, their numbers over all copies; and
    bytes per device of variables, of the optimizer's state (`slot`), of the gradients that each tower computes, and of
    staging areas (`staged`: images, weights, gradients). `variable_groups` has every one of the model's
    `variables`, see `results.placement.grouped`.
    """
    placed = manager.placed()
    copies: dict[tuple[str, str, int], list[str]] = {}
    for entry in placed:
        copies.setdefault((entry.name, entry.kind, entry.size_bytes), []).append(entry.device)
    weights = {entry.name for entry in placed if entry.kind == "weight"}
    gradients: list[tuple[str, int]] = []
    for name, parts in manager.checkpoint_variables().items():
        if training and name in weights:  # each tower has a gradient of each weight, or of its part of it
            of_each_tower = parts if len(parts) > 1 else [*parts] * len(devices.towers)
            gradients += zip(map(_canonical, devices.towers), map(size_bytes, of_each_tower), strict=True)
    shapes = {variable.name: variable.shape for variable in variables}
    created = tf.compat.v1.global_variables()
    names = {variable.op.name for variable in created}
    # The name of an optimizer's slot is below its variable's name.
    slots = [(v.device, size_bytes(v)) for v in created if v.op.name.rpartition("/")[0] in names]
    operations = tf.compat.v1.get_default_graph().get_operations()
    staged = [(_canonical(op.device), sum(map(size_bytes, op.inputs))) for op in operations if op.type == "Stage"]
    return {
        "devices": devices.description,
        "tower_devices": list(devices.towers),
        "manager": manager.describe(),
        "variables": len(placed),
        "weights": sum(entry.kind == "weight" for entry in placed),
        "variable_bytes_per_device": per_device((entry.device, entry.size_bytes) for entry in placed),
        "slot_bytes_per_device": per_device(slots),
        "gradient_bytes_per_device": per_device(gradients),
        "staged_bytes_per_device": per_device(staged),
        "variable_groups": grouped(
            (name, kind, shapes.get(name, ()), size, on) for (name, kind, size), on in copies.items()
        ),
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
