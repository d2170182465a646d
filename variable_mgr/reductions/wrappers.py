"""What is done to gradients around their reduction: each is a reduction that wraps another, and undoes what it did.

The order in use, from the outside: pack, cast, defer, reduce. So a deferred gradient is kept packed and cast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from variable_mgr.place import Place
from variable_mgr.placement import even_parts, group_small
from variable_mgr.reductions.all_reduce import Reduction, TowerTensors

Result = tuple[list[list[tf.Tensor]], list[tf.Operation]]


class Repacked:
    """Concatenates all gradients of a tower into one vector and cuts it into equal chunks, however large they were.

    Many small tensors cost many small messages; one large one cannot overlap. Chunks are in between.

    Args:
        inner: reduces the chunks.
        place: the towers' devices.
        chunks: how many.
    """

    def __init__(self, inner: Reduction, place: Place, chunks: int) -> None:
        self._inner, self._place, self._chunks = inner, place, chunks
        self.makes_equal = inner.makes_equal

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means in the shapes that came."""
        return _wrapped(self._inner, self._place, towers, self._pack, unpack)

    def _pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        elements = sum(tensor.shape.num_elements() for tensor in tensors)
        return list(tf.split(flat(tensors), even_parts(elements, min(self._chunks, elements))))

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"packed into {self._chunks} chunks, {self._inner.describe()}"


class SmallAggregated:
    """Concatenates small gradients that follow each other, so that they travel together; large ones go alone.

    Args:
        inner: reduces the groups.
        place: the towers' devices.
        max_bytes: what is at most that large is small.
        max_group: tensors in one group, at most.
    """

    def __init__(self, inner: Reduction, place: Place, max_bytes: int, max_group: int) -> None:
        self._inner, self._place = inner, place
        self._max_bytes, self._max_group = max_bytes, max_group
        self.makes_equal = inner.makes_equal

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means in the shapes that came."""
        sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in towers[0]]
        groups = group_small(sizes, self._max_bytes, self._max_group)

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

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"up to {self._max_bytes} bytes grouped by at most {self._max_group}, {self._inner.describe()}"


class Compact:
    """Halves what travels: casts float32 gradients to a 16-bit type before the reduction and back after it.

    Args:
        inner: reduces in that type.
        place: the towers' devices.
        dtype: `float16` or `bfloat16`.
    """

    def __init__(self, inner: Reduction, place: Place, dtype: str) -> None:
        self._inner, self._place, self._dtype = inner, place, tf.as_dtype(dtype)
        self.makes_equal = inner.makes_equal

    def mean(self, towers: TowerTensors) -> Result:
        """Returns means of the types that came."""

        def cast(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.cast(tensor, self._dtype) for tensor in tensors]

        def cast_back(tensors: Sequence[tf.Tensor], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.cast(tensor, original.dtype) for tensor, original in zip(tensors, like, strict=True)]

        return _wrapped(self._inner, self._place, towers, cast, cast_back)

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"sent as {self._dtype.name}, {self._inner.describe()}"


class Deferred:
    """Hands out the mean of the step before, so that reducing can hide behind the next step's computing.

    The first step hands out zeros. This is `--variable_consistency=relaxed`: the gradient applied at step t is of the
    weights before step t-1's update.

    Args:
        inner: reduces the gradients of the step before.
        place: the towers' devices.
    """

    def __init__(self, inner: Reduction, place: Place) -> None:
        self._inner, self._place = inner, place
        self.makes_equal = inner.makes_equal

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

    def describe(self) -> str:
        """Returns in words what happens."""
        return f"of the step before, {self._inner.describe()}"


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
