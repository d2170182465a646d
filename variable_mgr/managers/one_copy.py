"""The base of all forms of `parameter_server`: one copy of every variable, which all towers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import TowerUpdate, UpdateOp, VariableManager, VariableSpec
from variable_mgr.place import Place


class OneCopy(VariableManager):
    """Abstract. Keeps one copy of every shared variable, spread over devices by bytes, and each tower's own state.

    Moving averages follow tower 0 (of worker 0). A worker fetches a variable from a parameter server once per step,
    whatever the number of its towers; in one process the runtime copies each read once per device. If towers (or
    workers) are asynchronous, each applies its own updates, which are counted.
    """

    def __init__(self, place: Place, variable_devices: Sequence[str], *, asynchronous: bool) -> None:
        self._place = place
        self._variable_devices = list(variable_devices)
        self._asynchronous = asynchronous
        self._counted_on = place.ps[0] if place.ps else place.host
        self._shared: dict[str, tf.Variable] = {}
        self._tower_state: list[dict[str, tf.Variable]] = []
        self._reads: dict[str, tf.Tensor] = {}  # on the variables' devices
        self._fetched: dict[str, dict[str, tf.Tensor]] = {}  # what towers read, by the host of their worker
        self._updates: tf.Variable | None = None
        self._updates_at_read: tf.Tensor | None = None

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates and reads every shared variable once, and creates the towers' own state on the towers."""
        self._specs = list(specs)
        shared = [spec for spec in specs if spec.kind != "tower_state"]
        self._shared = variables.create_shared(shared, self._variable_devices)
        self._tower_state = [
            {s.name: variables.create_tower_state(s, self._place, tower) for s in specs if s.kind == "tower_state"}
            for tower in range(len(self._place.towers))
        ]
        count_first: list[tf.Tensor] = []
        if self._asynchronous:
            with tf.device(self._counted_on):
                self._updates = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="updates_since_start")
                self._updates_at_read = self._updates.read_value()
            count_first = [self._updates_at_read]
        reads = variables.read_all(shared, self._shared, after=count_first)
        self._reads = {spec.name: read for spec, read in zip(shared, reads, strict=True)}
        self._fetched = dict.fromkeys(map(self._place.host_of, range(len(self._place.towers))), self._reads)
        # From a parameter server, each tower would otherwise fetch its own over the network.
        for host in self._fetched if self._place.ps else ():
            with tf.device(host):
                self._fetched[host] = {name: tf.identity(read) for name, read in self._reads.items()}

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns what was read of every shared variable, and the tower's own state."""
        own, fetched = self._tower_state[tower], self._fetched[self._place.host_of(tower)]
        return [variables.read_all([spec], own)[0] if spec.name in own else fetched[spec.name] for spec in self._specs]

    def _counted(self, operations: Sequence[tf.Operation]) -> UpdateOp:
        assert self._updates is not None and self._updates_at_read is not None, "created with the variables"
        with tf.device(self._counted_on), tf.control_dependencies(operations):
            by_now = self._updates.read_value()
            with tf.control_dependencies([by_now]):
                counted = self._updates.assign_add(1, read_value=False)
            return UpdateOp(tf.group(counted), by_now - self._updates_at_read)

    def _store_state(self, tower: int, update: TowerUpdate) -> list[tf.Operation]:
        """Stores the tower's own state; tower 0 of worker 0 also stores shared state."""
        own = self._tower_state[tower]
        operations = variables.assign_all(own, {name: update.state[name] for name in own})
        if tower == self._place.worker == 0:
            shared = {name: value for name, value in update.state.items() if name in self._shared}
            operations += variables.assign_all(self._shared, shared)
        return operations

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the shared copy, and the own state of this process' towers."""
        return [self._shared, *self._tower_state]
