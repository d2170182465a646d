"""`replicated`, `independent` and their relatives: one full copy of every variable per tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import Applied, Optimizer, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.managers.local_sgd import ParameterAveraging
from variable_mgr.place import Place
from variable_mgr.reductions.all_reduce import Reduction
from variable_mgr.reductions.kernels import collective_sum

# Keys of the collectives that send worker 0's values to all, far from those of gradients.
_INITIAL_KEYS, _FINAL_KEYS = 1_000_000, 2_000_000


class Replicated(VariableManager):
    """Keeps a copy per tower. All start equal; the reduction decides whether they stay so.

    Where several workers each build this for their own towers, all start with what tower 0 of worker 0 has.

    Args:
        place: the towers.
        reduction: combines the towers' gradients (`NoExchange` makes this the `independent` manager).
        averaging: averages the weights themselves now and then (with `NoExchange`, the `local_sgd` manager).
    """

    def __init__(self, place: Place, reduction: Reduction, averaging: ParameterAveraging | None = None) -> None:
        self._place = place
        self._devices = list(place.towers)
        self._reduction = reduction
        self._averaging = averaging
        self._specs: list[VariableSpec] = []
        self._copies: list[dict[str, tf.Variable]] = [{} for _ in self._devices]
        self._all_read: list[tf.Operation] = []

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates a copy of every variable on every tower's device."""
        self._specs = list(specs)
        first = self._copies[0]
        earlier = self._place.worker * len(self._devices)
        for tower, (device, copy) in enumerate(zip(self._devices, self._copies, strict=True)):
            for spec in specs:
                if spec.kind == "tower_state":
                    copy[spec.name] = variables.create_tower_state(spec, device=device, tower=earlier + tower)
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
        """Gives all workers' copies the values of worker 0; within a worker, one tensor has initialised them."""
        if self._place.workers == 1:
            return []
        shared = [spec.name for spec in self._specs if spec.kind != "tower_state"]
        operations = []
        for copy, values in zip(self._copies, self._of_worker_0(shared, _INITIAL_KEYS), strict=True):
            operations += variables.assign_all(copy, dict(zip(shared, values, strict=True)))
        return [Preparation(tf.group(*operations))]

    def _of_worker_0(self, names: Sequence[str], first_key: int) -> list[list[tf.Tensor]]:
        """Returns to each tower the variables of tower 0 of worker 0: a sum to which all others give zeros."""
        values: list[list[tf.Tensor]] = [[] for _ in self._devices]
        for tower, (device, copy) in enumerate(zip(self._devices, self._copies, strict=True)):
            for key, name in enumerate(names, start=first_key):
                with tf.device(device):
                    own = copy[name].read_value()
                    given = own if tower == self._place.worker == 0 else tf.zeros_like(own)
                    values[tower].append(collective_sum(given, self._place, key))
        return values

    def checkpoint_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns tower 0's copy."""
        return {spec.name: [self._copies[0][spec.name]] for spec in self._specs if spec.kind != "tower_state"}

    def placed(self) -> list[Placed]:
        """Returns all copies."""
        return [entry for copy in self._copies for entry in variables.placed(self._specs, copy)]

    def replica_drift(self) -> tf.Tensor | None:
        """Compares every tower's weights with those of tower 0 of worker 0."""
        weights = [spec.name for spec in self._specs if spec.kind == "weight"]
        if not self._reduction.makes_equal or self._place.towers_in_total == 1 or not weights:
            return None
        if self._place.workers > 1:
            wanted = self._of_worker_0(weights, _FINAL_KEYS)
        else:
            wanted = [[self._copies[0][name] for name in weights]] * len(self._devices)
        differences = []
        for copy, device, first in zip(self._copies, self._devices, wanted, strict=True):
            with tf.device(device):
                differences += [
                    tf.reduce_max(tf.abs(copy[name] - value)) for name, value in zip(weights, first, strict=True)
                ]
        with tf.device(self._devices[0]):
            return tf.reduce_max(tf.stack(differences))

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        averaging = f"; {self._averaging.describe()}" if self._averaging else ""
        return f"one full copy per tower; gradients {self._reduction.describe()}{averaging}"
