"""How the gradients of all towers become one mean: reductions are values that are given to a manager.

`AllReduce` is the reduction itself; what is done to the gradients around it (packing, casting, deferring) wraps it, see
`variable_mgr.gradient_transfer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from variable_mgr import all_reduce_spec
from variable_mgr.algorithms import ALGORITHMS, Place
from variable_mgr.all_reduce_spec import Range

# n lists of tensors, one list per tower; the lists are alike in length and shapes.
TowerTensors = Sequence[Sequence[tf.Tensor]]


class Reduction(Protocol):
    """Maps n lists of tensors, one list per tower, to n lists of means."""

    @property
    def makes_equal(self) -> bool:
        """Whether all towers receive the same values, so that equal copies stay equal."""

    def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
        """Returns for each tower the mean over all towers of each tensor, and operations that every step must run."""

    def describe(self) -> str:
        """Returns in words what happens, to follow 'gradients'."""


class NoExchange:
    """Every tower keeps its own gradients."""

    makes_equal = False

    def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
        """Returns what came."""
        return [list(tensors) for tensors in towers], []

    def describe(self) -> str:
        """Returns in words what happens."""
        return "not exchanged"


class AllReduce:
    """Reduces every tensor by the algorithm that a spec chooses for its size. One tower costs nothing.

    Args:
        ranges: a parsed spec; `all_reduce_spec.why_not` has been asked.
        place: the towers' devices, in tower order, and the host.
    """

    makes_equal = True

    def __init__(self, ranges: Sequence[Range], place: Place) -> None:
        self._ranges = ranges
        self._place = place

    def mean(self, towers: TowerTensors) -> tuple[list[list[tf.Tensor]], list[tf.Operation]]:
        """Returns the same means to every tower."""
        if len(towers) == 1:
            return [list(towers[0])], []
        means: list[list[tf.Tensor]] = [[] for _ in towers]
        turn = 0
        for values in zip(*towers, strict=True):
            chosen = all_reduce_spec.choose(self._ranges, values[0].shape.num_elements())
            for tower, value in enumerate(self._reduce(values, chosen, turn)):
                means[tower].append(value)
            turn += chosen.shards
        return means, []

    def _reduce(self, values: Sequence[tf.Tensor], chosen: Range, turn: int) -> list[tf.Tensor]:
        """Reduces one tensor, in shards if so chosen."""
        reduce = ALGORITHMS[chosen.algorithm].mean
        shards = min(chosen.shards, values[0].shape.num_elements())
        if shards <= 1:
            return reduce(values, self._place, turn)
        sizes = [len(part) for part in _even_parts(values[0].shape.num_elements(), shards)]
        pieces = []
        for value, device in zip(values, self._place.towers, strict=True):
            with tf.device(device):
                pieces.append(tf.split(tf.reshape(value, [-1]), sizes))
        reduced = [reduce(shard, self._place, turn + i) for i, shard in enumerate(zip(*pieces, strict=True))]
        means = []
        for tower, device in enumerate(self._place.towers):
            with tf.device(device):
                joined = tf.concat([shard[tower] for shard in reduced], axis=0)
                means.append(tf.reshape(joined, values[tower].shape))
        return means

    def describe(self) -> str:
        """Returns in words what happens."""
        meanings = dict.fromkeys(ALGORITHMS[item.algorithm].meaning for item in self._ranges)
        return f"reduced by {all_reduce_spec.describe(self._ranges)}: {'; '.join(meanings)}"


def _even_parts(elements: int, parts: int) -> list[range]:
    """Divides a range of elements into consecutive parts that differ by one at most."""
    edges = [elements * part // parts for part in range(parts + 1)]
    return [range(begin, end) for begin, end in zip(edges, edges[1:], strict=False)]
