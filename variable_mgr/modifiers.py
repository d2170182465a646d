"""The modifiers of variable managers, and which combinations are rejected. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Literal

from benchmarks.option import option
from variable_mgr.catalog import IN_ONE_PROCESS, MANAGERS, WorksIn
from variable_mgr.place import Place
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS

# Under NCCL by default: ResNet-50 then has 24 collectives per tower instead of 161, which follow each other.
NCCL_GROUPED_BYTES = 4 * 2**20
LOCAL_SGD_STEPS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modifiers:
    """Modifiers of a manager.

    Attributes:
        asynchronous: every tower applies its own gradient as soon as it is computed.
        relaxed_consistency: each step applies the gradients of the step before.
        all_reduce_spec: how copies' gradients are reduced; None leaves it to the manager.
    """

    asynchronous: bool = False
    staged_vars: bool = option(
        "with parameter_server: compute with weights that were fetched during the previous step, so that reads "
        "overlap with computation",
        default=False,
    )
    relaxed_consistency: bool = False
    all_reduce_spec: str | None = option(
        "how replicated (distributed_all_reduce) reduces gradients; also ALG#K: in K shards; ALG/ALG: within a "
        "worker and across workers; ALG:SIZE:ALG: by size in elements, such as pscpu:32K:xring#2; "
        "collective_all_reduce and local_sgd: collective or nccl",
        default=None,
        default_text="nccl with NVLink, else pscpu or psgpu, by --local_parameter_device; of collectives nccl on GPUs, "
        "else collective",
        known=tuple(ALGORITHMS),
        unset="",
    )
    gradient_repacking: int = option(
        "concatenate the gradients and send them in this many chunks; 0: one by one", default=0, at_least=0
    )
    agg_small_grads_max_bytes: int = option(
        "send gradients of at most this size in groups; 0: none",
        default=0,
        default_text=f"0; {NCCL_GROUPED_BYTES} if nccl reduces all gradients and they are not repacked",
        at_least=0,
    )
    agg_small_grads_max_group: int = option(
        "maximum number of gradients in a group of --agg_small_grads_max_bytes", default=10, at_least=1
    )
    compact_gradient_transfer: bool = option("send gradients in 16 bits", default=False)
    compact_gradient_dtype: Literal["float16", "bfloat16"] = option(
        "16-bit type of --compact_gradient_transfer; bfloat16 has the range of float32 and fewer digits",
        default="float16",
    )
    local_sgd_steps: int = option(
        "with local_sgd: average the weights every this many steps",
        default=0,
        default_text=str(LOCAL_SGD_STEPS),
        at_least=1,
    )
    fc_model_parallel: bool = option(
        "split the columns of the final dense layers among the towers, and exchange activations instead of their "
        "gradients; for alexnet and vgg16",
        default=False,
    )

    @property
    def wire_dtype(self) -> str:
        """In which type gradients travel."""
        return self.compact_gradient_dtype if self.compact_gradient_transfer else "float32"

    @property
    def uses_nccl(self) -> bool:
        """Whether NCCL reduces gradients, or some of them."""
        return "nccl" in (self.all_reduce_spec or "")


# Modifier: its flag, and why other managers than those that list it in the catalog do not support it.
FLAGS = {
    "asynchronous": ("--cross_replica_sync=false", "only there can one tower update what the others read"),
    "staged_vars": ("--staged_vars", "only there are weights read from another device"),
    "relaxed_consistency": ("--variable_consistency=relaxed", "only there are gradients all-reduced"),
    "all_reduce_spec": ("--all_reduce_spec (or --hierarchical_copy)", "the others have no reduction to choose"),
    "gradient_repacking": ("--gradient_repacking", "only there are gradients all-reduced"),
    "agg_small_grads_max_bytes": ("--agg_small_grads_max_bytes", "only there are gradients all-reduced"),
    "local_sgd_steps": ("--local_sgd_steps", "the others do not average weights"),
    "fc_model_parallel": ("--fc_model_parallel", "the others do not train one common model in one process"),
    "compact_gradient_transfer": ("--compact_gradient_transfer", "the others send no gradients"),
}
_ONE_STEP = "dividing the dense layers needs towers that take one common step with the newest weights"
# Modifiers that exclude each other, and why.
EXCLUSIVE = {
    ("asynchronous", "staged_vars"): "staging needs towers that take one common step, and asynchronous ones do not",
    ("gradient_repacking", "agg_small_grads_max_bytes"): "both decide which gradients travel together",
    ("fc_model_parallel", "asynchronous"): _ONE_STEP,
    ("fc_model_parallel", "staged_vars"): _ONE_STEP,
    ("fc_model_parallel", "relaxed_consistency"): _ONE_STEP,
}


def why_not(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if this manager does not support these modifiers, or not in this place; else None."""
    supported = MANAGERS[manager].modifiers if manager in MANAGERS else ()  # reference loops support none
    for field, (flag, because) in FLAGS.items():
        if getattr(modifiers, field) and field not in supported:
            supporting = [name for name, entry in MANAGERS.items() if field in entry.modifiers]
            # The first is proposed: one that needs no cluster, and supports most.
            supporting.sort(
                key=lambda name: (
                    name not in IN_ONE_PROCESS,
                    bool(MANAGERS[name].reductions),
                    -len(MANAGERS[name].modifiers),
                )
            )
            return (
                f"{flag} goes with {' or '.join(supporting)}, not with {manager}: {because}. "
                f"Use --variable_update={supporting[0]}, or omit it."
            )
    for (first, second), because in EXCLUSIVE.items():
        if getattr(modifiers, first) and getattr(modifiers, second):
            return f"{FLAGS[first][0]} and {FLAGS[second][0]}: {because}: use one of them."
    if manager not in MANAGERS:
        return None
    problem = _why_not_here(manager, modifiers, place)
    if not problem and modifiers.all_reduce_spec is not None:
        problem = _why_not_reduced(manager, modifiers, place)
    return problem or _why_not_sent(manager, modifiers, place)


def _why_not_reduced(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if the reduction does not exist, or not here, or not of this type or for this manager."""
    try:
        ranges = all_reduce_spec.parse(modifiers.all_reduce_spec or "")
    except all_reduce_spec.SpecError as error:
        return f"--all_reduce_spec: {error}"
    only = MANAGERS[manager].reductions
    if only and not {item.algorithm for item in ranges} <= set(only):
        return (
            f"--all_reduce_spec={modifiers.all_reduce_spec}: {manager} reduces by {' or '.join(only)} only: use one of "
            "them, or --variable_update=replicated in one process, distributed_all_reduce in several."
        )
    return all_reduce_spec.why_not(ranges, place)


def _why_not_sent(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if the reduction has no kernel for the type in which gradients travel."""
    on_gpus = any("gpu" in device.lower() for device in place.towers)
    usual = MANAGERS[manager].default_reduction(in_cluster=place.in_cluster, on_host=False)
    spec = modifiers.all_reduce_spec or usual or ""
    if modifiers.wire_dtype != "bfloat16" or not on_gpus or not ("nccl" in spec or "collective" in spec):
        return None
    return (
        "--compact_gradient_dtype=bfloat16: on GPUs, TensorFlow's collectives take float32 and float16, not bfloat16: "
        "use float16, --variable_update=replicated --all_reduce_spec=psgpu, or omit --compact_gradient_transfer."
    )


def _why_not_here(manager: str, modifiers: Modifiers, place: Place) -> str | None:
    """Returns a sentence if a manager needs other processes than these."""
    entry = MANAGERS[manager]
    if not place.in_cluster:
        if entry.smallest_cluster:
            return (
                f"{manager} is for several processes: use --local_cluster={entry.smallest_cluster}, or --worker_hosts."
            )
        if entry.one_copy and modifiers.compact_gradient_transfer:
            return (
                f"--compact_gradient_transfer: in one process gradients of {manager} do not travel as such; use "
                "--variable_update=replicated, or omit it."
            )
        return None
    if entry.processes == WorksIn.ONE:
        others = (name for name, other in MANAGERS.items() if other.processes & (WorksIn.PEERS | WorksIn.SERVERS))
        return f"{manager} works in one process only: for several use --variable_update={' or '.join(others)}."
    if entry.processes & WorksIn.SERVERS and not place.ps:
        return (
            f"{manager} keeps variables on parameter servers, and this cluster has none: use "
            "--variable_update=collective_all_reduce, or add some (--ps_hosts; --num_ps with --cluster; a job ps in "
            "--local_cluster or TF_CONFIG)."
        )
    if not entry.processes & WorksIn.SERVERS and place.ps:
        return f"{manager} has no use for parameter servers: omit them from the cluster."
    if modifiers.fc_model_parallel:
        return "--fc_model_parallel divides layers over the towers of one process: omit the cluster, or the flag."
    return None
