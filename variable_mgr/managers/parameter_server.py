"""`parameter_server`: one shared copy of every variable, in one process or on the parameter servers of a cluster.

`in_graph_parameter_server` is the form of one process with its towers on the workers of a cluster.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from variable_mgr.manager import Explanation, Optimizer, TowerUpdate, UpdateOp, VariableManager, VariableSpec
from variable_mgr.managers.gathering import Gathering, local_means
from variable_mgr.managers.one_copy import OneCopy
from variable_mgr.managers.staged import Staged
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.reductions.kernels import mean, on_each
from variable_mgr.transfers import DEVICE, FLOAT32_BYTES, HOST, Transfer, over_servers, weight_elements

_DIAGRAM = """\
    tower 0        tower 1        ...
     ^    |         ^    |
     |    gradients |    gradients
     |    v         |    v
    [weights: {update}]"""
_CLUSTER_DIAGRAM = """\
    worker 0: tower 0, 1 ...      worker 1: tower 0, 1 ...
       ^            |                ^            |
    weights   {gradient:^13}       weights   {gradient:^13}        over the network, once per {sender}
       |            v                |            v
    [parameter servers: weights, {update}]"""


def parameter_server(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    """Makes the form for one client or for the workers of a cluster, staged if the modifiers ask for it."""
    manager: VariableManager
    if place.in_cluster and not place.hosts:
        manager = ClusterParameterServer(place, modifiers)
    else:
        manager = ParameterServer(place, place.ps or shared_devices, modifiers)
    return Staged(manager, place.towers) if modifiers.staged_vars else manager


class ParameterServer(OneCopy):
    """Keeps one copy, driven by one client, on one device or spread over several by bytes.

    The mean gradient is taken and applied where the variable lives; a worker of a cluster sends the mean over its
    towers. Asynchronously, every tower applies its own gradient as soon as it is computed. An update of one variable is
    never torn (it holds the variable's lock), and none is lost. The host, or the first parameter server, counts the
    updates of asynchronous towers.
    """

    def __init__(self, place: Place, variable_devices: Sequence[str], modifiers: Modifiers) -> None:
        super().__init__(place, variable_devices, asynchronous=modifiers.asynchronous)
        self._wire_dtype = modifiers.wire_dtype
        self.adds_decay = not modifiers.asynchronous  # all towers compute with the values that are read once in a step

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Applies each gradient on the variable's device: the towers' mean once, or each tower's own."""
        devices = self._place.towers
        sent = [
            local_means([updates[tower] for tower in senders], [devices[tower] for tower in senders], self._wire_dtype)
            for senders in self._senders()
        ]
        state = [self._store_state(tower, update) for tower, update in enumerate(updates)]
        if self._asynchronous:
            return [
                self._counted([*self._update([own], {}, optimizer), *its_state])
                for own, its_state in zip(sent, state, strict=True)
            ]
        decay = updates[0].decay
        return [UpdateOp(tf.group(*self._update(sent, decay, optimizer), *itertools.chain(*state)))]

    def _senders(self) -> list[list[int]]:
        """Returns the towers whose gradients travel as one mean: those of a worker, if they step together."""
        towers = range(len(self._place.towers))
        if self._asynchronous or not self._place.hosts:
            return [[tower] for tower in towers]
        hosts = self._place.hosts
        return [[tower for tower in towers if hosts[tower] == host] for host in dict.fromkeys(hosts)]

    def _update(
        self, sent: Sequence[Mapping[str, tf.Tensor]], decay: Mapping[str, float], optimizer: Optimizer
    ) -> list[tf.Operation]:
        means, shared = [], {name: self._shared[name] for name in sent[0]}
        for name, variable in shared.items():
            with tf.device(variable.device):
                average = mean([tf.cast(own[name], variable.dtype) for own in sent])
                with tf.control_dependencies([average]):
                    means.append(average + decay[name] * self._reads[name] if name in decay else average)
        # A gradient that does not depend on its variable's value could otherwise update it before the step reads it.
        with tf.control_dependencies([tf.group(*self._reads.values())]):
            return optimizer.apply(list(shared.values()), means)

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        where, workers = self._variable_devices, len(self._place.by_worker()) if self._place.hosts else 0
        weights = f"one shared copy {'on' if len(where) == 1 else 'spread by bytes over'} {', '.join(where)}"
        update = "an update per tower" if self._asynchronous else "mean of the gradients, one update"
        diagram = _DIAGRAM.format(update=update)
        if workers:
            gradient, sender = ("gradients", "tower") if self._asynchronous else ("mean gradient", "worker")
            diagram = _CLUSTER_DIAGRAM.format(update=update, gradient=gradient, sender=sender)
            diagram += f"\n    all driven by one client, at {self._place.host}"
        if not self._asynchronous:
            over = f" over a worker's towers, then over {workers} workers," if workers else ""
            return Explanation(weights, f"averaged{over} and applied where the variable lives", diagram)
        alone = Explanation(weights, "applied by each tower for itself where the variable lives", diagram)
        if len(self._place.towers) == 1:
            return alone
        return dataclasses.replace(
            alone,
            applied="of the weights as they were when its tower read them: with N equal towers, about N-1 updates ago "
            "(the record of a run has a histogram)",
            deviation="not plain SGD: one update per tower, of weights that others have updated meanwhile",
        )

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns what workers and parameter servers send each other, or in one process what its devices send.

        There each tower on another device reads every weight and sends a gradient of it.
        """
        if self._place.hosts:
            workers = len(self._place.by_worker())
            exchanges = len(self._senders()) // workers
            return over_servers(variables, self._place, self._wire_dtype, training=training, exchanges=exchanges)
        home = HOST if self._variable_devices == [self._place.host] else DEVICE
        towers = len(self._place.towers) - (home == DEVICE)
        sizes = [FLOAT32_BYTES * elements for elements in weight_elements(variables) for _ in range(towers)]
        reads = [Transfer(home, DEVICE, size, what="read") for size in sizes]
        return reads + [Transfer(DEVICE, home, size) for size in sizes if training]


class ClusterParameterServer(OneCopy):
    """Keeps one copy, spread over the parameter servers by bytes. Every worker builds its own part of the whole.

    A worker sends one gradient of each variable: the mean over its towers. Synchronously, the workers' means are
    averaged and applied once per global step, where the variable lives, and the next step starts after that.
    Asynchronously, every worker applies its own mean without waiting; no update of a variable is torn or lost.
    """

    def __init__(self, place: Place, modifiers: Modifiers) -> None:
        super().__init__(place, place.ps, asynchronous=modifiers.asynchronous)
        self._wire_dtype = modifiers.wire_dtype
        self._gathering = Gathering(place, modifiers.wire_dtype)
        self.adds_decay = not modifiers.asynchronous  # the weights are then still those that all workers read

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Sends the mean over this worker's towers; the chief applies the mean over all workers, or each its own."""
        means = local_means(updates, self._place.towers, self._wire_dtype)
        shared = {name: self._shared[name] for name in means}
        variables = list(shared.values())
        state = [operation for tower, update in enumerate(updates) for operation in self._store_state(tower, update)]
        if self._asynchronous:
            homes = (variable.device for variable in variables)
            received = on_each(homes, lambda own, like: tf.cast(own, like.dtype), means.values(), variables)
            return [self._counted([*optimizer.apply(variables, received), *state])]
        operations = [
            self._gathering.send(name, own, shared[name], after=[self._reads[name]]) for name, own in means.items()
        ]
        if self._gathering.is_chief:
            operations += optimizer.apply(variables, self._gathering.means(shared, updates[0].decay))
        return [UpdateOp(self._gathering.end_together([*operations, *state]))]

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        weights = f"one shared copy spread by bytes over {', '.join(self._place.ps)}"
        if not self._asynchronous:
            return Explanation(
                weights,
                f"averaged over a worker's towers, then over {self._place.workers} workers, and applied once where the "
                "variable lives",
                _CLUSTER_DIAGRAM.format(
                    update="mean over the workers, one update", gradient="mean gradient", sender="worker"
                ),
            )
        return Explanation(
            weights,
            "averaged over a worker's towers; each worker's mean applied as it comes where the variable lives",
            _CLUSTER_DIAGRAM.format(update="an update per worker", gradient="mean gradient", sender="worker"),
            "of the weights as they were when the worker read them (the record of a run has a histogram)",
            "not plain SGD: one update per worker, of weights that others have updated meanwhile",
        )

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns what workers and parameter servers send each other."""
        return over_servers(variables, self._place, self._wire_dtype, training=training)
