"""What can be changed about a variable manager, and where that makes no sense: one table. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses

from variable_mgr.catalog import NEED_A_CLUSTER
from variable_mgr.place import Place
from variable_mgr.reductions import all_reduce_spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modifiers:
    """Modifiers of a manager; each is named as its flag.

    Attributes:
        asynchronous: every tower applies its own gradient as soon as it is there.
        staged_vars: towers compute with weights that were read a step before, so that reading hides behind computing.
        relaxed_consistency: the gradients that are applied are those of the step before.
        all_reduce_spec: how copies' gradients are reduced; None leaves it to the manager.
        gradient_repacking: gradients travel in that many chunks; 0: one by one.
        agg_small_grads_max_bytes: gradients of at most this size travel in groups; 0: none.
        agg_small_grads_max_group: gradients in such a group, at most.
        compact_gradient_transfer: gradients travel in 16 bits.
        compact_gradient_dtype: which 16 bits: `float16`, or `bfloat16` with float32's range and fewer digits.
        local_sgd_steps: steps that towers train alone before weights are averaged; 0: not said.
        fc_model_parallel: each tower holds some columns of the dense layers that end the model.
    """

    asynchronous: bool = False
    staged_vars: bool = False
    relaxed_consistency: bool = False
    all_reduce_spec: str | None = None
    gradient_repacking: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 10
    compact_gradient_transfer: bool = False
    compact_gradient_dtype: str = "float16"
    local_sgd_steps: int = 0
    fc_model_parallel: bool = False

    @property
    def wire_dtype(self) -> str:
        """In which type gradients travel."""
        return self.compact_gradient_dtype if self.compact_gradient_transfer else "float32"

    @property
    def wire_bytes(self) -> int:
        """Bytes of one number of a gradient that travels."""
        return 2 if self.compact_gradient_transfer else 4


_ALL_REDUCING = ("replicated", "collective_all_reduce", "distributed_all_reduce")
_GATHERING = ("parameter_server", "distributed_replicated")
# Modifier: the flag, the managers that it goes with, and why it goes with no other.
_GOES_WITH: dict[str, tuple[str, tuple[str, ...], str]] = {
    "asynchronous": (
        "--cross_replica_sync=false",
        ("parameter_server",),
        "only there can one tower update what the others read",
    ),
    "staged_vars": ("--staged_vars", ("parameter_server",), "only there are weights read from another device"),
    "relaxed_consistency": ("--variable_consistency=relaxed", _ALL_REDUCING, "only there are gradients all-reduced"),
    "all_reduce_spec": (
        "--all_reduce_spec (or --hierarchical_copy)",
        ("replicated", "distributed_all_reduce"),
        "the others have no reduction to choose",
    ),
    "gradient_repacking": ("--gradient_repacking", _ALL_REDUCING, "only there are gradients all-reduced"),
    "agg_small_grads_max_bytes": ("--agg_small_grads_max_bytes", _ALL_REDUCING, "only there are gradients all-reduced"),
    "local_sgd_steps": ("--local_sgd_steps", ("local_sgd",), "the others do not average weights"),
    "fc_model_parallel": (
        "--fc_model_parallel",
        ("replicated", "collective_all_reduce", "parameter_server"),
        "there towers do not train one common model",
    ),
    "compact_gradient_transfer": (
        "--compact_gradient_transfer",
        _ALL_REDUCING + _GATHERING,
        "there gradients do not travel",
    ),
}
_ONE_STEP = "dividing the dense layers needs towers that take one common step with the newest weights"
# Modifiers that do not go together, and why.
_NOT_TOGETHER = {
    ("asynchronous", "staged_vars"): "staging needs towers that take one common step, and asynchronous ones do not",
    ("gradient_repacking", "agg_small_grads_max_bytes"): "both decide which gradients travel together",
    ("fc_model_parallel", "asynchronous"): _ONE_STEP,
    ("fc_model_parallel", "staged_vars"): _ONE_STEP,
    ("fc_model_parallel", "relaxed_consistency"): _ONE_STEP,
}


def why_not(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if this manager cannot be modified so in this place, else None."""
    for field, (flag, managers, because) in _GOES_WITH.items():
        if getattr(modifiers, field) and manager not in managers:
            return (
                f"{flag} goes with {' or '.join(managers)}, not with {manager}: {because}. "
                f"Say --variable_update={managers[0]}, or leave it out."
            )
    for (first, second), because in _NOT_TOGETHER.items():
        if getattr(modifiers, first) and getattr(modifiers, second):
            return f"{_GOES_WITH[first][0]} and {_GOES_WITH[second][0]}: {because}: give one of them."
    problem = _why_not_here(manager, modifiers, place)
    if problem:
        return problem
    spec = "collective" if manager == "collective_all_reduce" else modifiers.all_reduce_spec
    if spec is None:
        return None
    try:
        return all_reduce_spec.why_not(all_reduce_spec.parse(spec), place)
    except all_reduce_spec.SpecError as error:
        return f"--all_reduce_spec: {error}"


_CLUSTER_FLAGS = "--local_cluster=ps:1,worker:2, or --ps_hosts and --worker_hosts"


def _why_not_here(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if a manager wants other processes than there are."""
    if not place.in_cluster:
        if manager in NEED_A_CLUSTER:
            return (
                f"{manager} is for several processes: say --local_cluster={NEED_A_CLUSTER[manager]}, or --worker_hosts."
            )
        if manager == "parameter_server" and modifiers.compact_gradient_transfer:
            return (
                "--compact_gradient_transfer: in one process gradients of parameter_server do not travel as such; say "
                "--variable_update=replicated, or leave it out."
            )
        return None
    if manager in ("independent", "replicated"):
        return (
            f"{manager} works in one process only: for several say --variable_update=collective_all_reduce, "
            "distributed_replicated or parameter_server."
        )
    if manager in _GATHERING and not place.ps:
        return f"{manager} keeps variables on parameter servers, and this cluster has none: say {_CLUSTER_FLAGS}."
    if manager not in _GATHERING and place.ps:
        return f"{manager} has no use for parameter servers: leave them out of the cluster."
    if modifiers.fc_model_parallel:
        return "--fc_model_parallel divides layers over the towers of one process: leave out the cluster, or the flag."
    return None
