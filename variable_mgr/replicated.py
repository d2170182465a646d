"""`replicated`, `independent` and their relatives: one full copy of every variable per tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.local_sgd import ParameterAveraging
from variable_mgr.manager import Applied, Optimizer, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.reduction import Reduction


class Replicated(VariableManager):
    """Keeps a copy per tower. All start equal; the reduction decides whether they stay so.

    Args:
        tower_devices: one device per tower.
        reduction: combines the towers' gradients (`NoExchange` makes this the `independent` manager).
        averaging: averages the weights themselves now and then (with `NoExchange`, the `local_sgd` manager).
    """

    def __init__(
        self, tower_devices: Sequence[str], reduction: Reduction, averaging: ParameterAveraging | None = None
    ) -> None:
        self._devices = list(tower_devices)
        self._reduction = reduction
        self._averaging = averaging
        self._specs: list[VariableSpec] = []
        self._copies: list[dict[str, tf.Variable]] = [{} for _ in self._devices]
        self._all_read: list[tf.Operation] = []

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates a copy of every variable on every tower's device."""
        self._specs = list(specs)
        first = self._copies[0]
        for tower, (device, copy) in enumerate(zip(self._devices, self._copies, strict=True)):
            for spec in specs:
                if spec.kind == "tower_state":
                    copy[spec.name] = variables.create_tower_state(spec, device=device, tower=tower)
                else:
                    # One tensor initialises all copies: the random numbers are drawn once.
                    same = first[spec.name].initial_value if tower else None
                    copy[spec.name] = variables.create(spec, device=device, prefix=f"tower_{tower}", initial_value=same)

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns the tower's own copy."""
        values = variables.read_all(self._specs, self._copies[tower])
        with tf.device(self._devices[tower]):
            self._all_read.append(tf.group(*values))
        return values

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Applies to every copy what the reduction hands to its tower."""
        names = list(updates[0].gradients)
        gradients = [[update.gradients[name] for name in names] for update in updates]
        # All weights may be in a wrapper's hands, and then there is nothing to reduce.
        reduced, operations = self._reduction.mean(gradients) if names else (gradients, [])
        towers = zip(self._copies, self._all_read, reduced, updates, strict=True)
        for copy, all_read, means, update in towers:
            # A deferred gradient does not wait for this step's computing, but its update must wait for its reads.
            with tf.control_dependencies([all_read]):
                operations += optimizer.apply([copy[name] for name in names], means)
            operations += variables.assign_all(copy, update.state)
        if self._averaging:
            weights = [[copy[name] for name in names] for copy in self._copies]
            return [Applied(self._averaging.after(operations, weights))]
        return [Applied(tf.group(*operations))]

    def preparations(self) -> list[Preparation]:
        """Nothing: the copies are initialised from one tensor."""
        return []

    def checkpoint_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns tower 0's copy."""
        return {spec.name: [self._copies[0][spec.name]] for spec in self._specs if spec.kind != "tower_state"}

    def placed(self) -> list[Placed]:
        """Returns all copies."""
        return [entry for copy in self._copies for entry in variables.placed(self._specs, copy)]

    def replica_drift(self) -> tf.Tensor | None:
        """Compares every tower's weights with tower 0's."""
        weights = [spec.name for spec in self._specs if spec.kind == "weight"]
        if not self._reduction.makes_equal or len(self._devices) == 1 or not weights:
            return None
        first, *others = self._copies
        differences = []
        for copy, device in zip(others, self._devices[1:], strict=True):
            with tf.device(device):
                differences += [tf.reduce_max(tf.abs(copy[name] - first[name])) for name in weights]
        with tf.device(self._devices[0]):
            return tf.reduce_max(tf.stack(differences))

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        averaging = f"; {self._averaging.describe()}" if self._averaging else ""
        return f"one full copy per tower; gradients {self._reduction.describe()}{averaging}"
