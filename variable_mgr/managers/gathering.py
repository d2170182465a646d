"""Queues on parameter servers through which workers exchange gradients and new values.

Every worker builds the same graph for its own towers, and queues of equal names are shared. Worker 0, the chief,
dequeues the gradients of all workers and updates the variables, once per global step. Gradients are added in the order
of the workers, not of their arrival, so equal runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr.manager import TowerUpdate
from variable_mgr.place import Place, balance_by_bytes
from variable_mgr.reductions.kernels import mean, on_each


def local_means(updates: Sequence[TowerUpdate], devices: Sequence[str], wire_dtype: str) -> dict[str, tf.Tensor]:
    """Returns by name the mean over a worker's towers of each gradient, in the type that travels.

    Each is computed on the device of one of the towers, chosen to balance bytes.
    """
    gradients = {name: [update.gradients[name] for update in updates] for name in updates[0].gradients}
    homes = balance_by_bytes([of_first.shape.num_elements() for of_first, *_ in gradients.values()], devices)
    means = on_each(homes, lambda values: tf.cast(mean(values), wire_dtype), gradients.values())
    return dict(zip(gradients, means, strict=True))


class Gathering:
    """The queues of one graph."""

    def __init__(self, place: Place, wire_dtype: str) -> None:
        self._place = place
        self._wire_dtype = wire_dtype

    @property
    def is_chief(self) -> bool:
        """Returns whether this worker updates the variables."""
        return self._place.worker == 0

    def send(self, name: str, gradient: tf.Tensor, variable: tf.Variable, after: Sequence[tf.Tensor]) -> tf.Operation:
        """Sends this worker's gradient to the variable's device after `after`, tensors on the same device."""
        with tf.device(variable.device), tf.control_dependencies(after):
            return self._queue("gradient", name, self._place.worker, gradient.dtype, gradient.shape).enqueue(gradient)

    def means(self, variables: Mapping[str, tf.Variable], decay: Mapping[str, float]) -> list[tf.Tensor]:
        """Returns the mean of all workers' gradients of each variable, on its device, plus decay; only for the chief.

        They are by the names that were sent. A variable still has the value with which all workers computed, so
        `decay`, its factor by name, is exact.
        """
        means = []
        for name, variable in variables.items():
            with tf.device(variable.device):
                queues = [
                    self._queue("gradient", name, worker, tf.as_dtype(self._wire_dtype), variable.shape)
                    for worker in range(self._place.workers)
                ]
                average = mean([tf.cast(queue.dequeue(), variable.dtype) for queue in queues])
                with tf.control_dependencies([average]):
                    means.append(average + decay[name] * variable.read_value() if name in decay else average)
        return means

    def publish(self, name: str, variable: tf.Variable, after: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Sends the variable's value after `after` to every worker; only for the chief."""
        with tf.device(variable.device), tf.control_dependencies(after):
            value = variable.read_value()
            return [
                self._queue("value", name, worker, value.dtype, value.shape).enqueue(value)
                for worker in range(self._place.workers)
            ]

    def published(self, name: str, variable: tf.Variable) -> tf.Tensor:
        """Returns the value that the chief has published, transferred once to this worker's host."""
        with tf.device(variable.device):
            value = self._queue("value", name, self._place.worker, variable.dtype, variable.shape).dequeue()
        with tf.device(self._place.host):
            return tf.identity(value)

    def end_together(self, after: Sequence[tf.Operation]) -> tf.Operation:
        """Returns the end of a step: the chief's follows `after`, its updates; the others' also follow the chief's."""
        with tf.device(self._place.ps[0]):
            if not self.is_chief:
                ended = self._queue("ended", "step", self._place.worker, tf.bool, ()).dequeue()
                return tf.group(*after, ended)
            with tf.control_dependencies(after):
                others = [self._queue("ended", "step", worker, tf.bool, ()) for worker in range(1, self._place.workers)]
                return tf.group(*after, *(queue.enqueue(True) for queue in others))

    @staticmethod
    def _queue(
        what: str, name: str, worker: int, dtype: tf.DType, shape: Sequence[int] | tf.TensorShape
    ) -> tf.queue.FIFOQueue:
        # A step enqueues one and dequeues it; staging's first gradients wait for the next step.
        return tf.queue.FIFOQueue(2, [dtype], shapes=[shape], shared_name=f"{what}/{name}/{worker}")
