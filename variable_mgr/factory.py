"""Makes a variable manager by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from variable_mgr.manager import VariableManager
from variable_mgr.managers.cluster_parameter_server import ClusterParameterServer
from variable_mgr.managers.column_sharded import ColumnSharded
from variable_mgr.managers.distributed_replicated import DistributedReplicated
from variable_mgr.managers.gathering import Gathering
from variable_mgr.managers.local_sgd import ParameterAveraging
from variable_mgr.managers.parameter_server import ParameterServer
from variable_mgr.managers.replicated import Replicated
from variable_mgr.managers.staged import Staged
from variable_mgr.modifiers import Modifiers, why_not
from variable_mgr.place import Place
from variable_mgr.reductions import all_reduce_spec, wrappers
from variable_mgr.reductions.all_reduce import AllReduce, NoExchange, Reduction


def make(
    name: str, place: Place, *, shared_devices: Sequence[str], modifiers: Modifiers, divided: Collection[str] = ()
) -> VariableManager:
    """Makes the manager called `name`, a key of `variable_mgr.catalog.MANAGERS`.

    Args:
        name: which manager.
        place: one device per tower, and the host.
        shared_devices: where shared variables live.
        modifiers: what is changed about it.
        divided: with `fc_model_parallel`, names of the weights of which each tower holds some columns.

    Raises:
        ValueError: the manager cannot be modified so, or not in this place; see `modifiers.why_not`.
    """
    problem = why_not(name, modifiers, place)
    if problem:
        raise ValueError(problem)
    manager = _MANAGERS[name](place, shared_devices, modifiers)
    return ColumnSharded(manager, place.towers, divided) if modifiers.fc_model_parallel else manager


def reduction(place: Place, modifiers: Modifiers, spec: str, *, first_number: int = 0) -> Reduction:
    """Makes the reduction of a spec, with what the modifiers put around it; `first_number` as of `AllReduce`."""
    reducing: Reduction = AllReduce(all_reduce_spec.parse(spec), place, first_number)
    if modifiers.relaxed_consistency:
        reducing = wrappers.Deferred(reducing, place)
    if place.towers_in_total == 1:  # nothing travels, so there is nothing to pack or cast
        return reducing
    if modifiers.compact_gradient_transfer:
        reducing = wrappers.Compact(reducing, place, modifiers.wire_dtype)
    if modifiers.agg_small_grads_max_bytes:
        reducing = wrappers.SmallAggregated(
            reducing, place, modifiers.agg_small_grads_max_bytes, modifiers.agg_small_grads_max_group
        )
    if modifiers.gradient_repacking:
        reducing = wrappers.Repacked(reducing, place, modifiers.gradient_repacking)
    return reducing


def _parameter_server(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    manager: VariableManager
    if place.in_cluster:
        manager = ClusterParameterServer(place, _gathering(place, modifiers), asynchronous=modifiers.asynchronous)
    else:
        manager = ParameterServer(place, shared_devices, asynchronous=modifiers.asynchronous)
    return Staged(manager, place.towers) if modifiers.staged_vars else manager


def _independent(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    return Replicated(place, NoExchange())


def _replicated(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    return Replicated(place, reduction(place, modifiers, modifiers.all_reduce_spec or "pscpu"))


def _distributed_replicated(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    return DistributedReplicated(place, _gathering(place, modifiers))


def _gathering(place: Place, modifiers: Modifiers) -> Gathering:
    return Gathering(place, modifiers.wire_dtype)


def _local_sgd(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    on_host = "pscpu" if tuple(shared_devices) == (place.host,) else "psgpu"
    spec = "collective" if place.workers > 1 else on_host
    mean = AllReduce(all_reduce_spec.parse(spec), place)
    return Replicated(place, NoExchange(), ParameterAveraging(mean, place, modifiers.local_sgd_steps or 1))


def _collective_all_reduce(place: Place, shared_devices: Sequence[str], modifiers: Modifiers) -> VariableManager:
    return Replicated(place, reduction(place, modifiers, "collective"))


_MANAGERS: dict[str, Callable[[Place, Sequence[str], Modifiers], VariableManager]] = {
    "collective_all_reduce": _collective_all_reduce,
    "distributed_all_reduce": _replicated,
    "distributed_replicated": _distributed_replicated,
    "independent": _independent,
    "local_sgd": _local_sgd,
    "parameter_server": _parameter_server,
    "replicated": _replicated,
}
