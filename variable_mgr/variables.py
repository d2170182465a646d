"""Creates, reads and assigns variables on their devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from variable_mgr.manager import Placed, VariableSpec
from variable_mgr.place import Place
from variable_mgr.placement import balance_by_bytes


def create(
    spec: VariableSpec,
    *,
    device: str,
    prefix: str,
    initial_value: tf.Tensor | None = None,
    shape: Sequence[int] | None = None,
) -> tf.Variable:
    """Creates one variable on a device.

    Args:
        spec: what to create.
        device: where.
        prefix: precedes the canonical name and distinguishes copies in traces.
        initial_value: used instead of the spec's own, so that copies start equal.
        shape: used instead of the spec's own, if this is only a part of the variable.
    """
    with tf.device(device):
        value = spec.initial_value() if initial_value is None else initial_value
        return tf.Variable(value, trainable=False, name=f"{prefix}/{spec.name}", shape=shape or spec.shape)


def create_shared(specs: Sequence[VariableSpec], devices: Sequence[str]) -> dict[str, tf.Variable]:
    """Creates one variable per spec, spread over devices by bytes."""
    homes = balance_by_bytes([size_bytes(spec) for spec in specs], devices)
    return {spec.name: create(spec, device=home, prefix="shared") for spec, home in zip(specs, homes, strict=True)}


def create_copies(specs: Sequence[VariableSpec], place: Place) -> list[dict[str, tf.Variable]]:
    """Creates a copy of every variable on each tower's device.

    One tensor initialises all copies, so random numbers are drawn once.
    """
    copies: list[dict[str, tf.Variable]] = []
    for tower, device in enumerate(place.towers):
        copy = {}
        for spec in specs:
            if spec.kind == "tower_state":
                copy[spec.name] = create_tower_state(spec, place, tower)
            else:
                with tf.device(device):  # a tensor of its own, so that each copy can be initialised with another value
                    same = tf.identity(copies[0][spec.name].initial_value) if copies else None
                copy[spec.name] = create(spec, device=device, prefix=f"tower_{tower}", initial_value=same)
        copies.append(copy)
    return copies


def create_tower_state(spec: VariableSpec, place: Place, tower: int) -> tf.Variable:
    """Creates a variable that belongs to one tower, such as the seed of dropout.

    The tower's number among those of all workers is added to the initial value, so that no two drop the same units.
    """
    device = place.towers[tower]
    number = place.worker * len(place.towers) + tower
    with tf.device(device):
        value = spec.initial_value()
        value += tf.constant(number, value.dtype)
    return create(spec, device=device, prefix=f"tower_{number}", initial_value=value)


def copies(
    specs: Iterable[VariableSpec], homes: Sequence[Mapping[str, tf.Variable]]
) -> dict[str, list[Sequence[tf.Variable]]]:
    """Returns for each spec every variable of its name, in the order of `homes`, each as a copy of one part."""
    return {spec.name: [[home[spec.name]] for home in homes if spec.name in home] for spec in specs}


def size_bytes(spec: VariableSpec) -> int:
    """Returns how many bytes one copy of the variable takes."""
    return math.prod(spec.shape) * tf.as_dtype(spec.dtype).size


def placed(specs: Sequence[VariableSpec], variables: Mapping[str, tf.Variable]) -> list[Placed]:
    """Returns where each variable lives."""
    found = [(spec, variables[spec.name]) for spec in specs if spec.name in variables]
    return [Placed(spec.name, spec.kind, v.device, math.prod(v.shape) * v.dtype.size) for spec, v in found]


def assign_all(variables: Mapping[str, tf.Variable], values: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
    """Returns one operation per value that stores it in the variable of the same name, on the variable's device."""
    operations = []
    for name, value in values.items():
        with tf.device(variables[name].device):
            operations.append(tf.raw_ops.AssignVariableOp(resource=variables[name].handle, value=value))
    return operations


def read_all(specs: Iterable[VariableSpec], variables: Mapping[str, tf.Variable]) -> list[tf.Tensor]:
    """Returns one read of each variable, made on the variable's own device."""
    values = []
    for spec in specs:
        with tf.device(variables[spec.name].device):
            values.append(variables[spec.name].read_value())
    return values
