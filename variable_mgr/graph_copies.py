"""Builds a function of tensors once, and copies what it built into the graph for every further use.

Python takes about six times as long to build a tower of ResNet-50 as TensorFlow's own importer to copy it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf


class GraphCopies:
    """Stands for a function of tensors, alone or nested; its results may be nested, too.

    Each call adds the same operations to the default graph, in the current name scope and on the current device. The
    function must not depend on anything but its arguments: it runs once per combination of their types and shapes, in a
    graph of its own and outside of devices. It may name a device for a part of it; None is an argument, but no result.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._built: dict[Any, Callable[[Sequence[tf.Tensor]], Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function would return."""
        flat = tf.nest.flatten(arguments)
        key = tuple(a if a is None else (a.dtype, tuple(a.shape.as_list())) for a in flat)
        if key not in self._built:
            self._built[key] = self._build(arguments)
        return self._built[key]([argument for argument in flat if argument is not None])

    def _build(self, arguments: Any) -> Callable[[Sequence[tf.Tensor]], Any]:
        """Returns what copies the function, built for such arguments, into the default graph for others."""
        with tf.Graph().as_default() as graph:
            parameters = tf.nest.map_structure(
                lambda a: a if a is None else tf.compat.v1.placeholder(a.dtype, a.shape), arguments
            )
            placeholders = [parameter for parameter in tf.nest.flatten(parameters) if parameter is not None]
            given = {id(placeholder) for placeholder in placeholders}
            results = tf.nest.map_structure(
                lambda result: tf.identity(result) if id(result) in given else result, self._function(*parameters)
            )
        definition = graph.as_graph_def()
        needed = _needed(definition, {result.op.name for result in tf.nest.flatten(results)})
        keep(definition, needed - {placeholder.op.name for placeholder in placeholders})
        _free(definition)

        def copy(tensors: Sequence[tf.Tensor]) -> Any:
            scope = tf.compat.v1.get_default_graph().get_name_scope()
            given = {p.name: tensor for p, tensor in zip(placeholders, tensors, strict=True) if p.op.name in needed}
            copied = tf.graph_util.import_graph_def(
                definition,
                input_map=given,
                return_elements=[result.name for result in tf.nest.flatten(results)],
                name=f"{scope}/" if scope else "",
            )
            return tf.nest.pack_sequence_as(results, copied)

        return copy


def _needed(definition: Any, names: Collection[str]) -> set[str]:
    """Returns the names of these nodes and of all that they depend on: gradients add many that nothing uses."""
    inputs = {node.name: [name.lstrip("^").partition(":")[0] for name in node.input] for node in definition.node}
    for node in definition.node:
        if "_class" in node.attr:  # it is colocated with others
            inputs[node.name] += [name.decode().removeprefix("loc:@") for name in node.attr["_class"].list.s]
    needed, waiting = set(names), list(names)
    while waiting:
        new = set(inputs[waiting.pop()]) - needed
        needed |= new
        waiting += new
    return needed


def _free(definition: Any) -> None:
    """Lets nodes be colocated only with nodes of the definition, which have other names in every copy.

    The nodes of functions, such as gradients of loops, would be colocated with those of the first copy.
    """
    names = {f"loc:@{node.name}".encode() for node in definition.node}
    for node in definition.node:
        if "_class" in node.attr and {*node.attr["_class"].list.s} - names:
            del node.attr["_class"]
    for function in definition.library.function:
        for node in function.node_def:
            node.attr.pop("_class", None)


def keep(definition: Any, names: Collection[str]) -> None:
    """Removes all other nodes from a graph definition; an importer would copy parameters that are replaced, too."""
    kept = [node for node in definition.node if node.name in names]
    del definition.node[:]
    definition.node.extend(kept)
