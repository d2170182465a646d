"""`replicated` and its relatives: one full copy of every variable per tower."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from variable_mgr import variables
from variable_mgr.manager import (
    EARLIER_WEIGHTS,
    OWN_STEP,
    STEP_BEFORE,
    Explanation,
    InitOp,
    Optimizer,
    TowerUpdate,
    UpdateOp,
    VariableManager,
    VariableSpec,
)
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place
from variable_mgr.reductions import wrappers
from variable_mgr.reductions.all_reduce import Reduction
from variable_mgr.reductions.kernels import collective_sum
from variable_mgr.transfers import Transfer, weight_elements

if TYPE_CHECKING:
    from variable_mgr.managers.local_sgd import ParameterAveraging

# Keys of the collectives that send worker 0's values to all, far from those of gradients.
_INITIAL_KEYS, _FINAL_KEYS = 1_000_000, 2_000_000
_DIAGRAM = """\
    tower 0        tower 1        ...
    [weights]      [weights]      one copy each
       |              |
    gradients      gradients
       |              |
       {exchange}
       |              |
    update         update         each its own copy"""
_WORKERS_DIAGRAM = """\
    worker 0: tower 0   tower 1 ...   worker 1: tower 0   tower 1 ...    one copy of the weights per tower
              |         |                       |         |
              +---------+{exchange:-^23}+---------+
              |         |                       |         |
              update    update                  update    update"""


def all_reducing(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> Replicated:
    """Makes copies whose gradients are reduced as the spec of the modifiers says."""
    assert modifiers.all_reduce_spec is not None, "the factory gives the default"
    return Replicated(place, wrappers.reduction(place, modifiers, modifiers.all_reduce_spec))


def independent(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> Replicated:
    """Makes `independent`: copies that train apart."""
    return Replicated(place, None)


class Replicated(VariableManager):
    """Keeps a copy per tower. All start equal, and a reduction of their gradients keeps them so; None: no exchange.

    With several workers, each builds this for its own towers, and all start with the values of tower 0 of worker 0.
    """

    def __init__(self, place: Place, reduction: Reduction | None, averaging: ParameterAveraging | None = None) -> None:
        self._place = place
        self._devices = list(place.towers)
        self._reduction = reduction
        self._averaging = averaging
        self.copies_differ = reduction is None
        self._copies: list[dict[str, tf.Variable]] = []
        self._all_read: list[tf.Operation] = []

    def create(self, specs: Sequence[VariableSpec]) -> None:
        """Creates a copy of every variable on every tower's device."""
        self._specs = list(specs)
        self._copies = variables.create_copies(specs, self._place)

    def tower_values(self, tower: int) -> list[tf.Tensor]:
        """Returns the tower's own copy."""
        values = variables.read_all(self._specs, self._copies[tower])
        with tf.device(self._devices[tower]):
            self._all_read.append(tf.group(*values))
        return values

    def apply(self, updates: Sequence[TowerUpdate], optimizer: Optimizer) -> list[UpdateOp]:
        """Applies to every copy the gradients that the reduction returns for its tower."""
        names = list(updates[0].gradients)
        gradients = [[update.gradients[name] for name in names] for update in updates]
        # Without names a wrapper handles all weights, and nothing is left to reduce.
        reduced, operations = self._reduction.mean(gradients) if self._reduction and names else (gradients, [])
        towers = zip(self._copies, self._all_read, reduced, updates, strict=True)
        for copy, all_read, means, update in towers:
            # A deferred gradient does not wait for this step's computation, but its update must wait for its reads.
            with tf.control_dependencies([all_read]):
                operations += optimizer.apply([copy[name] for name in names], means)
            operations += variables.assign_all(copy, update.state)
        if self._averaging:
            weights = [[copy[name] for name in names] for copy in self._copies]
            return [UpdateOp(self._averaging.after(operations, weights))]
        return [UpdateOp(tf.group(*operations))]

    def init_ops(self) -> list[InitOp]:
        """Gives all workers' copies the values of worker 0; within a worker, one tensor has initialised them."""
        if self._place.workers == 1:
            return []
        shared = [spec.name for spec in self._specs if spec.kind != "tower_state"]
        operations = []
        for copy, values in zip(self._copies, self._of_worker_0(shared, _INITIAL_KEYS), strict=True):
            operations += variables.assign_all(copy, dict(zip(shared, values, strict=True)))
        return [InitOp(tf.group(*operations))]

    def _of_worker_0(self, names: Sequence[str], first_key: int) -> list[list[tf.Tensor]]:
        """Returns to each tower the variables of tower 0 of worker 0: a sum to which all others give zeros."""
        values: list[list[tf.Tensor]] = [[] for _ in self._devices]
        for tower, (device, copy) in enumerate(zip(self._devices, self._copies, strict=True)):
            for key, name in enumerate(names, start=first_key):
                with tf.device(device):
                    own = copy[name].read_value()
                    # There is no sum of smaller integers, such as own models may have.
                    sent = own if own.dtype.size >= 4 or own.dtype.is_floating else tf.cast(own, tf.int32)
                    given = sent if tower == self._place.worker == 0 else tf.zeros_like(sent)
                    values[tower].append(tf.cast(collective_sum(given, self._place, key), own.dtype))
        return values

    def homes(self) -> list[Mapping[str, tf.Variable]]:
        """Returns every tower's copies."""
        return list(self._copies)

    def replica_drift(self) -> tf.Tensor | None:
        """Compares every tower's weights with those of tower 0 of worker 0."""
        specs = [spec for spec in self._specs if spec.kind == "weight"]
        weights = [spec.name for spec in specs]
        if self._reduction is None or self._place.towers_in_total == 1 or not weights:
            return None
        own = [variables.read_all(specs, copy) for copy in self._copies]
        of_first = self._of_worker_0(weights, _FINAL_KEYS) if self._place.workers > 1 else [own[0]] * len(own)
        return variables.largest_difference(own, of_first, self._devices)

    def explain(self, optimizer: str = "sgd") -> Explanation:
        """Returns how data flows."""
        towers, averaging = self._place.towers_in_total, self._averaging
        gradients = self._reduction.describe() if self._reduction else "not exchanged"
        deviation, exchange = "", "mean"
        if averaging:
            gradients, exchange = f"{gradients}; {averaging.describe()}", "mean of weights"
        if not self._reduction and towers > 1:
            exact = averaging is not None and averaging.every_steps == 1 and optimizer == "sgd"
            deviation = "" if exact else "every tower steps by its own gradient, unlike one device with the whole batch"
        if self._place.in_cluster:
            gradients += " (over all towers of all workers)" if self._reduction else ""
            diagram = _WORKERS_DIAGRAM.format(exchange=f" {exchange} ")
            diagram += f"\n    all driven by one client, at {self._place.host}" if self._place.hosts else ""
        else:
            exchanged = averaging or self._reduction
            diagram = _DIAGRAM.format(exchange=f"+{f' {exchange} ':-^14}+" if exchanged else "   (nothing)")
        deferred = self._reduction is not None and self._reduction.deferred
        return Explanation(
            f"{towers} copies, one per tower" if towers > 1 else "one copy",
            gradients,
            diagram,
            STEP_BEFORE if deferred else OWN_STEP,
            EARLIER_WEIGHTS if deferred else deviation,
        )

    def transfers(self, variables: Sequence[VariableSpec], *, training: bool = True) -> list[Transfer]:
        """Returns what the reduction sends, and what averaging sends; a forward pass sends nothing."""
        if not training:
            return []
        exchanges = [exchange for exchange in (self._reduction, self._averaging) if exchange]
        return list(itertools.chain.from_iterable(each.transfers(weight_elements(variables)) for each in exchanges))
