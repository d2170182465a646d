"""Creating variables on a device, and what every manager does with the non-trained ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from variable_mgr.manager import Placed, VariableSpec


def create(spec: VariableSpec, *, device: str, prefix: str, initial_value: tf.Tensor | None = None) -> tf.Variable:
    """Creates one variable on a device.

    Args:
        spec: what to create.
        device: where.
        prefix: goes before the canonical name, so that copies can be told apart in traces.
        initial_value: used instead of the spec's own, so that copies start equal.
    """
    with tf.device(device):
        value = spec.initial_value() if initial_value is None else initial_value
        return tf.Variable(value, trainable=False, name=f"{prefix}/{spec.name}", shape=spec.shape)


def create_tower_state(spec: VariableSpec, *, device: str, tower: int) -> tf.Variable:
    """Creates a variable that belongs to one tower, such as the seed of dropout.

    The tower's number is added to the initial value, so that no two towers drop the same units.
    """
    with tf.device(device):
        value = spec.initial_value()
        value += tf.constant(tower, value.dtype)
    return create(spec, device=device, prefix=f"tower_{tower}", initial_value=value)


def size_bytes(spec: VariableSpec) -> int:
    """Returns how many bytes one copy of the variable takes."""
    return math.prod(spec.shape) * tf.as_dtype(spec.dtype).size


def placed(specs: Sequence[VariableSpec], variables: Mapping[str, tf.Variable]) -> list[Placed]:
    """Returns where each variable lives."""
    return [
        Placed(spec.name, spec.kind, variables[spec.name].device, size_bytes(spec))
        for spec in specs
        if spec.name in variables
    ]


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
