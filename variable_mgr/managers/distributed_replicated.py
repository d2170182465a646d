"""`distributed_replicated`: a copy per tower, and one master copy of every variable on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import Applied, Optimizer, Placed, Preparation, TowerUpdate, VariableManager, VariableSpec
from variable_mgr.managers.gathering import Gathering
from variable_mgr.managers.one_copy import create_shared
from variable_mgr.place import Place


class DistributedReplicated(VariableManager):
    """Keeps a copy of every variable per tower, and the master copy of each weight on a parameter server.

    For each weight on its own: (1) the mean over a worker's towers goes to the master; (2) when all workers' have come,
    the master is updated; (3) its new value goes out to all copies. So weights of which the gradient is there early
    travel while others are still computed, and the next step finds its weights at hand. What optimizers remember is
    beside the master. Moving averages are each tower's own.

    Args:
        place: this worker's towers, and the parameter servers.
        gathering: brings the workers' gradients together.
    """

    def __init__(self, place: Place, gathering: Gathering) -> None:
        self._place = place
        self._gathering = gathering
        self._specs: list[VariableSpec] = []
        self._masters: dict[str, tf.Variable] = {}
        self._copies: list[dict[str, tf.Variable]] = [{} for _ in place.towers]
        self._reads: list[dict[str, tf.Tensor]] = [{} for _ in place.towers]

    @property
    def adds_decay(self) -> bool:
        """Returns True: a master holds what all copies held when the gradients were computed."""
        return True

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the masters, and a copy of every variable on every tower's device."""
        self._specs = list(specs)
        self._masters = create_shared([spec for spec in specs if spec.kind == "weight"], self._place.ps)
        first = self._place.worker * len(self._place.towers)
        for tower, (device, copy) in enumerate(zip(self._place.towers, self._copies, strict=True)):
            for spec in specs:
                if spec.kind == "tower_state":
                    copy[spec.name] = variables.create_tower_state(spec, device=device, tower=first + tower)
                else:
                    copy[spec.name] = variables.create(spec, device=device, prefix=f"tower_{tower}")

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns the tower's own copy."""
        values = variables.read_all(self._specs, self._copies[tower])
        self._reads[tower] = {spec.name: value for spec, value in zip(self._specs, values, strict=True)}
        return values

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[Applied]:
        """Sends the means, updates the masters (the chief), and renews the copies, each weight on its own."""
        names = list(updates[0].gradients)
        means = self._gathering.local_means([[update.gradients[name] for name in names] for update in updates])
        operations = [
            self._gathering.send(name, mean, self._masters[name], after=[])
            for name, mean in zip(names, means, strict=True)
        ]
        if self._gathering.is_chief:
            masters = [self._masters[name] for name in names]
            applied = optimizer.apply(masters, self._gathering.means(names, masters, means, updates[0].decay))
            for name, master, update in zip(names, masters, applied, strict=True):
                operations += self._gathering.publish(name, master, after=[update])
        for name in names:
            operations += self._renew(name, self._gathering.published(name, self._masters[name]))
        for copy, update in zip(self._copies, updates, strict=True):
            operations += variables.assign_all(copy, update.state)
        return [Applied(tf.group(*operations))]

    def _renew(self, name: str, value: tf.Tensor) -> list[tf.Operation]:
        """Gives every copy the master's value, but not before its tower has read the old one."""
        operations = []
        for copy, reads in zip(self._copies, self._reads, strict=True):
            with tf.control_dependencies([reads[name]]):
                operations += variables.assign_all(copy, {name: value})
        return operations

    def preparations(self) -> list[Preparation]:
        """Gives all copies the masters' values, which the chief has initialised."""
        operations = []
        for name, master in self._masters.items():
            with tf.device(master.device):
                value = master.read_value()
            with tf.device(self._place.host):
                fetched = tf.identity(value)
            for copy in self._copies:
                operations += variables.assign_all(copy, {name: fetched})
        return [Preparation(tf.group(*operations))]

    def checkpoint_variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Returns the masters, and tower 0's moving averages."""
        first = self._copies[0]
        return {
            spec.name: [self._masters.get(spec.name, first[spec.name])]
            for spec in self._specs
            if spec.kind != "tower_state"
        }

    def placed(self) -> list[Placed]:
        """Returns the masters and this worker's copies."""
        return [entry for home in [self._masters, *self._copies] for entry in variables.placed(self._specs, home)]

    def replica_drift(self) -> tf.Tensor | None:
        """Compares every copy of this worker with the master."""
        differences = []
        for name, master in self._masters.items():
            with tf.device(self._place.host):
                value = tf.identity(master.read_value())
            for copy, device in zip(self._copies, self._place.towers, strict=True):
                with tf.device(device):
                    differences.append(tf.reduce_max(tf.abs(copy[name] - value)))
        with tf.device(self._place.host):
            return tf.reduce_max(tf.stack(differences)) if differences else None

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        return (
            f"one full copy per tower, masters spread by bytes over {', '.join(self._place.ps)}; each gradient "
            f"averaged over {self._place.workers} workers, applied to the master and copied back on its own"
        )
