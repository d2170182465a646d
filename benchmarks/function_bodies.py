"""The operations inside the functions that a graph calls, as if they stood in a graph of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def ancestors(targets: Iterable[tf.Tensor | tf.Operation]) -> Iterator[tf.Operation]:
    """Yields, once each and in no order, the operations that must run for these targets; a session runs no others."""
    seen = {_operation(target) for target in targets}
    waiting = list(seen)
    while waiting:
        operation = waiting.pop()
        yield operation
        for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if before not in seen:
                seen.add(before)
                waiting.append(before)


def _operation(target: tf.Tensor | tf.Operation) -> tf.Operation:
    return getattr(target, "op", target)


class Library:
    """The functions of a graph; they are looked up only when one is called."""

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._found: dict[str, Any] | None = None

    def body(self, name: str) -> Any:
        """Returns the `FunctionDef` of that name; its nodes know their shapes."""
        if self._found is None:
            library = self._graph.as_graph_def(add_shapes=True).library
            self._found = {function.signature.name: function for function in library.function}
        return self._found[name]

    def inside(self, call: tf.Operation) -> list[tf.Tensor | tf.Operation]:
        """Returns what a call of a function ends with, in a new graph that holds the function's body.

        Calls within it are replaced by what they call. Shapes follow from those of the call's own inputs.

        Args:
            call: an operation of a type in `CALLS`.
        """
        with tf.Graph().as_default():
            arguments = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in call.inputs]
            return _Replay(self, call.get_attr("f").name, arguments).ends

    def operation_types(self, operation: tf.Operation) -> set[str]:
        """Returns the types of all operations in the functions that an operation names, as control flow does."""
        found: set[str] = set()
        waiting = [operation.node_def]
        visited = set()
        while waiting:
            for name in _functions_of(waiting.pop().attr):
                if name not in visited:
                    visited.add(name)
                    nodes = list(self.body(name).node_def)
                    found |= {node.op for node in nodes}
                    waiting += nodes
        return found


def _functions_of(attributes: Mapping[str, Any]) -> Iterator[str]:
    for value in attributes.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


class _Replay:
    """Builds a function's body in the default graph; `ends` are its outputs, and what it does besides."""

    def __init__(self, library: Library, name: str, arguments: Sequence[tf.Tensor]) -> None:
        body = library.body(name)
        self._library = library
        self._tensors = {
            arg.name: tensor for arg, tensor in zip(body.signature.input_arg, arguments, strict=True)
        }  # by the names that function bodies use: an argument, or node:output argument:number
        self._done: dict[str, list[tf.Operation]] = {arg.name: [] for arg in body.signature.input_arg}
        for node in _in_order(body.node_def):
            waits_for = [operation for name in node.input if name[0] == "^" for operation in self._done[name[1:]]]
            with tf.control_dependencies(waits_for):
                self._add(node, [self._tensors[name] for name in node.input if name[0] != "^"])
        self.outputs = [self._tensors[body.ret[arg.name]] for arg in body.signature.output_arg]
        effects = [operation for name in body.control_ret.values() for operation in self._done[name]]
        self.ends: list[tf.Tensor | tf.Operation] = [*self.outputs, *effects]

    def _add(self, node: Any, inputs: Sequence[tf.Tensor]) -> None:
        if node.op in CALLS:
            called = _Replay(self._library, node.attr["f"].func.name, inputs)
            names = [f"{node.name}:output:{number}" for number in range(len(called.outputs))]
            self._tensors.update(zip(names, called.outputs, strict=True))
            self._done[node.name] = [_operation(end) for end in called.ends]
            return
        # What begins with "_" is about the graph around: where it stood, names beside it.
        attributes = {name: value for name, value in node.attr.items() if name[0] != "_"}
        operation = tf.compat.v1.get_default_graph().create_op(node.op, list(inputs), attrs=attributes)
        self._done[node.name] = [operation]
        # What is read of a variable that came as an argument has no shape but this.
        for tensor, shape in zip(operation.outputs, node.attr["_output_shapes"].list.shape, strict=False):
            tensor.set_shape(tf.TensorShape(shape))
        self._tensors.update(zip(_output_names(node.name, operation), operation.outputs, strict=True))


def _in_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """Yields a function's nodes so that each comes after what it needs."""
    by_name = {node.name: node for node in nodes}
    needs = {node.name: {name.lstrip("^").split(":")[0] for name in node.input} for node in nodes}
    return (by_name[name] for name in TopologicalSorter(needs).static_order() if name in by_name)


def _output_names(name: str, operation: tf.Operation) -> Iterator[str]:
    for argument in operation.op_def.output_arg:
        count = 1
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(operation.get_attr(argument.type_list_attr))
        yield from (f"{name}:{argument.name}:{number}" for number in range(count))
