"""How the workers of a cluster meet on parameter servers: gradients come together there, and what follows goes out.

Every worker builds the same graph for its own towers, and queues of equal names meet: a worker puts in, another takes
out. Worker 0, the chief, takes what all have put in and updates the variables, once per global step. Gradients are
added in the order of the workers, whichever came first, so equal runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr.place import Place
from variable_mgr.placement import balance_by_bytes

CHIEF = 0


class Gathering:
    """The queues of one graph. The chief makes and takes what it must, the others only their part.

    Args:
        place: this worker's towers, and which worker it is.
        wire_dtype: in which type gradients travel.
    """

    def __init__(self, place: Place, wire_dtype: str = "float32") -> None:
        self._place = place
        self._wire_dtype = wire_dtype

    @property
    def is_chief(self) -> bool:
        """Returns whether this worker updates the variables."""
        return self._place.worker == CHIEF

    def local_means(self, towers: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns the mean over this worker's towers of each tensor: one of each leaves the worker.

        Each is taken on the device of one of the towers, which take turns by bytes, and cast there to what travels.
        """
        homes = balance_by_bytes([tensor.shape.num_elements() for tensor in towers[0]], self._place.towers)
        means = []
        for values, home in zip(zip(*towers, strict=True), homes, strict=True):
            with tf.device(home):
                mean = values[0] if len(values) == 1 else tf.add_n(values) / len(values)
                means.append(tf.cast(mean, self._wire_dtype))
        return means

    def send(self, name: str, gradient: tf.Tensor, variable: tf.Variable, after: Sequence[tf.Tensor]) -> tf.Operation:
        """Sends this worker's gradient to where the variable is, once `after`, which is there too, is done."""
        with tf.device(variable.device), tf.control_dependencies(after):
            return self._queue("gradient", name, self._place.worker, gradient.dtype, variable.shape).enqueue(gradient)

    def means(
        self,
        names: Sequence[str],
        variables: Sequence[tf.Variable],
        sent: Sequence[tf.Tensor],
        decay: Mapping[str, float],
    ) -> list[tf.Tensor]:
        """Takes every worker's gradient of each variable and returns their means with decay; for the chief alone.

        Args:
            names: of the variables, as they were sent.
            variables: each mean is where its variable is.
            sent: what this worker has sent, for the types.
            decay: which part of a variable's value is added to its mean, by name. Until the mean is applied, that is
                the value with which all workers computed.
        """
        means = []
        for name, variable, own in zip(names, variables, sent, strict=True):
            mean = self._mean(name, variable, own.dtype)
            with tf.device(variable.device), tf.control_dependencies([mean]):
                means.append(mean + decay[name] * variable.read_value() if name in decay else mean)
        return means

    def _mean(self, name: str, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
        workers = self._place.workers
        with tf.device(variable.device):
            sent = [
                tf.cast(self._queue("gradient", name, worker, dtype, variable.shape).dequeue(), variable.dtype)
                for worker in range(workers)
            ]
            return sent[0] if workers == 1 else tf.add_n(sent) / workers

    def publish(self, name: str, variable: tf.Variable, after: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Hands the variable as it is after `after` to every worker; for the chief alone."""
        with tf.device(variable.device), tf.control_dependencies(after):
            value = variable.read_value()
            return [
                self._queue("value", name, worker, variable.dtype, variable.shape).enqueue(value)
                for worker in range(self._place.workers)
            ]

    def published(self, name: str, variable: tf.Variable) -> tf.Tensor:
        """Takes what the chief has published for this worker, and brings it here: one transfer, on this host."""
        with tf.device(variable.device):
            value = self._queue("value", name, self._place.worker, variable.dtype, variable.shape).dequeue()
        with tf.device(self._place.host):
            return tf.identity(value)

    def end_together(self, after: Sequence[tf.Operation]) -> tf.Operation:
        """Ends a step: the chief's when `after` is done, which holds all updates; the others' when the chief's has."""
        with tf.device(self._place.ps[0]):
            if not self.is_chief:
                ended = self._queue("ended", "step", self._place.worker, tf.bool, ()).dequeue()
                return tf.group(*after, ended)
            with tf.control_dependencies(after):
                others = (worker for worker in range(self._place.workers) if worker != CHIEF)
                return tf.group(
                    *after, *(self._queue("ended", "step", worker, tf.bool, ()).enqueue(True) for worker in others)
                )

    @staticmethod
    def _queue(
        what: str, name: str, worker: int, dtype: tf.DType, shape: Sequence[int] | tf.TensorShape
    ) -> tf.queue.FIFOQueue:
        # A step puts one in and takes it out; staging's first gradients wait for the step after.
        return tf.queue.FIFOQueue(2, [dtype], shapes=[shape], shared_name=f"{what}/{name}/{worker}")
