"""Loss scaling for float16, whose smallest number is 6e-8: by a fixed factor, or the largest that does not overflow.

Source: Micikevicius et al. 2018, "Mixed precision training", arXiv:1710.03740, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from benchmarks.training.computing import LossScaling
from benchmarks.training.optimizers import Gradients, Optimizer, Updates, Variables
from variable_mgr.reductions.kernels import on_each

_SMALLEST, _LARGEST = 2.0**-24, 2.0**32


class LossScale:
    """The loss scale of a run, and an update rule that skips steps whose gradients overflowed.

    A scale that changes is one variable of a process, or of all workers that share a parameter server. Overflow is
    checked on the combined gradients: an overflow in one tower is in the sum, so every copy decides alike.

    Attributes:
        changes: whether the factor follows the gradients; only then are steps skipped.
        overflowed: whether gradients of this step overflowed, so that it updates nothing, a scalar; None if the factor
            is fixed, or if another worker checks it.
    """

    def __init__(self, scaling: LossScaling, device: str, optimizer: Optimizer) -> None:
        self._scaling, self._device, self._optimizer = scaling, device, optimizer
        self.changes = bool(scaling.increase_every)
        self.overflowed: tf.Tensor | None = None
        self._value: tf.Tensor | None = None
        if self.changes:
            with tf.device(device):
                self._variable = tf.Variable(scaling.initial, trainable=False, name="loss_scale")
                self._good_steps = tf.Variable(0, trainable=False, name="loss_scale_good_steps")

    def factor(self) -> tf.Tensor:
        """Returns the factor of this step, a float32 scalar."""
        if not self.changes:
            return tf.constant(self._scaling.initial)
        if self._value is None:
            with tf.device(self._device):
                self._value = self._variable.read_value()
        return self._value

    def apply(self, variables: Variables, gradients: Gradients) -> Updates:
        """Returns one update per variable; if the factor changes, each ends when all are applied or all skipped."""
        if not self.changes:
            return self._optimizer.apply(variables, gradients)
        if not variables:
            return []
        finite = all_finite(gradients)

        def update() -> tf.Tensor:
            with tf.control_dependencies(self._optimizer.apply(variables, gradients)):
                return tf.constant(True)

        updated = [tf.cond(finite, update, lambda: tf.constant(False)).op]
        if self.overflowed is None:  # all copies get equal gradients, so the first decides for all
            self.overflowed = ~finite
            updated.append(self._follow(finite))
        return [tf.group(*updated)] * len(variables)

    def slots_of(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """Returns what the update rule keeps for one variable, by the name of the slot."""
        return self._optimizer.slots_of(variable)

    def shared_state(self) -> dict[str, list[tf.Variable]]:
        """Returns what the update rule keeps besides, and the factor if it changes, by name; see `Optimizer`."""
        own = [self._variable, self._good_steps] if self.changes else []
        return self._optimizer.shared_state() | {variable.op.name: [variable] for variable in own}

    def _follow(self, finite: tf.Tensor) -> tf.Operation:
        """Doubles the factor after enough steps with finite gradients; halves it after a step without."""
        with tf.device(self._device):
            scale, good = self.factor(), self._good_steps.read_value() + 1
            enough = good >= self._scaling.increase_every
            grown = tf.where(enough, tf.minimum(2.0 * scale, _LARGEST), scale)
            new_scale = tf.where(finite, grown, tf.maximum(0.5 * scale, _SMALLEST))
            new_good = tf.where(finite & ~enough, good, 0)
            return tf.group(
                self._variable.assign(new_scale, read_value=False), self._good_steps.assign(new_good, read_value=False)
            )


def all_finite(tensors: Iterable[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """Returns whether all numbers are finite, a scalar on the first tensor's device; integers are.

    Each tensor is checked on its own device, and each device sends one value.
    """
    of_devices: dict[str, list[tf.Tensor]] = {}
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            continue
        with tf.device(tensor.device):
            of_devices.setdefault(tensor.device, []).append(tf.reduce_all(tf.math.is_finite(tensor)))
    are_finite = on_each(of_devices, lambda checked: tf.reduce_all(tf.stack(checked)), of_devices.values())
    with tf.device(are_finite[0].device):
        return tf.reduce_all(tf.stack(are_finite))
