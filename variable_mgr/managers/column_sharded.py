"""Column sharding: each tower holds some columns of the dense layers, and no gradient of them travels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import (
    Explanation,
    Optimizer,
    TowerUpdate,
    UpdateOp,
    VariableManager,
    VariableSpec,
    WrappingManager,
)
from variable_mgr.place import even_parts

_DIAGRAM = """\
    and of the dense layers, which are divided:
    features  <---all--->  features      of the images of all towers
    [columns]              [columns]     each its own, for all images
    outputs   <---all--->  outputs       ... to the logits, and back the same way"""


class ColumnSharded(WrappingManager):
    """Wraps a manager and divides some weights: every tower holds some columns of each.

    A tower reads only its own columns, so the caller must compute with the inputs of all towers. The gradient must be
    that of the mean over all towers; it is applied on its tower. Source: Krizhevsky 2014, "One weird trick for
    parallelizing convolutional neural networks", arXiv:1404.5997.
    """

    def __init__(self, inner: VariableManager, tower_devices: Sequence[str], divided: Collection[str]) -> None:
        super().__init__(inner, tower_devices)
        self._divided = divided
        self._shards: list[dict[str, tf.Variable]] = [{} for _ in self._devices]
        self._all_read: list[tf.Operation] = []

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the inner manager's variables, and each tower's columns of the others."""
        self._specs = list(specs)
        self._inner.create([spec for spec in specs if spec.name not in self._divided])
        for spec in specs:
            if spec.name not in self._divided:
                continue
            columns = even_parts(spec.shape[-1], len(self._devices))
            with tf.device(self._devices[0]):
                values = tf.split(spec.initial_value(), columns, axis=-1)
            for tower, (device, count, value) in enumerate(zip(self._devices, columns, values, strict=True)):
                shape = (*spec.shape[:-1], count)
                self._shards[tower][spec.name] = variables.create(
                    spec, device=device, prefix=f"tower_{tower}", initial_value=value, shape=shape
                )

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns the tower's columns of divided weights, and of all others what the inner manager reads."""
        own = self._shards[tower]
        specs = [spec for spec in self._specs if spec.name in own]
        shards = dict(zip(own, variables.read_all(specs, own), strict=True))
        with tf.device(self._devices[tower]):
            self._all_read.append(tf.group(*shards.values()))
        others = iter(self._inner.tower_values(tower))
        return [shards[spec.name] if spec.name in shards else next(others) for spec in self._specs]

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Applies the gradients of the tower's columns where they are; hands the others to the inner manager."""
        others = []
        operations = []
        for shards, all_read, update in zip(self._shards, self._all_read, updates, strict=True):
            rest = {name: gradient for name, gradient in update.gradients.items() if name not in shards}
            others.append(dataclasses.replace(update, gradients=rest))
            with tf.control_dependencies([all_read]):
                operations += optimizer.apply(list(shards.values()), [update.gradients[name] for name in shards])
        (applied,) = self._inner.apply(others, optimizer)
        return [UpdateOp(tf.group(applied.operation, *operations))]

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the inner manager's, and the columns of every tower."""
        return [*self._inner.homes(), *self._shards]

    def copies(self) -> dict[str, list[Sequence[tf.Variable]]]:
        """Returns the inner manager's, and all towers' columns of the others as one copy."""
        copies = self._inner.copies()
        for name in self._shards[0]:
            copies[name] = [[shards[name] for shards in self._shards]]
        return copies

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        inner = self._inner.explain(optimizer)
        if len(self._devices) == 1:
            return inner
        return dataclasses.replace(
            inner,
            weights=f"{inner.weights}; of the dense layers each tower holds some columns",
            gradients=f"{inner.gradients}; those of the dense layers stay on their tower",
            diagram=f"{inner.diagram}\n\n{_DIAGRAM}",
        )
