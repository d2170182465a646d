"""Reductions turn the gradients of all towers into one mean. Wrappers are in `variable_mgr.reductions.wrappers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from variable_mgr.place import Place, Turn, balance_by_bytes, even_parts
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.algorithm_catalog import find_algorithm
from variable_mgr.reductions.all_reduce_spec import Range
from variable_mgr.reductions.kernels import on_each
from variable_mgr.transfers import FLOAT32_BYTES, UNKNOWN, Transfer, around_ring

# n lists of tensors, one list per tower; the lists are alike in length and shapes.
TowerTensors = Sequence[Sequence[tf.Tensor]]


class Reduction(Protocol):
    """Maps n lists of tensors, one list per tower, to n lists of means."""

    deferred: bool  # the means are those of the step before

    def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
        """Returns for each tower the mean over all towers of each tensor, and operations that every step must run."""

    def transfers(self, elements: Sequence[int], element_bytes: int = FLOAT32_BYTES) -> list[Transfer]:
        """Returns what is sent, between processes or within one, to reduce tensors of so many elements."""

    def describe(self) -> str:
        """Returns in words what happens, to follow 'gradients'."""


class AllReduce:
    """Reduces every tensor by the algorithm that a spec chooses for its size. One tower costs nothing.

    Args:
        ranges: a parsed spec; checked by `all_reduce_spec.why_not`.
        place: the towers' devices, in tower order, and the host.
        first_number: of the numbers of its tensors, which must differ between reductions in one graph.
    """

    deferred = False

    def __init__(self, ranges: Sequence[Range], place: Place, first_number: int = 0) -> None:
        self._ranges = ranges
        self._place = place
        self._first_number = first_number

    def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
        """Returns the same means to every tower."""
        if self._place.towers_in_total == 1:
            return [list(towers[0])], []
        chosen = [all_reduce_spec.choose(self._ranges, tensor.shape.num_elements()) for tensor in towers[0]]
        shards = [min(item.shards, max(1, t.shape.num_elements())) for item, t in zip(chosen, towers[0], strict=True)]
        turns = _take_turns(towers[0], shards, len(towers), self._first_number)
        means: list[list[tf.Tensor]] = [[] for _ in towers]
        # Backwards, as gradients are computed: where collectives follow each other, the first layers' come last.
        for values, item, its_turns in reversed([*zip(zip(*towers, strict=True), chosen, turns, strict=True)]):
            for tower, value in enumerate(self._reduce(values, item.algorithm, its_turns)):
                means[tower].insert(0, value)
        return means, []

    def _reduce(self, values: Sequence[tf.Tensor], algorithm: str, turns: Sequence[Turn]) -> list[tf.Tensor]:
        """Reduces one tensor, in as many shards as there are turns."""
        reduce = find_algorithm(algorithm).mean
        if len(turns) == 1:
            return reduce(values, self._place, turns[0])
        sizes = even_parts(values[0].shape.num_elements(), len(turns))
        pieces = on_each(self._place.towers, lambda value: tf.split(tf.reshape(value, [-1]), sizes), values)
        reduced = [
            reduce(shard, self._place, turn) for shard, turn in zip(zip(*pieces, strict=True), turns, strict=True)
        ]
        return on_each(
            self._place.towers,
            lambda shards, like: tf.reshape(tf.concat(shards, axis=0), like.shape),
            zip(*reduced, strict=True),
            values,
        )

    def transfers(self, elements: Sequence[int], element_bytes: int = FLOAT32_BYTES) -> list[Transfer]:
        """Returns what the algorithms send between real devices, or several workers around a ring.

        Where one client drives several workers, it is unknown which tower adds which tensor.
        """
        place, sent = self._place, []
        if place.workers > 1:
            return around_ring(sum(elements) * element_bytes, place)
        if place.hosts:
            return [UNKNOWN]
        for count in elements if len(place.towers) > 1 else ():
            item = all_reduce_spec.choose(self._ranges, count)
            for shard in even_parts(count, min(item.shards, max(1, count))):
                sent += find_algorithm(item.algorithm).transfers(len(place.towers), shard * element_bytes)
        return sent

    def describe(self) -> str:
        """Returns in words what happens."""
        meanings = dict.fromkeys(find_algorithm(item.algorithm).meaning for item in self._ranges)
        return f"reduced by {all_reduce_spec.describe(self._ranges)}: {'; '.join(meanings)}"


def _take_turns(
    tensors: Sequence[tf.Tensor], shards: Sequence[int], towers: int, first_number: int
) -> list[list[Turn]]:
    """Returns a turn for every shard of every tensor, so that towers add about equally many bytes.

    (By number alone they would not: kernels and biases alternate, and one tower would get all kernels.)
    """
    sizes = [
        size for t, count in zip(tensors, shards, strict=True) for size in even_parts(t.shape.num_elements(), count)
    ]
    homes = enumerate(balance_by_bytes(sizes, range(towers)), start=first_number)
    last: dict[str, tf.Tensor] = {}
    return [[Turn(*next(homes), last) for _ in range(count)] for count in shards]
