"""From flags to a variable manager and its modifiers. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.topology.cluster import Cluster
from models import specs
from variable_mgr.catalog import IN_GRAPH, MANAGERS, REFERENCE_LOOPS, named
from variable_mgr.modifiers import FLAGS, Modifiers

LOCAL_SGD_STEPS = 4
# Under NCCL by default: ResNet-50 then has 24 collectives per tower instead of 161, which follow each other.
NCCL_GROUPED_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipelining:
    """A model in stages, one per device, and the number of equal parts into which a step divides its images."""

    stages: int
    micro_batches: int


def resolve(
    given: Mapping[str, Any], devices: Mapping[str, Any], cluster: Cluster | None, *, owns_gpus: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Decides on the manager.

    Args:
        given: flag values by name; None is not given.
        devices: the decisions on devices: `device`, `num_devices`, `virtual_gpus`.
        cluster: the tasks; None for a single process.
        owns_gpus: whether every tower has a whole GPU of its own.

    Returns:
        The fields of the configuration that are about variables, and sentences on how flags were understood.

    Raises:
        UsageError: flags contradict each other, or the manager cannot run on these devices.
    """
    _refuse_without_effect(given)
    _refuse_for_reference_loops(given, cluster)
    manager = named(given["variable_update"])
    supported = MANAGERS[manager].modifiers if manager in MANAGERS else ()
    asked, notices = _resolve_spec(given, devices, manager)
    shared_on = given["local_parameter_device"] or devices["device"]
    spec = _reduction(asked, manager, given, shared_on, in_cluster=cluster is not None, owns_gpus=owns_gpus)
    if "nccl" in (spec or "") and not owns_gpus and devices["device"] == "gpu" and devices["virtual_gpus"] == 1:
        raise UsageError(
            "--all_reduce_spec=nccl: NCCL needs a whole GPU for each tower, and here one is divided (MIG), or workers "
            "share GPUs: use another reduction, or give each worker its own with --gpus or --local_cluster."
        )
    resolved = Modifiers(
        asynchronous=given["cross_replica_sync"] is False,
        staged_vars=bool(given["staged_vars"]) or given["variable_update"] == "staged",
        relaxed_consistency=given["variable_consistency"] == "relaxed",
        all_reduce_spec=spec,
        gradient_repacking=given["gradient_repacking"] or 0,
        agg_small_grads_max_bytes=_largest_grouped(given, spec, supported),
        agg_small_grads_max_group=given["agg_small_grads_max_group"] or Modifiers.agg_small_grads_max_group,
        compact_gradient_transfer=bool(given["compact_gradient_transfer"]),
        compact_gradient_dtype=given["compact_gradient_dtype"] or Modifiers.compact_gradient_dtype,
        fc_model_parallel=bool(given["fc_model_parallel"]),
        local_sgd_steps=given["local_sgd_steps"] or (LOCAL_SGD_STEPS if "local_sgd_steps" in supported else 0),
    )
    if given["agg_small_grads_max_group"] and not resolved.agg_small_grads_max_bytes:
        raise UsageError("--agg_small_grads_max_group acts only with --agg_small_grads_max_bytes: add it.")
    if cluster and cluster.controller and manager not in IN_GRAPH:
        raise UsageError(
            f"--controller_host: under {manager} every worker is its own client. Use "
            f"--variable_update={'in_graph_parameter_server' if cluster.ps else 'distributed_all_reduce'}, or omit it."
        )
    fields = {"variable_update": manager, "shared_on": shared_on, "modifiers": resolved}
    return fields | {"keras_application": bool(given["keras_application"])}, notices


def _reduction(
    asked: str | None, manager: str, given: Mapping[str, Any], shared_on: str, *, in_cluster: bool, owns_gpus: bool
) -> str | None:
    """Returns the reduction to use if `asked` is what flags name; None is the manager's own."""
    entry = MANAGERS.get(manager)
    if entry is None or "all_reduce_spec" not in entry.modifiers:
        return asked
    if not entry.reductions:
        return asked or ("pscpu" if shared_on == "cpu" else "psgpu")
    if entry.copies_by_default(in_cluster=in_cluster):
        return asked
    reduces = not (given["forward_only"] or given["eval"])
    if asked is None and owns_gpus and reduces and given["compact_gradient_dtype"] != "bfloat16":
        return "nccl"
    return None if asked == "collective" else asked


def _largest_grouped(given: Mapping[str, Any], spec: str | None, supported: Sequence[str]) -> int:
    """Returns up to how many bytes gradients travel in groups; by default none, or under NCCL alone most."""
    is_nccl = spec is not None and "nccl" in spec and ":" not in spec
    is_chosen = any(given[name] is not None for name in ("agg_small_grads_max_bytes", "gradient_repacking"))
    if is_nccl and not is_chosen and "agg_small_grads_max_bytes" in supported:
        return NCCL_GROUPED_BYTES
    return given["agg_small_grads_max_bytes"] or 0


def _resolve_spec(
    given: Mapping[str, Any], devices: Mapping[str, Any], manager: str
) -> tuple[str | None, tuple[str, ...]]:
    """Returns the requested reduction, whichever flag names it, and notices about it."""
    asked = {
        "--all_reduce_spec": given["all_reduce_spec"],
        "--hierarchical_copy": "hierarchical" if given["hierarchical_copy"] else None,
        "--variable_update=nccl": "nccl" if given["variable_update"] == "nccl" else None,
    }
    if given["use_nccl"] and any(spec not in (None, "nccl") for spec in asked.values()):
        asked["--use_nccl=true"] = "nccl"
    named = {flag: spec for flag, spec in asked.items() if spec}
    if len(set(named.values())) > 1:
        raise UsageError(f"{' and '.join(named)} each choose a reduction: use one of them.")
    if named or not given["use_nccl"]:
        return next(iter(named.values()), None), ()
    if manager != "replicated":
        return None, (f"--use_nccl=true has no effect under {manager}, only under replicated.",)
    if devices["device"] == "gpu" and devices["virtual_gpus"] == 1:
        return "nccl", ("--use_nccl=true: understood as --all_reduce_spec=nccl.",)
    return None, (
        "--use_nccl=true: NCCL works between physical GPUs only, so gradients are averaged by copies to "
        "--local_parameter_device instead.",
    )


_ABOUT_GRADIENTS = (
    "staged_vars",
    "all_reduce_spec",
    "hierarchical_copy",
    "gradient_repacking",
    "agg_small_grads_max_bytes",
    "compact_gradient_transfer",
    "local_sgd_steps",
    "fc_model_parallel",
)


def _refuse_without_effect(given: Mapping[str, Any]) -> None:
    """Refuses flags that would be ignored."""
    if given["compact_gradient_dtype"] and not given["compact_gradient_transfer"]:
        raise UsageError("--compact_gradient_dtype acts only with --compact_gradient_transfer: add it.")
    if given["variable_update"] == "staged" and given["staged_vars"] is False:
        raise UsageError("--variable_update=staged and --nostaged_vars contradict each other: drop one of them.")
    if not given["forward_only"]:
        return
    acting = [f"--{name}" for name in _ABOUT_GRADIENTS if given[name]]
    acting += ["--cross_replica_sync=false"] if given["cross_replica_sync"] is False else []
    acting += ["--variable_consistency=relaxed"] if given["variable_consistency"] == "relaxed" else []
    acting += ["--variable_update=staged"] if given["variable_update"] == "staged" else []
    if acting:
        raise UsageError(f"--forward_only computes no gradients and updates nothing: omit {', '.join(acting)}.")


_APPLICATION = "resnet50"
_TAKES = {
    "data_name": ("synthetic",),
    "optimizer": ("sgd", "momentum"),
    "precision": ("fp32", "tf32", "bf16"),
    "xla": ("off",),
    "fused_bn": (True,),
    "weight_decay_on": ("kernels",),
}
_REFUSES = {
    "data_dir": "trains on synthetic images only",
    "forward_only": "trains and nothing else",
    "print_training_accuracy": "reports the loss only",
    "local_parameter_device": "decides by itself where variables and gradients are",
    "log_device_placement": "decides by itself where operations run",
    "force_gpu_compatible": "decides by itself which host memory is pinned",
    "use_nccl": "decides by itself how gradients are reduced",
    "use_fp16": "does not scale the loss",
    "check_precision": "trains once",
    "xla_compile": "runs without XLA",
    "conv1x1_as_matmul": "has Keras' convolutions",
    "filter_gradients_as_matmul": "has Keras' convolutions",
    **dict.fromkeys(
        (
            *("resnet_base_lr", "piecewise_learning_rate_schedule", "num_epochs_per_decay", "cosine_decay_epochs"),
            "num_learning_rate_warmup_epochs",
        ),
        "trains at a constant rate",
    ),
    **dict.fromkeys(("gradient_clip", "gradient_clip_norm"), "does not clip gradients"),
    "label_smoothing": "has Keras' loss of plain labels",
}


def _refuse_for_reference_loops(given: Mapping[str, Any], cluster: Cluster | None) -> None:
    """Refuses what the reference loops do not support, except modifiers, which `modifiers.why_not` refuses."""
    loop = given["variable_update"]
    model = specs.find(given["model"] or _APPLICATION, given["data_name"]).name
    if given["keras_application"] and (loop, model) != ("keras_fit", _APPLICATION):
        raise UsageError(
            "--keras_application trains Keras' own ResNet-50 with Keras' fit: use "
            f"--variable_update=keras_fit --model={_APPLICATION}, or omit it."
        )
    if loop not in REFERENCE_LOOPS:
        return
    if cluster:
        raise UsageError(
            f"--variable_update={loop} works in one process only: omit the cluster, or use "
            "--variable_update=collective_all_reduce."
        )
    for name, taken in _TAKES.items():
        if given[name] not in (None, *taken):
            raise UsageError(
                f"--{name}={given[name]}: {loop} takes {' or '.join(map(str, taken))} only. Use that, or "
                "--variable_update=replicated."
            )
    for name, does in _REFUSES.items():
        if given[name]:
            raise UsageError(f"--{name}: {loop} {does}. Omit it, or use --variable_update=replicated.")


_MOST_PER_STAGE = 4  # by default; then a pipeline is idle for at most a fifth of a step


def pipelining(
    given: Mapping[str, Any],
    variables: Mapping[str, Any],
    cluster: Cluster | None,
    *,
    num_devices: int,
    batch_per_device: int,
) -> Pipelining | None:
    """Decides on the pipeline; None without one.

    Args:
        given: flag values by name; None is not given.
        variables: as `resolve` returns them.
        cluster: the tasks; None for a single process.
        num_devices: of this process.
        batch_per_device: images.

    Raises:
        UsageError: flags contradict each other, or the batch cannot be divided.
    """
    stages, micro_batches = given["pipeline_stages"], given["micro_batches"]
    if not stages:
        if micro_batches:
            raise UsageError("--micro_batches divides the images of a pipeline: add --pipeline_stages, or omit it.")
        return None
    _refuse_in_a_pipeline(given, variables, cluster)
    if stages != num_devices:
        raise UsageError(
            f"--pipeline_stages={stages} needs {stages} devices, one per stage, and --num_gpus gives {num_devices}: "
            f"use --num_gpus={stages}."
        )
    images = num_devices * batch_per_device
    count = micro_batches or stages * math.gcd(_MOST_PER_STAGE, batch_per_device)
    if images % count:
        smaller = max(divisor for divisor in range(1, min(count, images) + 1) if images % divisor == 0)
        raise UsageError(
            f"--micro_batches={count}: the {images} images of a step (--batch_size={batch_per_device} times "
            f"{num_devices} devices) have no {count} equal parts: use --micro_batches={smaller}, or another batch size."
        )
    return Pipelining(stages=stages, micro_batches=count)


def _refuse_in_a_pipeline(given: Mapping[str, Any], variables: Mapping[str, Any], cluster: Cluster | None) -> None:
    if cluster:
        raise UsageError("--pipeline_stages: a pipeline works in one process only: omit the cluster.")
    if variables["variable_update"] != "parameter_server":
        raise UsageError(
            "--pipeline_stages: a pipeline has one copy of each variable, on the device of its stage, so it goes with "
            f"parameter_server (the default), not with {variables['variable_update']}: omit --variable_update."
        )
    for field, (flag, _) in FLAGS.items():
        if getattr(variables["modifiers"], field):
            raise UsageError(f"{flag} is about several towers, and a pipeline is one over all devices: omit one.")
    if given["local_parameter_device"]:
        raise UsageError(
            "--local_parameter_device: in a pipeline, variables are on the device of their stage: omit it."
        )
    if given["xla"] == "jit" or given["xla_compile"]:
        raise UsageError("--xla=jit compiles a tower as a whole, and --pipeline_stages cuts it: omit one.")
    if given["forward_only"]:
        raise UsageError("--pipeline_stages: a pipeline only trains: omit --forward_only.")
