"""`parameter_server` in a cluster: one copy of every variable, spread over parameter servers, for many workers."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from variable_mgr.manager import Applied, Optimizer, TowerUpdate, VariableSpec
from variable_mgr.managers.gathering import Gathering
from variable_mgr.managers.one_copy import OneCopy
from variable_mgr.place import Place


class ClusterParameterServer(OneCopy):
    """Keeps one copy, spread over the parameter servers by bytes. Every worker builds its own part of the whole.

    A worker fetches each variable once per step, whatever the number of its towers, and sends one gradient of each: the
    mean over its towers. Synchronously, the workers' means are averaged and applied once per global step, where the
    variable lives, and no step begins before. Asynchronously, every worker applies its own and waits for nobody; no
    update of a variable is torn or lost.

    Args:
        place: this worker's towers, and the parameter servers.
        gathering: brings the workers' gradients together.
        asynchronous: whether each worker goes its own way.
    """

    def __init__(self, place: Place, gathering: Gathering, *, asynchronous: bool = False) -> None:
        super().__init__(place, place.ps, counted_on=place.ps[0] if asynchronous else None)
        self._gathering = gathering
        self._asynchronous = asynchronous
        self._fetched: dict[str, tf.Tensor] = {}  # what was read, here

    @property
    def adds_decay(self) -> bool:
        """Returns whether weights are still those that all workers read when gradients are applied."""
        return not self._asynchronous

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates the shared variables on the parameter servers, and fetches them."""
        super().create(specs)
        with tf.device(self._place.host):  # or each tower would fetch its own over the network
            self._fetched = {name: tf.identity(read) for name, read in self._reads.items()}

    def read(self, tower: int) -> list[tf.Tensor]:
        """Returns what was fetched of every shared variable, and the tower's own state."""
        return self._values(tower, self._fetched)

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
            operations += optimizer.apply(shared, self._gathering.means(names, shared, means, updates[0].decay))
        return [Applied(self._gathering.end_together([*operations, *state]))]

    def _apply_alone(
        self,
        names: Sequence[str],
        means: Sequence[tf.Tensor],
        state: Sequence[tf.Operation],
        optimizer: Optimizer,
    ) -> Applied:
        """Applies this worker's own gradients, then counts the update."""
        shared = [self._shared[name] for name in names]
        received = []
        for variable, mean in zip(shared, means, strict=True):
            with tf.device(variable.device):
                received.append(tf.cast(mean, variable.dtype))
        return self._counted([*optimizer.apply(shared, received), *state])

    def describe(self) -> str:
        """Returns in words where variables live and how gradients come together."""
        how = (
            "each worker's mean applied as it comes"
            if self._asynchronous
            else f"averaged over {self._place.workers} workers and applied once"
        )
        return f"one shared copy spread by bytes over {', '.join(self._place.ps)}; gradients {how} where it lives"
