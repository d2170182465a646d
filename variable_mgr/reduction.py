"""How the gradients of all towers become one mean: reductions are values that are given to a manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf


class Reduction(Protocol):
    """Maps n lists of tensors, one list per tower, to n lists of means."""

    @property
    def makes_equal(self) -> bool:
        """Whether all towers receive the same values, so that equal copies stay equal."""

    def mean(self, towers: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Returns for each tower the mean over all towers of each tensor; for one tower the tensors themselves."""

    def describe(self) -> str:
        """Returns in words what happens, to follow 'gradients'."""


class NoExchange:
    """Every tower keeps its own gradients."""

    makes_equal = False

    def mean(self, towers: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Returns what came."""
        return [list(tensors) for tensors in towers]

    def describe(self) -> str:
        """Returns in words what happens."""
        return "not exchanged"


class CopyReduction:
    """Copies each tensor's n values to one device, takes the mean there, and copies it back to every tower.

    Args:
        devices: the tensors take turns on these: the host alone (`pscpu`) or all towers' devices (`psgpu`).
    """

    makes_equal = True

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = list(devices)

    def mean(self, towers: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """Returns the same means to every tower; the runtime copies them where they are used."""
        means = []
        for index, values in enumerate(zip(*towers, strict=True)):
            with tf.device(self._devices[index % len(self._devices)]):
                means.append(mean(values))
        return [means] * len(towers)

    def describe(self) -> str:
        """Returns in words what happens."""
        where = self._devices[0] if len(self._devices) == 1 else f"in turn on {', '.join(self._devices)}"
        return f"copied and averaged on {where}"


def mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the mean of tensors of one shape, on the current device; of one tensor, that tensor at no cost."""
    if len(values) == 1:
        return values[0]
    return tf.add_n(values) / len(values)
