"""Counts the arithmetic of a built graph, and the bytes that it must at least move, from static shapes alone.

Counted are convolutions and matrix products, forward and backward, with 2 operations per multiply-add, those with
padding included. All else (normalisation, activations, updates) is left out, as it is in the literature's figures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import tensorflow as tf

from models.building import build
from models.layers import DataFormat
from models.specs import ModelSpec


@dataclasses.dataclass(frozen=True)
class Work:
    """What a graph does in a step.

    Attributes:
        flops: operations, 2 per multiply-add.
        moved_bytes: of the inputs and outputs of each counted operation, once each. That much goes through memory if no
            tensor stays in a cache from one operation to the next.
        uncounted: types of operations that would count but cannot be counted, sorted; then the rest is too small.
    """

    flops: int = 0
    moved_bytes: int = 0
    uncounted: tuple[str, ...] = ()

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.moved_bytes + other.moved_bytes,
            tuple(sorted({*self.uncounted, *other.uncounted})),
        )

    def per_image(self, images: int) -> dict[str, int | None]:
        """Returns `flops_per_image` and `bytes_per_image` of a step of that many images; None if not all is counted."""
        if self.uncounted:
            return {"flops_per_image": None, "bytes_per_image": None}
        return {"flops_per_image": round(self.flops / images), "bytes_per_image": round(self.moved_bytes / images)}


def count(targets: Iterable[tf.Tensor | tf.Operation]) -> Work:
    """Counts what a session does that runs these targets of one graph, functions that are called included."""
    wanted = list(targets)
    return _Counter(wanted[0].graph).count(wanted) if wanted else Work()


def of_model(
    spec: ModelSpec, *, batch: int, data_format: DataFormat, num_classes: int, precision: str, forward_only: bool
) -> Work:
    """Counts one step of a model on one device: forward, and backward unless `forward_only`.

    Args:
        spec: which.
        batch: images.
        data_format: `NHWC` or `NCHW`.
        num_classes: logits.
        precision: as of `models.building.build`.
        forward_only: inference.
    """
    model = build(spec, data_format=data_format, num_classes=num_classes, seed=0, precision=precision)
    size = (spec.image_size, spec.image_size)
    shape = (spec.channels, *size) if data_format == "NCHW" else (*size, spec.channels)
    with tf.Graph().as_default():
        values = [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in model.variables]
        images = tf.compat.v1.placeholder(tf.float32, (batch, *shape))
        logits, _ = model.call(values, images, training=not forward_only)
        if forward_only:
            return count([logits])
        weights = [value for value, variable in zip(values, model.variables, strict=True) if variable.kind == "weight"]
        return count([logits, *tf.gradients(logits, weights)])  # as a loss, which wants the logits' values, too


class _Counter:
    """Counts in a graph; a function is counted once for all its calls with inputs of equal shapes."""

    def __init__(self, graph: tf.Graph) -> None:
        self._library = Library(graph)
        self._calls: dict[tuple[str, ...], Work] = {}

    def count(self, targets: Iterable[tf.Tensor | tf.Operation]) -> Work:
        work = Work()
        for operation in ancestors(targets):
            if operation.type in CALLS:
                work += self._call(operation)
            elif operation.type in _COUNTED:
                work += _of(operation)
            elif operation.type in _NOT_UNDERSTOOD or (operation.type in _CONTROL_FLOW and self._works(operation)):
                work += Work(uncounted=(operation.type,))
        return work

    def _call(self, call: tf.Operation) -> Work:
        key = (call.get_attr("f").name, *(str(tensor.shape) for tensor in call.inputs))
        if key not in self._calls:
            self._calls[key] = self.count(self._library.inside(call))
        return self._calls[key]

    def _works(self, control_flow: tf.Operation) -> bool:
        return bool(self._library.operation_types(control_flow) & {*_COUNTED, *_NOT_UNDERSTOOD})


def _of(operation: tf.Operation) -> Work:
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.dtype.is_floating]
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return Work(uncounted=(operation.type,))
    moved_bytes = sum(_elements(tensor) * tensor.dtype.size for tensor in tensors)
    return Work(2 * _COUNTED[operation.type](operation), moved_bytes)


def _elements(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape)


def _product(operation: tf.Operation) -> int:
    """Multiply-adds of a matrix product: each element of the result adds up as many products as the inner size."""
    left = operation.inputs[0].shape
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return _elements(operation.outputs[0]) * (left[-2] if transposed else left[-1])


def _convolution(
    result: Callable[[tf.Operation], tf.Tensor], kernel: Callable[[tf.Operation], tf.Tensor], summed: int
) -> Callable[[tf.Operation], int]:
    """Returns what counts multiply-adds of a convolution or of one of its gradients; all three have equally many.

    Args:
        result: finds what the convolution yields, or the gradient of that: each element is a sum.
        kernel: finds the kernel or its gradient: [height, width, channels in a group, ...] in all layouts.
        summed: how many of the kernel's dimensions are summed over.
    """

    def multiply_adds(operation: tf.Operation) -> int:
        return _elements(result(operation)) * math.prod(kernel(operation).shape[:summed])

    return multiply_adds


def _input(number: int) -> Callable[[tf.Operation], tf.Tensor]:
    return lambda operation: operation.inputs[number]


def _output(operation: tf.Operation) -> tf.Tensor:
    return operation.outputs[0]


_COUNTED: dict[str, Callable[[tf.Operation], int]] = {
    "Conv2D": _convolution(_output, _input(1), 3),
    "Conv2DBackpropInput": _convolution(_input(2), _input(1), 3),
    "Conv2DBackpropFilter": _convolution(_input(2), _output, 3),
    "DepthwiseConv2dNative": _convolution(_output, _input(1), 2),
    "DepthwiseConv2dNativeBackpropInput": _convolution(_input(2), _input(1), 2),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(_input(2), _output, 2),
    "MatMul": _product,
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
}
# They do such work, but no model here has any.
_NOT_UNDERSTOOD = ("Conv", "Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2", "Einsum")
# How often their functions run is not known before.
_CONTROL_FLOW = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")


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
