"""`parameter_server` in a cluster: one copy of every variable, spread over parameter servers, for many workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.algorithms import Place
from variable_mgr.gathering import Gathering
from variable_mgr.manager import Applied, Optimizer, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.placement import balance_by_bytes


class ClusterParameterServer(VariableManager):
    """Keeps one copy, spread over the parameter servers by bytes. Every worker builds its own part of the whole.

    A worker fetches each variable once per step, whatever the number of its towers, and sends one gradient of each: the
    mean over its towers. Synchronously, the workers' means are averaged and applied once per global step, where the
    variable lives, and no step begins before. Asynchronously, every worker applies its own and waits for nobody; no
    update of a variable is torn or lost. Moving averages follow tower 0 of worker 0.

    Args:
        place: this worker's towers, and the parameter servers.
        gathering: brings the workers' gradients together.
        asynchronous: whether each worker goes its own way.
    """

    def __init__(self, place: Place, gathering: Gathering, *, asynchronous: bool = False) -> None:
        self._place = place
        self._gathering = gathering
        self._asynchronous = asynchronous
        self._specs: list[VariableSpec] = []
        self._shared: dict[str, tf.Variable] = {}
        self._tower_state: list[dict[str, tf.Variable]] = []
        self._reads: dict[str, tf.Tensor] = {}  # on the parameter servers
        self._fetched: dict[str, tf.Tensor] = {}  # the same, here
        self._updates: tf.Variable | None = None
        self._updates_at_read: tf.Tensor | None = None

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the shared variables on the parameter servers, and the towers' own state on the towers."""
        self._specs = list(specs)
        shared = [spec for spec in specs if spec.kind != "tower_state"]
        self._shared = create_shared(shared, self._place.ps)
        self._tower_state = create_tower_state(specs, self._place)
        with tf.control_dependencies(self._count_updates()):
            reads = variables.read_all(shared, self._shared)
        self._reads = {spec.name: read for spec, read in zip(shared, reads, strict=True)}
        with tf.device(self._place.host):  # or each tower would fetch its own over the network
            self._fetched = {name: tf.identity(read) for name, read in self._reads.items()}

    def _count_updates(self) -> list[tf.Tensor]:
        """Creates the count of updates of asynchronous workers; returns what must be read before the weights are."""
        if not self._asynchronous:
            return []
        with tf.device(self._place.ps[0]):
            self._updates = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="updates_since_start")
            self._updates_at_read = self._updates.read_value()
        return [self._updates_at_read]

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns what was fetched of every shared variable, and the tower's own state."""
        own = self._tower_state[tower]
        return [
            variables.read_all([spec], own)[0] if spec.name in own else self._fetched[spec.name] for spec in self._specs
        ]

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Sends the mean over this worker's towers; the chief applies that over all workers, or each its own."""
        names = list(updates[0].gradients)
        means = self._gathering.local_means([[update.gradients[name] for name in names] for update in updates])
        state = [operation for tower, update in enumerate(updates) for operation in self._store_state(tower, update)]
        if self._asynchronous:
            return [self._apply_alone(names, means, state, optimizer)]
        operations = [
            self._gathering.send(name, mean, self._shared[name], after=[self._reads[name]])
            for name, mean in zip(names, means, strict=True)
        ]
        if self._gathering.is_chief:
            shared = [self._shared[name] for name in names]
            operations += optimizer.apply(shared, self._gathering.means(names, shared, means))
        return [Applied(self._gathering.end_together([*operations, *state]))]

    def _apply_alone(
        self,
        names: Sequence[str],
        means: Sequence[tf.Tensor],
        state: Sequence[tf.Operation],
        optimizer: Optimizer,
    ) -> Applied:
        """Applies this worker's own gradients, then counts the update."""
        assert self._updates is not None and self._updates_at_read is not None, "created with the variables"
        shared = [self._shared[name] for name in names]
        received = []
        for variable, mean in zip(shared, means, strict=True):
            with tf.device(variable.device):
                received.append(tf.cast(mean, variable.dtype))
        operations = [*optimizer.apply(shared, received), *state]
        with tf.device(self._updates.device), tf.control_dependencies(operations):
            by_now = self._updates.read_value()
            with tf.control_dependencies([by_now]):
                counted = self._updates.assign_add(1, read_value=False)
            return Applied(tf.group(counted), by_now - self._updates_at_read)

    def _store_state(self, tower: int, update: TowerUpdate) -> list[tf.Operation]:
        """Stores what is the tower's own, and of tower 0 of worker 0 what is shared."""
        own = self._tower_state[tower]
        operations = variables.assign_all(own, {name: update.state[name] for name in own})
        if tower == 0 and self._gathering.is_chief:
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
        """Returns the shared copy and this worker's towers' own state."""
        homes = [self._shared, *self._tower_state]
        return [entry for home in homes for entry in variables.placed(self._specs, home)]

    def replica_drift(self) -> tf.Tensor | None:
        """None: there is one copy."""
        return None

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        how = (
            "each worker's mean applied as it comes"
            if self._asynchronous
            else f"averaged over {self._place.workers} workers and applied once"
        )
        return f"one shared copy spread by bytes over {', '.join(self._place.ps)}; gradients {how} where it lives"


def create_shared(specs: Sequence[VariableSpec], devices: Sequence[str]) -> dict[str, tf.Variable]:
    """Creates one variable per spec, spread over devices by bytes."""
    homes = balance_by_bytes([variables.size_bytes(spec) for spec in specs], devices)
    return {
        spec.name: variables.create(spec, device=home, prefix="shared") for spec, home in zip(specs, homes, strict=True)
    }


def create_tower_state(specs: Sequence[VariableSpec], place: Place) -> list[dict[str, tf.Variable]]:
    """Creates the state that is each tower's own; towers are counted over all workers, so that no two are alike."""
    own = [spec for spec in specs if spec.kind == "tower_state"]
    first = place.worker * len(place.towers)
    return [
        {spec.name: variables.create_tower_state(spec, device=device, tower=first + tower) for spec in own}
        for tower, device in enumerate(place.towers)
    ]
