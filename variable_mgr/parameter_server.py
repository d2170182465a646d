"""`parameter_server` in one process: one shared copy of every variable."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import Optimizer, Placed, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.placement import balance_by_bytes
from variable_mgr.reducing import mean


class ParameterServer(VariableManager):
    """Keeps one copy, on one device or spread over several by bytes.

    Every tower computes with the same read of a variable, so the runtime copies it once per device and step. The mean
    gradient is taken and applied where the variable lives. Moving averages follow tower 0.

    Args:
        tower_devices: one device per tower.
        variable_devices: where variables may live.
    """

    def __init__(self, tower_devices: Sequence[str], variable_devices: Sequence[str]) -> None:
        self._tower_devices = list(tower_devices)
        self._variable_devices = list(variable_devices)
        self._specs: list[VariableSpec] = []
        self._shared: dict[str, tf.Variable] = {}
        self._tower_state: list[dict[str, tf.Variable]] = []
        self._shared_reads: dict[str, tf.Tensor] = {}

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
        reads = variables.read_all(shared, self._shared)
        self._shared_reads = {spec.name: read for spec, read in zip(shared, reads, strict=True)}

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns the shared read of every shared variable, and the tower's own state."""
        own = self._tower_state[tower]
        return [
            variables.read_all([spec], own)[0] if spec.name in own else self._shared_reads[spec.name]
            for spec in self._specs
        ]

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> tf.Operation:
        """Takes the mean of each gradient on the variable's device and applies it there, once."""
        means = {}
        for name in updates[0].gradients:
            with tf.device(self._shared[name].device):
                means[name] = mean([update.gradients[name] for update in updates])
        operations = optimizer.apply([self._shared[name] for name in means], list(means.values()))
        statistics = {name: value for name, value in updates[0].state.items() if name in self._shared}
        operations += variables.assign_all(self._shared, statistics)
        for own, update in zip(self._tower_state, updates, strict=True):
            operations += variables.assign_all(own, {name: update.state[name] for name in own})
        return tf.group(*operations)

    def after_initialization(self) -> list[tf.Operation]:
        """Nothing: there is one copy."""
        return []

    def checkpoint_variables(self) -> dict[str, tf.Variable]:
        """Returns the shared copy."""
        return dict(self._shared)

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
        return f"one shared copy {spread}; gradients averaged and applied where the variable lives"
