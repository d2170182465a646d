"""What all forms of `parameter_server` have in common: there is one copy of every variable, and towers read that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import Applied, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.place import Place
from variable_mgr.placement import balance_by_bytes


class OneCopy(VariableManager):
    """Keeps one copy of every shared variable, spread over devices by bytes, and on each tower what is its own.

    Moving averages follow tower 0 (of worker 0). What reads the copy, and what updates it, is left to who extends this.

    Args:
        place: the towers' devices.
        variable_devices: where variables may live.
        counted_on: where updates are counted whose towers go their own way; None if they step together.
    """

    def __init__(self, place: Place, variable_devices: Sequence[str], *, counted_on: str | None) -> None:
        self._place = place
        self._variable_devices = list(variable_devices)
        self._counted_on = counted_on
        self._specs: list[VariableSpec] = []
        self._shared: dict[str, tf.Variable] = {}
        self._tower_state: list[dict[str, tf.Variable]] = []
        self._reads: dict[str, tf.Tensor] = {}
        self._updates: tf.Variable | None = None
        self._updates_at_read: tf.Tensor | None = None

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates and reads every shared variable once, and creates the towers' own state on the towers."""
        self._specs = list(specs)
        shared = [spec for spec in specs if spec.kind != "tower_state"]
        own = [spec for spec in specs if spec.kind == "tower_state"]
        self._shared = create_shared(shared, self._variable_devices)
        first = self._place.worker * len(self._place.towers)
        self._tower_state = [
            {spec.name: variables.create_tower_state(spec, device=device, tower=first + tower) for spec in own}
            for tower, device in enumerate(self._place.towers)
        ]
        with tf.control_dependencies(self._count_updates()):
            reads = variables.read_all(shared, self._shared)
        self._reads = {spec.name: read for spec, read in zip(shared, reads, strict=True)}

    def _count_updates(self) -> list[tf.Tensor]:
        """Creates the count of updates; returns what must be read before the weights are."""
        if self._counted_on is None:
            return []
        with tf.device(self._counted_on):
            self._updates = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="updates_since_start")
            self._updates_at_read = self._updates.read_value()
        return [self._updates_at_read]

    def _counted(self, operations: Sequence[tf.Operation]) -> Applied:
        """Counts an update of towers that go their own way, once it is done."""
        assert self._updates is not None and self._updates_at_read is not None, "created with the variables"
        with tf.device(self._counted_on), tf.control_dependencies(operations):
            by_now = self._updates.read_value()
            with tf.control_dependencies([by_now]):
                counted = self._updates.assign_add(1, read_value=False)
            return Applied(tf.group(counted), by_now - self._updates_at_read)

    def _values(self, tower: int, shared: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Returns a tower's values of all variables: of `shared`, and of its own state."""
        own = self._tower_state[tower]
        return [variables.read_all([spec], own)[0] if spec.name in own else shared[spec.name] for spec in self._specs]

    def _store_state(self, tower: int, update: TowerUpdate) -> list[tf.Operation]:
        """Stores what is the tower's own, and of tower 0 of worker 0 what is shared."""
        own = self._tower_state[tower]
        operations = variables.assign_all(own, {name: update.state[name] for name in own})
        if tower == self._place.worker == 0:
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
        """Returns the shared copy and the own state of this process' towers."""
        homes = [self._shared, *self._tower_state]
        return [entry for home in homes for entry in variables.placed(self._specs, home)]

    def replica_drift(self) -> tf.Tensor | None:
        """None: there is one copy."""
        return None


def create_shared(specs: Sequence[VariableSpec], devices: Sequence[str]) -> dict[str, tf.Variable]:
    """Creates one variable per spec, spread over devices by bytes."""
    homes = balance_by_bytes([variables.size_bytes(spec) for spec in specs], devices)
    return {
        spec.name: variables.create(spec, device=home, prefix="shared") for spec, home in zip(specs, homes, strict=True)
    }
