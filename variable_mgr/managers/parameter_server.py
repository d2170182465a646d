"""`parameter_server` in one process: one shared copy of every variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr.manager import Applied, Optimizer, TowerUpdate, VariableSpec
from variable_mgr.managers.one_copy import OneCopy
from variable_mgr.place import Place
from variable_mgr.reductions.kernels import mean


class ParameterServer(OneCopy):
    """Keeps one copy, on one device or spread over several by bytes.

    Every tower computes with the same read of a variable, so the runtime copies it once per device and step. The mean
    gradient is taken and applied where the variable lives.

    Asynchronously, every tower applies its own gradient as soon as it has it, and waits for nobody. An update of one
    variable is never torn (it holds the variable's lock), and none is lost.

    Args:
        place: the towers' devices, and the host, which counts the updates of asynchronous towers.
        variable_devices: where variables may live.
        asynchronous: whether each tower goes its own way.
    """

    def __init__(self, place: Place, variable_devices: Sequence[str], *, asynchronous: bool = False) -> None:
        super().__init__(place, variable_devices, counted_on=place.host if asynchronous else None)
        self._asynchronous = asynchronous
        self._all_read: tf.Operation | None = None

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the variables, and notes when all are read."""
        super().create(specs)
        self._all_read = tf.group(*self._reads.values())

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns the shared read of every shared variable, and the tower's own state."""
        return self._values(tower, self._reads)

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Applies each gradient on the variable's device: the towers' mean once, or each tower's own."""
        if self._asynchronous:
            return [
                self._counted([*self._update(update.gradients, optimizer), *self._store_state(tower, update)])
                for tower, update in enumerate(updates)
            ]
        means = {}
        for name in updates[0].gradients:
            with tf.device(self._shared[name].device):
                means[name] = mean([update.gradients[name] for update in updates])
        operations = self._update(means, optimizer)
        for tower, update in enumerate(updates):
            operations += self._store_state(tower, update)
        return [Applied(tf.group(*operations))]

    def _update(self, gradients: Mapping[str, tf.Tensor], optimizer: Optimizer) -> list[tf.Operation]:
        # Where a gradient does not depend on the variable's own value, its update might come before the step's read.
        with tf.control_dependencies([self._all_read]):
            return optimizer.apply([self._shared[name] for name in gradients], list(gradients.values()))

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        where = self._variable_devices
        spread = f"on {where[0]}" if len(where) == 1 else f"spread by bytes over {', '.join(where)}"
        how = "applied by each tower for itself" if self._asynchronous else "averaged and applied"
        return f"one shared copy {spread}; gradients {how} where the variable lives"
