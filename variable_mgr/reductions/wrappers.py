"""Reductions that wrap another one: each changes the gradients before it, and undoes the change after it.

From the outside: pack, cast, defer, reduce. So a deferred gradient is kept packed and cast.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import tensorflow as tf

from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.placement import even_parts, group_small
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.all_reduce import AllReduce, Reduction, TowerTensors
from variable_mgr.traffic import FLOAT32_BYTES

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
    """Abstract. Wraps `inner`, the reduction of the towers of `place`."""

    def __init__(self, inner: Reduction, place: Place) -> None:
        self._inner, self._place = inner, place

    @property
    def makes_equal(self) -> bool:
        """Returns the inner reduction's."""
        return self._inner.makes_equal

    @property
    def deferred(self) -> bool:
        """Returns whether this or the inner reduction defers."""
        return isinstance(self, Deferred) or self._inner.deferred

    def sent_bytes(self, elements: Sequence[int], element_bytes: int = FLOAT32_BYTES) -> int | None:
        """Returns what the inner reduction sends of what this makes of the tensors."""
        return self._inner.sent_bytes(*self._sizes(elements, element_bytes))

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"{self._words()}, {self._inner.describe()}"

    @abc.abstractmethod
    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        """Returns the sizes of the tensors that the inner reduction gets, and the bytes of an element."""

    @abc.abstractmethod
    def _words(self) -> str:
        """Returns what this does."""


class Repacked(_Wrapper):
    """Concatenates all gradients of a tower into one vector and cuts it into equal chunks.

    Many small tensors cost many small messages; one large one cannot overlap. Chunks are in between.

    Args:
        inner: reduces the chunks.
        place: the towers' devices.
        chunks: the number of chunks.
    """

    def __init__(self, inner: Reduction, place: Place, chunks: int) -> None:
        super().__init__(inner, place)
        self._chunks = chunks

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means in the original shapes."""
        return _wrapped(self._inner, self._place, towers, self._pack, unpack)

    def _pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        sizes, _ = self._sizes([tensor.shape.num_elements() for tensor in tensors], FLOAT32_BYTES)
        return list(tf.split(flat(tensors), sizes))

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        return even_parts(sum(elements), min(self._chunks, sum(elements))), element_bytes

    def _words(self) -> str:
        return f"packed into {self._chunks} equal chunks"


class SmallAggregated(_Wrapper):
    """Concatenates consecutive small gradients, so that they travel together; large ones travel alone.

    Args:
        inner: reduces the groups.
        place: the towers' devices.
        max_bytes: the largest size of a small gradient.
        max_group: the most gradients in one group.
    """

    def __init__(self, inner: Reduction, place: Place, max_bytes: int, max_group: int) -> None:
        super().__init__(inner, place)
        self._max_bytes, self._max_group = max_bytes, max_group

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means in the original shapes."""
        groups = self._groups([tensor.shape.num_elements() * tensor.dtype.size for tensor in towers[0]])

        def pack(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [
                tensors[group[0]] if len(group) == 1 else flat([tensors[index] for index in group]) for group in groups
            ]

        def restore(packed: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            restored: list[tf.Tensor] = []
            for tensor, group in zip(packed, groups, strict=True):
                restored += [tensor] if len(group) == 1 else unpack([tensor], [like[index] for index in group])
            return restored

        return _wrapped(self._inner, self._place, towers, pack, restore)

    def _groups(self, sizes_bytes: Sequence[int]) -> list[list[int]]:
        return group_small(sizes_bytes, self._max_bytes, self._max_group)

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        groups = self._groups([element_bytes * count for count in elements])
        return [sum(elements[index] for index in group) for group in groups], element_bytes

    def _words(self) -> str:
        return f"those of at most {self._max_bytes} bytes in groups of at most {self._max_group}"


class Compact(_Wrapper):
    """Casts float32 gradients to a 16-bit type before the reduction and back after it, which halves what travels.

    Args:
        inner: reduces in that type.
        place: the towers' devices.
        dtype: `float16` or `bfloat16`.
    """

    def __init__(self, inner: Reduction, place: Place, dtype: str) -> None:
        super().__init__(inner, place)
        self._dtype = tf.as_dtype(dtype)

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means of the original types."""

        def cast(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.cast(tensor, self._dtype) for tensor in tensors]

        def cast_back(tensors: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.cast(tensor, original.dtype) for tensor, original in zip(tensors, like, strict=True)]

        return _wrapped(self._inner, self._place, towers, cast, cast_back)

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        return elements, self._dtype.size

    def _words(self) -> str:
        return f"sent as {self._dtype.name}"


class Deferred(_Wrapper):
    """Returns the means of the step before, so that the reduction overlaps with the next step's computation.

    The first step returns zeros. This is `--variable_consistency=relaxed`: the gradient applied at step t is of the
    weights before step t-1's update.
    """

    def mean(self, towers: TowerTensors) -> Result:
        """Returns the last step's means, and the operations that keep this step's gradients."""
        earlier, keep = [], []
        for tensors, device in zip(towers, self._place.towers, strict=True):
            with tf.device(device):
                kept = [_zeros(tensor) for tensor in tensors]
                reads = [variable.read_value() for variable in kept]
                for variable, read, tensor in zip(kept, reads, tensors, strict=True):
                    with tf.control_dependencies([read]):
                        keep.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor))
            earlier.append(reads)
        means, operations = self._inner.mean(earlier)
        return means, [*keep, *operations]

    def _sizes(self, elements: Sequence[int], element_bytes: int) -> tuple[Sequence[int], int]:
        return elements, element_bytes

    def _words(self) -> str:
        return "of the step before"


def _zeros(like: tf.Tensor) -> tf.Variable:
    return tf.Variable(tf.zeros(like.shape, like.dtype), trainable=False, name="deferred_gradient")


def flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns all elements of the tensors, in order, in one dimension."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(packed: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the elements of the packed vectors, in order, as tensors of the shapes of `like`."""
    parts = tf.split(flat(packed), [original.shape.num_elements() for original in like])
    return [tf.reshape(part, original.shape) for part, original in zip(parts, like, strict=True)]


def _wrapped(
    inner: Reduction,
    place: Place,
    towers: TowerTensors,
    before: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    after: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]],
) -> Result:
    """Reduces what `before` makes of each tower's tensors, and gives the means and the originals to `after`."""
    prepared = []
    for tensors, device in zip(towers, place.towers, strict=True):
        with tf.device(device):
            prepared.append(before(tensors))
    means, operations = inner.mean(prepared)
    restored = []
    for reduced, tensors, device in zip(means, towers, place.towers, strict=True):
        with tf.device(device):
            restored.append(after(reduced, tensors))
    return restored, operations
