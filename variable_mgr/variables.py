"""Creates, reads, compares and assigns variables on their devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from variable_mgr import graph_copies
from variable_mgr.manager import VariableSpec
from variable_mgr.place import Place, balance_by_bytes

_PARAMETER = "initial_value_{}"


def create(
    spec: VariableSpec,
    *,
    device: str,
    prefix: str,
    initial_value: tf.Tensor | None = None,
    shape: Sequence[int] | None = None,
) -> tf.Variable:
    """Creates one variable on a device.

    The prefix precedes the canonical name and distinguishes copies in traces. Copies get the same `initial_value`, so
    that they start equal; a part of a variable has a `shape` of its own.
    """
    with tf.device(device):
        value = spec.initial_value() if initial_value is None else initial_value
        return tf.Variable(value, trainable=False, name=f"{prefix}/{spec.name}", shape=shape or spec.shape)


def create_shared(specs: Sequence[VariableSpec], devices: Sequence[str]) -> dict[str, tf.Variable]:
    """Creates one variable per spec, spread over devices by bytes."""
    sizes_bytes = [math.prod(spec.shape) * tf.as_dtype(spec.dtype).size for spec in specs]
    homes = balance_by_bytes(sizes_bytes, devices)
    return {spec.name: create(spec, device=home, prefix="shared") for spec, home in zip(specs, homes, strict=True)}


def create_copies(specs: Sequence[VariableSpec], place: Place) -> list[dict[str, tf.Variable]]:
    """Creates a copy of every variable on each tower's device.

    One tensor initialises all copies, so random numbers are drawn once.
    """
    shared = [spec for spec in specs if spec.kind != "tower_state"]
    with tf.device(place.towers[0]):
        values = [spec.initial_value() for spec in shared]
    built = _graph_of_copies(shared) if shared and len(place.towers) > 1 else None
    copies: list[dict[str, tf.Variable]] = []
    for tower, device in enumerate(place.towers):
        prefix = f"tower_{tower}"
        if built:
            created = _import_copies(built, values, device, prefix)
            values = [variable.initial_value for variable in created] if tower == 0 else values
        else:
            given = zip(shared, values, strict=True)
            created = [create(spec, device=device, prefix=prefix, initial_value=value) for spec, value in given]
        copy = {spec.name: variable for spec, variable in zip(shared, created, strict=True)}
        copies.append(copy | {s.name: create_tower_state(s, place, tower) for s in specs if s.kind == "tower_state"})
    return copies


def _graph_of_copies(specs: Sequence[VariableSpec]) -> tf.compat.v1.MetaGraphDef:
    """Returns a graph with a variable for each spec. Its initial value is that of the graph's parameter of its number.

    To import such a graph takes a fifth of the time in which Python creates the variables.
    """
    with tf.Graph().as_default():
        for number, spec in enumerate(specs):
            given = tf.compat.v1.placeholder(spec.dtype, spec.shape, name=_PARAMETER.format(number))
            # A tensor of its own, so that each copy can be initialised with another value.
            value = tf.identity(given, name=f"{spec.name}/initial_value")  # no name that operations of towers have
            tf.Variable(value, trainable=False, name=spec.name, shape=spec.shape)
        built = tf.compat.v1.train.export_meta_graph()
    kept = {node.name for node in built.graph_def.node if node.op not in ("Placeholder", "VarIsInitializedOp")}
    graph_copies.keep(built.graph_def, kept)
    built.saver_def.SetInParent()  # without one, the import would add a saver's operations
    return built


def _import_copies(
    built: tf.compat.v1.MetaGraphDef, values: Sequence[tf.Tensor], device: str, prefix: str
) -> list[tf.Variable]:
    """Adds the variables of `_graph_of_copies` to the default graph, on a device, with these initial values."""
    for node in built.graph_def.node:
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = f"{prefix}/{node.name}".encode()
    before = [variable.op.name for variable in tf.compat.v1.global_variables()]
    with tf.device(device):
        tf.compat.v1.train.import_meta_graph(
            built,
            import_scope=f"{prefix}/",  # with the slash, the name remains free for a scope of the tower
            input_map={f"{_PARAMETER.format(number)}:0": value for number, value in enumerate(values)},
        )
    created = tf.compat.v1.global_variables()[len(before) :]
    if not {*before}.isdisjoint(variable.op.name for variable in created):
        raise RuntimeError(f"The graph already has variables called {prefix}/...: build one manager in each graph.")
    return list(created)


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


def assign_all(variables: Mapping[str, tf.Variable], values: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
    """Returns one operation per value that stores it in the variable of the same name, on the variable's device."""
    operations = []
    for name, value in values.items():
        with tf.device(variables[name].device):
            operations.append(tf.raw_ops.AssignVariableOp(resource=variables[name].handle, value=value))
    return operations


def read_all(
    specs: Iterable[VariableSpec], variables: Mapping[str, tf.Variable], after: Sequence[tf.Tensor] = ()
) -> list[tf.Tensor]:
    """Returns one read of each variable, made on the variable's device.

    It is that which every variable has, or if it must come `after` others a new one.
    """
    if not after:
        return [tf.compat.v1.get_default_graph().as_graph_element(variables[spec.name]) for spec in specs]
    values = []
    for spec in specs:
        with tf.device(variables[spec.name].device), tf.control_dependencies(after):
            variable = variables[spec.name]
            values.append(tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))
    return values


def largest_difference(
    towers: Sequence[Sequence[tf.Tensor]], references: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> tf.Tensor:
    """Returns the largest absolute difference of any tower's values from its references, unless it is its own."""
    differences, of_tower = [], graph_copies.GraphCopies(_largest_difference)
    for values, reference, device in zip(towers, references, devices, strict=True):
        if values is not reference:
            with tf.device(device):
                differences.append(of_tower(values, reference))
    with tf.device(devices[0]):
        return tf.reduce_max(tf.stack(differences))


def _largest_difference(values: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_max(
        tf.stack([tf.reduce_max(tf.abs(value - other)) for value, other in zip(values, others, strict=True)])
    )
