"""`parameter_server` in one process: one shared copy of every variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.algorithms import Place
from variable_mgr.manager import Applied, Optimizer, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.placement import balance_by_bytes
from variable_mgr.reducing import mean


class ParameterServer(VariableManager):
    """Keeps one copy, on one device or spread over several by bytes.

    Every tower computes with the same read of a variable, so the runtime copies it once per device and step. The mean
    gradient is taken and applied where the variable lives. Moving averages follow tower 0.

    Asynchronously, every tower applies its own gradient as soon as it has it, and waits for nobody. An update of one
    variable is never torn (it holds the variable's lock), and none is lost.

    Args:
        place: the towers' devices, and the host, which counts the updates of asynchronous towers.
        variable_devices: where variables may live.
        asynchronous: whether each tower goes its own way.
    """

    def __init__(self, place: Place, variable_devices: Sequence[str], *, asynchronous: bool = False) -> None:
        self._tower_devices = list(place.towers)
        self._host = place.host
        self._variable_devices = list(variable_devices)
        self._asynchronous = asynchronous
        self._specs: list[VariableSpec] = []
        self._shared: dict[str, tf.Variable] = {}
        self._tower_state: list[dict[str, tf.Variable]] = []
        self._shared_reads: dict[str, tf.Tensor] = {}
        self._all_read: tf.Operation | None = None
        self._updates: tf.Variable | None = None
        self._updates_at_read: tf.Tensor | None = None

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates every shared variable once, and the towers' own state on the towers."""
        self._specs = list(specs)
        shared = [spec for spec in specs if spec.kind != "tower_state"]
        own = [spec for spec in specs if spec.kind == "tower_state"]
        homes = balance_by_bytes([variables.size_bytes(spec) for spec in shared], self._variable_devices)
        self._shared = {
            spec.name: variables.create(spec, device=home, prefix="shared")
            for spec, home in zip(shared, homes, strict=True)
        }
        self._tower_state = [
            {spec.name: variables.create_tower_state(spec, device=device, tower=tower) for spec in own}
            for tower, device in enumerate(self._tower_devices)
        ]
        with tf.control_dependencies(self._count_updates()):
            reads = variables.read_all(shared, self._shared)
        self._shared_reads = {spec.name: read for spec, read in zip(shared, reads, strict=True)}
        self._all_read = tf.group(*reads)

    def _count_updates(self) -> list[tf.Tensor]:
        """Creates the count of updates of asynchronous towers; returns what must be read before the weights are."""
        if not self._asynchronous:
            return []
        with tf.device(self._host):
            self._updates = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="updates_since_start")
            self._updates_at_read = self._updates.read_value()
        return [self._updates_at_read]

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns the shared read of every shared variable, and the tower's own state."""
        own = self._tower_state[tower]
        return [
            variables.read_all([spec], own)[0] if spec.name in own else self._shared_reads[spec.name]
            for spec in self._specs
        ]

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Applies each gradient on the variable's device: the towers' mean once, or each tower's own."""
        if self._asynchronous:
            return [self._apply_alone(tower, update, optimizer) for tower, update in enumerate(updates)]
        means = {}
        for name in updates[0].gradients:
            with tf.device(self._shared[name].device):
                means[name] = mean([update.gradients[name] for update in updates])
        operations = self._update(means, optimizer)
        for tower, update in enumerate(updates):
            operations += self._store_state(tower, update)
        return [Applied(tf.group(*operations))]

    def _apply_alone(self, tower: int, update: TowerUpdate, optimizer: Optimizer) -> Applied:
        """Applies one tower's own gradient, then counts the update."""
        assert self._updates is not None and self._updates_at_read is not None, "created with the variables"
        operations = [*self._update(update.gradients, optimizer), *self._store_state(tower, update)]
        with tf.device(self._host), tf.control_dependencies(operations):
            by_now = self._updates.read_value()
            with tf.control_dependencies([by_now]):
                counted = self._updates.assign_add(1, read_value=False)
            return Applied(tf.group(counted), by_now - self._updates_at_read)

    def _update(self, gradients: Mapping[str, tf.Tensor], optimizer: Optimizer) -> list[tf.Operation]:
        # Where a gradient does not depend on the variable's own value, its update might come before the step's read.
        with tf.control_dependencies([self._all_read]):
            return optimizer.apply([self._shared[name] for name in gradients], list(gradients.values()))

    def _store_state(self, tower: int, update: TowerUpdate) -> list[tf.Operation]:
        """Stores what is the tower's own, and of tower 0 what is shared."""
        own = self._tower_state[tower]
        operations = variables.assign_all(own, {name: update.state[name] for name in own})
        if tower == 0:
            shared = {name: value for name, value in update.state.items() if name in self._shared}
            operations += variables.assign_all(self._shared, shared)
        return operations

    def preparations(self) -> list[Preparation]:
        """Nothing: there is one copy."""
        return []

    def checkpoint_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns the shared copy."""
        return {name: [variable] for name, variable in self._shared.items()}

    def placed(self) -> list[Placed]:
        """Returns the shared copy and the towers' own state."""
        homes = [self._shared, *self._tower_state]
        return [entry for home in homes for entry in variables.placed(self._specs, home)]

    def replica_drift(self) -> tf.Tensor | None:
        """None: there is one copy."""
        return None

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        where = self._variable_devices
        spread = f"on {where[0]}" if len(where) == 1 else f"spread by bytes over {', '.join(where)}"
        how = "applied by each tower for itself" if self._asynchronous else "averaged and applied"
        return f"one shared copy {spread}; gradients {how} where the variable lives"
