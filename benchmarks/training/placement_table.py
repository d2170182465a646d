"""How many bytes of what are on which device, read off a graph that has been built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from benchmarks.topology.devices import Devices
from variable_mgr.manager import VariableManager


def placement_table(manager: VariableManager, devices: Devices, *, training: bool) -> dict[str, Any]:
    """Returns where everything is, for the record.

    Args:
        manager: has created its variables in the default graph.
        devices: of the run.
        training: whether there are gradients.

    Returns:
        The devices and the manager in words; `variables` and `weights`, how many there are with all copies; and bytes
        per device of variables, of what the optimizer remembers (`slot`), of the gradients that each tower makes, and
        of what lies in staging areas between steps (`staged`: images, weights, gradients).
    """
    placed = manager.placed()
    gradients = _sum(_gradients(manager, devices)) if training else Counter()
    return {
        "devices": devices.description,
        "tower_devices": list(devices.towers),
        "manager": manager.describe(),
        "variables": len(placed),
        "weights": sum(entry.kind == "weight" for entry in placed),
        "variable_bytes_per_device": dict(_sum((entry.device, entry.size_bytes) for entry in placed)),
        "slot_bytes_per_device": dict(_sum(_slots())),
        "gradient_bytes_per_device": dict(gradients),
        "staged_bytes_per_device": dict(_sum(_staged())),
    }


def _gradients(manager: VariableManager, devices: Devices) -> Iterator[tuple[str, int]]:
    """Yields tower device and bytes of every gradient: each tower has one of each weight, or of its part of it."""
    weights = {entry.name for entry in manager.placed() if entry.kind == "weight"}
    for name, parts in manager.checkpoint_variables().items():
        of_each_tower = parts if len(parts) > 1 else [*parts] * len(devices.towers)
        for device, part in zip(devices.towers, of_each_tower, strict=True):
            if name in weights:
                yield _canonical(device), math.prod(part.shape) * part.dtype.size


def _slots() -> Iterator[tuple[str, int]]:
    """Yields device and bytes of every variable that an optimizer made: its name is below another variable's."""
    every = tf.compat.v1.global_variables()
    names = {variable.op.name for variable in every}
    for variable in every:
        if variable.op.name.rpartition("/")[0] in names:
            yield variable.device, math.prod(variable.shape) * variable.dtype.size


def _staged() -> Iterator[tuple[str, int]]:
    """Yields device and bytes of every staging area."""
    for operation in tf.compat.v1.get_default_graph().get_operations():
        if operation.type == "Stage":
            sizes = (tensor.shape.num_elements() * tensor.dtype.size for tensor in operation.inputs)
            yield _canonical(operation.device), sum(sizes)


def _sum(sizes: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for device, size_bytes in sizes:
        total[device] += size_bytes
    return total


def _canonical(device: str) -> str:
    """Returns the name that variables give for their device, `/device:CPU:0` for `/cpu:0`."""
    return tf.DeviceSpec.from_string(device).to_string()
