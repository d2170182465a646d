"""`distributed_replicated`: a copy per tower, and one master copy of every variable on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import (
    Explanation,
    InitOp,
    Optimizer,
    TowerUpdate,
    UpdateOp,
    VariableManager,
    VariableSpec,
)
from variable_mgr.managers.gathering import Gathering, local_means
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.transfers import Transfer, over_servers

_DIAGRAM = """\
    worker 0: tower 0, 1 ...      worker 1: tower 0, 1 ...       one copy of the weights per tower
       ^            |                ^            |
    new value  mean gradient      new value  mean gradient       each weight on its own, as soon as it is ready
       |            v                |            v
    [parameter servers: master weights, one update of each when all workers' gradients have arrived]"""


class DistributedReplicated(VariableManager):
    """Keeps a copy of every variable per tower, and the master copy of each weight on a parameter server.

    For each weight on its own: (1) the mean over a worker's towers goes to the master; (2) when those of all workers
    have arrived, the master is updated; (3) its new value goes to all copies. So weights whose gradient is ready early
    travel while others are still computed. Slots of optimizers are beside the master. Moving averages are each tower's
    own.
    """

    adds_decay = True  # a master holds what all copies held when the gradients were computed

    def __init__(self, place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> None:
        self._place, self._wire_dtype = place, modifiers.wire_dtype
        self._gathering = Gathering(place, modifiers.wire_dtype)
        self._masters: dict[str, tf.Variable] = {}
        self._copies: list[dict[str, tf.Variable]] = []
        self._reads: list[dict[str, tf.Tensor]] = [{} for _ in place.towers]

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the masters, and a copy of every variable on every tower's device."""
        self._specs = list(specs)
        self._masters = variables.create_shared([spec for spec in specs if spec.kind == "weight"], self._place.ps)
        self._copies = variables.create_copies(specs, self._place)

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns the tower's own copy."""
        values = variables.read_all(self._specs, self._copies[tower])
        self._reads[tower] = {spec.name: value for spec, value in zip(self._specs, values, strict=True)}
        return values

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Sends the means, updates the masters (the chief), and refreshes the copies, each weight on its own."""
        means = local_means(updates, self._place.towers, self._wire_dtype)
        operations = [self._gathering.send(name, mean, self._masters[name], after=[]) for name, mean in means.items()]
        if self._gathering.is_chief:
            masters = {name: self._masters[name] for name in means}
            applied = optimizer.apply(list(masters.values()), self._gathering.means(masters, updates[0].decay))
            for (name, master), update in zip(masters.items(), applied, strict=True):
                operations += self._gathering.publish(name, master, after=[update])
        for name in means:
            value = self._gathering.published(name, self._masters[name])
            for copy, reads in zip(self._copies, self._reads, strict=True):
                with tf.control_dependencies([reads[name]]):  # the tower must have read the old value
                    operations += variables.assign_all(copy, {name: value})
        for copy, update in zip(self._copies, updates, strict=True):
            operations += variables.assign_all(copy, update.state)
        return [UpdateOp(tf.group(*operations))]

    def init_ops(self) -> list[InitOp]:
        """Gives all copies the masters' values, which the chief has initialised."""
        operations = []
        for name, master in self._masters.items():
            with tf.device(self._place.host):
                fetched = tf.identity(master.read_value())
            for copy in self._copies:
                operations += variables.assign_all(copy, {name: fetched})
        return [InitOp(tf.group(*operations))]

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns the masters, and every tower's copies; of moving averages tower 0's are authoritative."""
        return [self._masters, *self._copies]

    def replica_drift(self) -> tf.Tensor | None:
        """Compares every copy of this worker with the master."""
        weights = [spec for spec in self._specs if spec.kind == "weight"]
        if not weights:
            return None
        with tf.device(self._place.host):
            fetched = [tf.identity(value) for value in variables.read_all(weights, self._masters)]
        own = [variables.read_all(weights, copy) for copy in self._copies]
        return variables.largest_difference(own, [fetched] * len(own), self._place.towers)

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        place = self._place
        return Explanation(
            f"a copy per tower, {place.towers_in_total} in all; masters spread by bytes over {', '.join(place.ps)}",
            f"averaged over a worker's towers, then over {place.workers} workers, applied to the master and copied "
            "back, each weight on its own",
            _DIAGRAM,
        )

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns what workers and parameter servers send each other; a forward pass sends nothing."""
        if not training:
            return []
        weights = [variable for variable in variables if variable.kind == "weight"]
        return over_servers(weights, self._place, self._wire_dtype)
