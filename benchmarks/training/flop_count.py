"""Counts the FLOPs of a built graph, and the bytes that it moves at least, from static shapes.

Counted are convolutions and matrix products, forward and backward, with 2 operations per multiply-add, padding
included. Normalisation, activations and updates are left out, as in the literature's figures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from models.building import Model


@dataclasses.dataclass(frozen=True)
class Work:
    """What a graph does in a step.

    Attributes:
        flops: operations, 2 per multiply-add.
        moved_bytes: size of the inputs and outputs of each counted operation, once each. Memory traffic is at least
            this large if no tensor stays in a cache from one operation to the next.
        uncounted: sorted types of operations that would count but cannot be counted; if any, the other figures are too
            small.
        convolution_flops: those of the operations that are convolutions; the others are matrix products.
    """

    flops: int = 0
    moved_bytes: int = 0
    uncounted: tuple[str, ...] = ()
    convolution_flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.moved_bytes + other.moved_bytes,
            tuple(sorted({*self.uncounted, *other.uncounted})),
            self.convolution_flops + other.convolution_flops,
        )

    def per_image(self, images: int) -> dict[str, int | None]:
        """Returns `flops_per_image` and `bytes_per_image` of a step of that many images, or None if some is unknown."""
        if self.uncounted:
            return {"flops_per_image": None, "bytes_per_image": None}
        return {"flops_per_image": round(self.flops / images), "bytes_per_image": round(self.moved_bytes / images)}


class Layer(NamedTuple):
    """A part of a forward pass: its name, operations per image, and the bytes of its weights, or of their gradient."""

    name: str
    forward_flops: int
    weight_bytes: int


def count(targets: Iterable[tf.Tensor | tf.Operation]) -> Work:
    """Counts what a session does that runs these targets of one graph.

    Function calls and control flow cannot be counted: if their functions hold work, `Work.uncounted` names them.
    """

    @functools.cache
    def bodies() -> dict[str, Any]:
        library = ends[0].graph.as_graph_def().library
        return {function.signature.name: function for function in library.function}

    ends, work = list(targets), Work()
    for operation in _ancestors(ends):
        if operation.type in _COUNTED:
            work += _of(operation)
        elif operation.type in _NOT_UNDERSTOOD or (operation.type in _CALLING and _calls_work(operation, bodies())):
            work += Work(uncounted=(operation.type,))
    return work


def of_built(model: Model, *, batch: int, forward_only: bool) -> Work:
    """Counts one step of a model on one device, in a graph of its own: forward, and backward unless `forward_only`."""
    with tf.Graph().as_default():
        values, images = _placeholders(model, batch)
        logits, _ = model.call(values, images, training=not forward_only)
        if forward_only:
            return count([logits])
        weights = [value for value, variable in zip(values, model.variables, strict=True) if variable.kind == "weight"]
        return count([logits, *tf.gradients(logits, weights)])  # as a loss, which needs the logits' values, too


def _placeholders(model: Model, batch: int) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns what a model computes from: the values of its variables, and images."""
    values = [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in model.variables]
    return values, tf.compat.v1.placeholder(tf.float32, (batch, *model.image_shape))


def by_layer(model: Model) -> list[Layer]:
    """Returns the layers of a model that compute or have weights, in the order of the forward pass.

    Raises:
        ValueError: an operation that would count cannot be counted.
    """
    layers: list[Layer] = []
    with tf.Graph().as_default() as graph:
        values, images = _placeholders(model, 1)
        model.call(values, images, training=True)
        waiting = {
            value.name: variable
            for value, variable in zip(values, model.variables, strict=True)
            if variable.kind == "weight"
        }
        for operation in graph.get_operations():  # in the order in which they were made
            own = [waiting.pop(tensor.name) for tensor in operation.inputs if tensor.name in waiting]
            work = _of(operation) if operation.type in _COUNTED else Work()
            if work.uncounted:
                raise ValueError(f"operations that cannot be counted: {operation.type}.")
            if own or work.flops:
                name = own[0].name.rpartition("/")[0] if own else operation.name
                size = tf.float32.size * sum(math.prod(variable.shape) for variable in own)
                layers.append(Layer(name, work.flops, size))
    return layers


def _of(operation: tf.Operation) -> Work:
    tensors = [tensor for tensor in (*operation.inputs, *operation.outputs) if tensor.dtype.is_floating]
    is_known = operation.type != "Einsum" or _labels(operation) is not None
    if not (is_known and all(tensor.shape.is_fully_defined() for tensor in tensors)):
        return Work(uncounted=(operation.type,))
    moved_bytes = sum(math.prod(tensor.shape) * tensor.dtype.size for tensor in tensors)
    flops = 2 * _COUNTED[operation.type](operation)
    return Work(flops, moved_bytes, convolution_flops=flops if _COUNTED[operation.type] is _convolution else 0)


def _matmul(operation: tf.Operation) -> int:
    """Multiply-adds of a matrix product: each element of the result sums over the inner dimension."""
    left = operation.inputs[0].shape
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return math.prod(operation.outputs[0].shape) * int(left[-2] if transposed else left[-1])


def _convolution(operation: tf.Operation) -> int:
    """Multiply-adds of a convolution or of one of its gradients; all three have equally many.

    Each element of the convolution's result is a sum over the kernel, [height, width, channels in a group, ...] in all
    layouts; a depthwise kernel does not sum over channels.
    """
    is_forward = "Backprop" not in operation.type
    result = operation.outputs[0] if is_forward else operation.inputs[2]  # its gradient has its shape
    kernel = operation.outputs[0] if operation.type.endswith("BackpropFilter") else operation.inputs[1]
    summed = 2 if operation.type.startswith("Depthwise") else 3
    return math.prod(result.shape) * math.prod(kernel.shape[:summed])


def _einsum(operation: tf.Operation) -> int:
    """Multiply-adds of an Einstein sum: one for each combination of its labels; one operand is only rearranged."""
    if len(operation.inputs) == 1:
        return 0
    labels = _labels(operation) or []
    sizes = {
        label: size
        for tensor, own in zip(operation.inputs, labels, strict=True)
        for label, size in zip(own, tensor.shape, strict=True)
    }
    return math.prod(sizes.values())


def _labels(operation: tf.Operation) -> list[str] | None:
    """Returns the labels of an Einstein sum's operands; None if it has an ellipsis or a diagonal."""
    operands = operation.get_attr("equation").decode().partition("->")[0].split(",")
    is_plain = all("." not in own and len({*own}) == len(own) for own in operands)
    return operands if is_plain and len(operands) <= 2 else None


_COUNTED: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"), _convolution),
    "DepthwiseConv2dNative": _convolution,
    "DepthwiseConv2dNativeBackpropInput": _convolution,
    "DepthwiseConv2dNativeBackpropFilter": _convolution,
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
}
# These do such work, but no model here has any.
_NOT_UNDERSTOOD = ("Conv", "Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2")
# These run functions; how often is not known before the run.
_CALLING = (
    "If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile",
    "PartitionedCall", "StatefulPartitionedCall",
)  # fmt: skip


def _ancestors(targets: Iterable[tf.Tensor | tf.Operation]) -> Iterator[tf.Operation]:
    """Yields, once each and in no order, the operations that must run for these targets; a session runs no others."""
    reached = {getattr(target, "op", target) for target in targets}
    waiting = list(reached)
    while waiting:
        operation = waiting.pop()
        yield operation
        for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if before not in reached:
                reached.add(before)
                waiting.append(before)


def _calls_work(operation: tf.Operation, bodies: Mapping[str, Any]) -> bool:
    """Returns whether a function that an operation calls, directly or through others, holds work that would count."""
    waiting: list[Any] = [operation.node_def]
    visited: set[str] = set()
    while waiting:
        for value in waiting.pop().attr.values():
            for name in {value.func.name, *(function.name for function in value.list.func)} & bodies.keys() - visited:
                visited.add(name)
                nodes = bodies[name].node_def
                if any(node.op in _COUNTED or node.op in _NOT_UNDERSTOOD for node in nodes):
                    return True
                waiting += nodes
    return False
