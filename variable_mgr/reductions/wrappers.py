"""Reductions that wrap another one: each changes the gradients before it, and undoes the change after it.

From the outside: pack, cast, defer, reduce. So a deferred gradient is kept packed and cast.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf

from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place, even_parts, group_small
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.all_reduce import AllReduce, Reduction, TowerTensors
from variable_mgr.reductions.kernels import on_each
from variable_mgr.transfers import FLOAT32_BYTES, Transfer

Result = tuple[list[list[tf.Tensor]], list[tf.Operation]]


def reduction(place: Place, modifiers: Modifiers, spec: str, *, first_number: int = 0) -> Reduction:
    """Makes the reduction of a spec with the wrappers of the modifiers; `first_number` as of `AllReduce`."""
    made: Reduction = AllReduce(all_reduce_spec.parse(spec), place, first_number)
    if modifiers.relaxed_consistency:
        made = Deferred(made, place)
    if place.towers_in_total == 1:  # nothing travels, so nothing is packed or cast
        return made
    if modifiers.compact_gradient_transfer:
        made = Compact(made, place, modifiers.wire_dtype)
    if modifiers.agg_small_grads_max_bytes:
        made = SmallAggregated(made, place, modifiers.agg_small_grads_max_bytes, modifiers.agg_small_grads_max_group)
    if modifiers.gradient_repacking:
        made = Repacked(made, place, modifiers.gradient_repacking)
    return made


class _Wrapper(abc.ABC):
    """Abstract. Reduces what `_before` makes of each tower's tensors by `inner`, and undoes that with `_after`."""

    def __init__(self, inner: Reduction, place: Place) -> None:
        self._inner, self._place, self.deferred = inner, place, inner.deferred

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means of the original shapes and types."""
        means, operations = self._inner.mean(on_each(self._place.towers, self._before, towers))
        return on_each(self._place.towers, self._after, means, towers), operations

    def transfers(self, elements: Sequence[int], element_bytes: int = FLOAT32_BYTES) -> list[Transfer]:
        """Returns what the inner reduction sends of the tensors that it gets."""
        return self._inner.transfers(*self._sizes(elements, element_bytes))

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"{self._words()}, {self._inner.describe()}"

    @abc.abstractmethod
    def _before(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _after(self, reduced: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]: ...

    @abc.abstractmethod
    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        """Returns the elements of the tensors that the inner reduction gets, and the bytes of an element."""

    @abc.abstractmethod
    def _words(self) -> str: ...


class Repacked(_Wrapper):
    """Concatenates all gradients of a tower into one vector and cuts it into equal chunks.

    Many small tensors cost many small messages. But no chunk can travel before the last gradient is computed.
    """

    def __init__(self, inner: Reduction, place: Place, chunks: int) -> None:
        super().__init__(inner, place)
        self._chunks = chunks

    def _before(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sizes, _ = self._sizes([tensor.shape.num_elements() for tensor in tensors], FLOAT32_BYTES)
        return list(tf.split(flat(tensors), sizes))

    def _after(self, reduced: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return unpack(reduced, like)

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        return even_parts(sum(elements), min(self._chunks, sum(elements))), element_bytes

    def _words(self) -> str:
        return f"packed into {self._chunks} equal chunks"


class SmallAggregated(_Wrapper):
    """Concatenates consecutive small gradients, so that they travel together; large ones travel alone.

    A small one has at most `max_bytes`, and a group at most `max_group` of them.
    """

    def __init__(self, inner: Reduction, place: Place, max_bytes: int, max_group: int) -> None:
        super().__init__(inner, place)
        self._max_bytes, self._max_group = max_bytes, max_group

    def _groups(self, tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
        return [[tensors[i] for i in group] for group in group_small(sizes, self._max_bytes, self._max_group)]

    def _before(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [group[0] if len(group) == 1 else flat(group) for group in self._groups(tensors)]

    def _after(self, reduced: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        restored: list[tf.Tensor] = []
        for tensor, group in zip(reduced, self._groups(like), strict=True):
            restored += [tensor] if len(group) == 1 else unpack([tensor], group)
        return restored

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        groups = group_small([element_bytes * count for count in elements], self._max_bytes, self._max_group)
        return [sum(elements[index] for index in group) for group in groups], element_bytes

    def _words(self) -> str:
        return f"those of at most {self._max_bytes} bytes in groups of at most {self._max_group}"


class Compact(_Wrapper):
    """Casts float32 gradients to a 16-bit type before the reduction and back after it, which halves what travels."""

    def __init__(self, inner: Reduction, place: Place, dtype: str) -> None:
        super().__init__(inner, place)
        self._dtype = tf.as_dtype(dtype)

    def _before(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.cast(tensor, self._dtype) for tensor in tensors]

    def _after(self, reduced: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.cast(tensor, original.dtype) for tensor, original in zip(reduced, like, strict=True)]

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        return elements, self._dtype.size

    def _words(self) -> str:
        return f"sent as {self._dtype.name}"


class Deferred:
    """Returns the means of the step before, so that the reduction overlaps with the next step's computation.

    The first step returns zeros. This is `--variable_consistency=relaxed`: the gradient applied at step t is of the
    weights before step t-1's update.
    """

    deferred = True

    def __init__(self, inner: Reduction, place: Place) -> None:
        self._inner, self._place, self.transfers = inner, place, inner.transfers

    def mean(self, towers: TowerTensors) -> Result:
        """Returns the last step's means, and the operations that keep this step's gradients."""
        earlier, keep = [], []
        for tensors, device in zip(towers, self._place.towers, strict=True):
            with tf.device(device):
                kept = [
                    tf.Variable(tf.zeros(t.shape, t.dtype), trainable=False, name="deferred_gradient") for t in tensors
                ]
                reads = [variable.read_value() for variable in kept]
                for variable, read, tensor in zip(kept, reads, tensors, strict=True):
                    with tf.control_dependencies([read]):
                        keep.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor))
            earlier.append(reads)
        means, operations = self._inner.mean(earlier)
        return means, [*keep, *operations]

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"of the step before, {self._inner.describe()}"


def flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns all elements of the tensors, in order, in one dimension."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(packed: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the elements of the packed vectors, in order, as tensors of the shapes of `like`."""
    parts = tf.split(flat(packed), [original.shape.num_elements() for original in like])
    return [tf.reshape(part, original.shape) for part, original in zip(parts, like, strict=True)]
