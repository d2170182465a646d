"""`local_sgd`: every tower trains alone for some steps, then the parameters, not the gradients, are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from variable_mgr.managers.replicated import Replicated
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.all_reduce import AllReduce, Reduction
from variable_mgr.reductions.kernels import on_each
from variable_mgr.transfers import Transfer, summed


def local_sgd(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> Replicated:
    """Makes copies whose weights are averaged as the spec of the modifiers says."""
    assert modifiers.all_reduce_spec is not None, "the factory gives the default"
    mean = AllReduce(all_reduce_spec.parse(modifiers.all_reduce_spec), place)
    return Replicated(place, None, ParameterAveraging(mean, place, modifiers.local_sgd_steps or 1))


class ParameterAveraging:
    """Sets all copies of every weight to their mean after every K-th step.

    With K = 1 and plain SGD this is the same arithmetic as averaging gradients. Source: Stich 2018, "Local SGD
    converges fast and communicates little", arXiv:1805.09767.
    """

    def __init__(self, reduction: Reduction, place: Place, every_steps: int) -> None:
        self._reduction = reduction
        self._place = place
        self.every_steps = every_steps

    def after(self, updates: Sequence[tf.Operation], copies: Sequence[Sequence[tf.Variable]]) -> tf.Operation:
        """Returns the operation that ends a step.

        The step's own `updates` come first; `copies` are every tower's weights, in the same order.
        """
        with tf.device(self._place.host):
            steps = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="steps_since_start")
            with tf.control_dependencies(updates):
                now = steps.assign_add(1, read_value=True)
                is_due = tf.equal(now % self.every_steps, 0)
                return tf.cond(is_due, lambda: self._average(copies), tf.no_op)

    def _average(self, copies: Sequence[Sequence[tf.Variable]]) -> tf.Operation:
        values = on_each(self._place.towers, lambda own: [variable.read_value() for variable in own], copies)
        means, operations = self._reduction.mean(values)
        for variables, averaged, device in zip(copies, means, self._place.towers, strict=True):
            with tf.device(device):
                for variable, value in zip(variables, averaged, strict=True):
                    operations.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value))
        return tf.group(*operations)

    def transfers(self, elements: Sequence[int]) -> list[Transfer]:
        """Returns what averaging weights of so many elements sends per step, on average."""
        sent, every = self._reduction.transfers(elements), self.every_steps
        # Divided once summed: parts that are rounded by themselves would add up to another number.
        sums = summed(((transfer.source, transfer.target), transfer.number, transfer.size_bytes) for transfer in sent)
        return [Transfer(*link, size / every, number / every, "weight") for link, (number, size) in sums.items()]

    def describe(self) -> str:
        """Returns in words what happens."""
        every = "every step" if self.every_steps == 1 else f"every {self.every_steps} steps"
        return f"the weights are averaged after {every}, {self._reduction.describe()}"
