"""Which variable manager a run has, and how it works. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchmarks.devices import options
from benchmarks.errors import UsageError
from benchmarks.machine.hardware import Inventory
from benchmarks.machine.provenance import installed
from benchmarks.option import Flag, filled, flags_of, option
from benchmarks.process.tensorflow_setup import Devices
from variable_mgr import catalog
from variable_mgr.catalog import MANAGERS, named
from variable_mgr.modifiers import LOCAL_SGD_STEPS, NCCL_GROUPED_BYTES, Modifiers
from variable_mgr.reductions.all_reduce_spec import canonical

_MANAGERS_IN_WORDS = "; ".join(
    f"{name} is {manager} with {flag}" for name, (manager, flag) in catalog.SHORTHANDS.items()
)
_NO_HOROVOD = (
    "Horovod is not used: use --variable_update=collective_all_reduce, which also averages gradients over all workers. "
    "Start it with `mpirun -np N ... --cluster=mpi` or `srun ... --cluster=slurm`; for several GPUs of one host, a "
    "single process with --num_gpus is enough."
)
_MOST_PER_STAGE = 4  # by default; then a pipeline is idle for at most a fifth of a step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipelining:
    """A model in stages, one per device, and the number of equal parts into which a step divides its images."""

    stages: int
    micro_batches: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variables:
    """The part of a configuration on variables and gradients.

    Attributes:
        shared_on: `cpu`: shared variables and copied gradients are on the host; `gpu`: spread over the devices that
            compute, GPUs or CPUs.
        pipeline: None: every tower has the whole model.
        torch_version: of the PyTorch that trains; None: TensorFlow does.
    """

    variable_update: str = option(
        "how variables are placed, read and updated (the variable manager); "
        f"{_MANAGERS_IN_WORDS}; reference training loops: {', '.join(catalog.REFERENCE_LOOPS)}",
        default=catalog.DEFAULT,
        choices=(*catalog.MANAGERS, *catalog.SHORTHANDS, *catalog.REFERENCE_LOOPS),
        gone=(("horovod", _NO_HOROVOD),),
    )
    keras_application: bool = option(
        "with keras_fit: train keras.applications.ResNet50 instead of this suite's resnet50", default=False
    )
    torch_compile: bool = option("with pytorch and pytorch_ddp: compile the model with torch.compile", default=False)
    shared_on: Literal["cpu", "gpu"] = option(
        "where shared variables are stored and copied gradients are averaged; cpu: the host; gpu: all devices",
        flag="local_parameter_device",
        default_text="gpu on GPUs, cpu on a CPU",
    )
    modifiers: Modifiers = Modifiers()
    pipeline: Pipelining | None = None
    torch_version: str | None = None


VARIABLE_FLAGS = (
    *flags_of(Variables),
    Flag(
        "cross_replica_sync",
        bool,
        "with parameter_server: train synchronously; else each tower applies its own gradient without waiting",
        default=True,
    ),
    Flag("sync", bool, "the same as --cross_replica_sync", default=True, same_as="cross_replica_sync"),
    Flag("async", bool, "the same as --nosync", same_as="cross_replica_sync", stands_for=(False, True)),
    Flag(
        "variable_consistency",
        str,
        "strong: apply the gradients of this step; relaxed: those of the previous step",
        ("strong", "relaxed"),
        default="strong",
    ),
    Flag(
        "hierarchical_copy",
        bool,
        "the same as --all_reduce_spec=hierarchical",
        same_as="all_reduce_spec",
        stands_for=("hierarchical", ""),
    ),
    Flag("use_nccl", bool, "with replicated: reduce gradients with NCCL, as spelled in the guide of 2017"),
    Flag(
        "pipeline_stages",
        int,
        "split the model into this many stages, one per device; images pass in micro-batches",
        at_least=1,
    ),
    Flag(
        "micro_batches",
        int,
        "micro-batches per step of a pipeline; must divide the images of a step, batch_size times devices",
        default="4, 2 or 1 per stage: the largest that divides batch_size",
        at_least=1,
    ),
)


def decide(
    given: Mapping[str, Any],
    devices: Devices,
    *,
    in_cluster: bool,
    owns_gpus: bool,
    batch_per_device: int,
    assumed: Inventory | None = None,
) -> tuple[Variables, str, tuple[str, ...]]:
    """Returns the manager and its modifiers, why gradients are reduced so, and sentences on how flags were understood.

    The reason is empty unless GPUs decide. With `owns_gpus`, every tower has a whole GPU of its own. `assumed` GPUs,
    and what connects them, stand for those of this machine.

    Raises:
        UsageError: flags contradict each other, or the manager cannot run on these devices.
    """
    manager = named(given["variable_update"])
    supported = MANAGERS[manager].modifiers if manager in MANAGERS else ()
    requested, notices = _requested_reduction(given, devices)
    shared_on = given["local_parameter_device"] or devices.device
    suggested, why = None, ""
    if manager == "replicated" and owns_gpus and not in_cluster and _leaves_reduction_open(given):
        suggested, why = _reduction_by_links(options.linked_gpus(devices, assumed))
    wanted = requested or suggested
    spec = _reduction(wanted, manager, given, shared_on, in_cluster=in_cluster, owns_gpus=owns_gpus)
    if "nccl" in (spec or "") and not owns_gpus and devices.on_gpu and devices.virtual_gpus == 1:
        raise UsageError(
            "--all_reduce_spec=nccl: NCCL needs a whole GPU for each tower, and here one is divided (MIG), or workers "
            "share GPUs: use another reduction, or give each worker its own with --gpus or --local_cluster."
        )
    modifiers = filled(
        Modifiers,
        given,
        asynchronous=given["cross_replica_sync"] is False,
        staged_vars=bool(given["staged_vars"]) or given["variable_update"] == "staged",
        relaxed_consistency=given["variable_consistency"] == "relaxed",
        all_reduce_spec=spec,
        agg_small_grads_max_bytes=_largest_grouped(given, spec, supported),
        local_sgd_steps=given["local_sgd_steps"] or (LOCAL_SGD_STEPS if "local_sgd_steps" in supported else 0),
    )
    if given["agg_small_grads_max_group"] and not modifiers.agg_small_grads_max_bytes:
        raise UsageError("--agg_small_grads_max_group acts only with --agg_small_grads_max_bytes: add it.")
    pipeline = _pipeline(given, devices.num_devices, batch_per_device)
    variables = filled(
        Variables,
        given,
        variable_update=manager,
        shared_on=shared_on,
        modifiers=modifiers,
        pipeline=pipeline,
        torch_version=_torch_version(manager) if manager in catalog.PYTORCH_LOOPS else None,
    )
    return variables, why * (devices.num_devices > 1), notices


def _torch_version(loop: str) -> str:
    version = installed("torch")
    if version is None:
        raise UsageError(
            f"--variable_update={loop} needs the package 'torch', which is not installed: run "
            f"{sys.executable} -m pip install 'cnn-train-bench[torch]', or use another --variable_update."
        )
    return version


def _leaves_reduction_open(given: Mapping[str, Any]) -> bool:
    """Returns whether gradients are reduced, and no flag names how or excludes NCCL."""
    by_flag = ("all_reduce_spec", "use_nccl", "local_parameter_device", "forward_only", "eval")
    is_open = all(given[name] is None for name in by_flag) and given["variable_update"] == "replicated"
    return is_open and given["compact_gradient_dtype"] != "bfloat16"


def _reduction_by_links(gpus: Inventory) -> tuple[str | None, str]:
    """Returns the reduction that the links between GPUs suggest, None for copies between them, and why.

    All that may be used count, not only those that are: the curve of a scaling has one reduction.
    """
    if not gpus.connections:
        return None, "as tf_cnn_benchmarks: the links between the GPUs are not known here"
    if gpus.has_nvlink:
        return "nccl", "NVLink between all GPUs; --all_reduce_spec=psgpu as tf_cnn_benchmarks"
    return None, "no NVLink between all GPUs, so as tf_cnn_benchmarks; --all_reduce_spec=nccl or another may be faster"


def _reduction(
    requested: str | None, manager: str, given: Mapping[str, Any], shared_on: str, *, in_cluster: bool, owns_gpus: bool
) -> str | None:
    """Returns the reduction to use if `requested` is what flags name; None is the manager's own."""
    entry = MANAGERS.get(manager)
    if entry is None or "all_reduce_spec" not in entry.modifiers:
        return requested
    if not entry.reductions:
        return requested or entry.default_reduction(in_cluster=in_cluster, on_host=shared_on == "cpu")
    if entry.copies_by_default(in_cluster=in_cluster):
        return requested
    reduces = not (given["forward_only"] or given["eval"])
    if requested is None and owns_gpus and reduces:
        return "nccl"
    return None if requested == "collective" else requested


def _largest_grouped(given: Mapping[str, Any], spec: str | None, supported: Sequence[str]) -> int:
    """Returns up to how many bytes gradients travel in groups; by default none, or under NCCL alone most."""
    is_nccl = spec is not None and "nccl" in spec and ":" not in spec
    is_chosen = any(given[name] is not None for name in ("agg_small_grads_max_bytes", "gradient_repacking"))
    if is_nccl and not is_chosen and "agg_small_grads_max_bytes" in supported:
        return NCCL_GROUPED_BYTES
    return given["agg_small_grads_max_bytes"] or 0


def _requested_reduction(given: Mapping[str, Any], devices: Devices) -> tuple[str | None, tuple[str, ...]]:
    """Returns the requested reduction, whichever flag names it, and notices about it."""
    manager = named(given["variable_update"])
    by_flag = {
        "--all_reduce_spec": given["all_reduce_spec"] and canonical(given["all_reduce_spec"]),
        "--variable_update=nccl": "nccl" if given["variable_update"] == "nccl" else None,
        "--use_nccl=true": "nccl" if given["use_nccl"] else None,
    }
    by_flag = {flag: spec for flag, spec in by_flag.items() if spec}
    if len(set(by_flag.values())) > 1:
        raise UsageError(f"{' and '.join(by_flag)} each choose a reduction: use one of them.")
    if list(by_flag) != ["--use_nccl=true"]:
        return next(iter(by_flag.values()), None), ()
    if manager != "replicated":
        return None, (f"--use_nccl=true has no effect under {manager}, only under replicated.",)
    if devices.on_gpu and devices.virtual_gpus == 1:
        return "nccl", ("--use_nccl=true: understood as --all_reduce_spec=nccl.",)
    return None, (
        "--use_nccl=true: NCCL works between physical GPUs only, so gradients are averaged by copies to "
        "--local_parameter_device instead.",
    )


def _pipeline(given: Mapping[str, Any], num_devices: int, batch_per_device: int) -> Pipelining | None:
    """Returns the stages of a pipeline and the parts of a step.

    Raises:
        UsageError: there is not one device per stage, or the images have no so many equal parts.
    """
    stages = given["pipeline_stages"]
    if not stages:
        return None
    if stages != num_devices:
        raise UsageError(
            f"--pipeline_stages={stages} needs {stages} devices, one per stage, and --num_gpus gives {num_devices}: "
            f"use --num_gpus={stages}."
        )
    images = num_devices * batch_per_device
    count = given["micro_batches"] or stages * math.gcd(_MOST_PER_STAGE, batch_per_device)
    if images % count:
        smaller = max(divisor for divisor in range(1, min(count, images) + 1) if images % divisor == 0)
        raise UsageError(
            f"--micro_batches={count}: the {images} images of a step (--batch_size={batch_per_device} times "
            f"{num_devices} devices) have no {count} equal parts: use --micro_batches={smaller}, or another batch size."
        )
    return Pipelining(stages=stages, micro_batches=count)


def shares_devices(given: Mapping[str, Any], devices: Devices, *, in_cluster: bool) -> bool:
    """Returns whether weights are shared, or gradients or weights are averaged, on devices that a flag chooses."""
    entry = MANAGERS.get(named(given["variable_update"]))
    if entry is None:  # reference loops refuse the flag
        return True
    if entry.one_copy:
        return not in_cluster
    copies = not given["forward_only"] and entry.copies_by_default(in_cluster=in_cluster)
    return copies and _requested_reduction(given, devices)[0] is None


def refuse_reference_loop(verb: str, name: str | None) -> None:
    """Raises UsageError if a verb about variable managers gets a reference training loop."""
    if name in catalog.REFERENCE_LOOPS:
        raise UsageError(
            f"{verb} knows variable managers, and {name} is a reference training loop: omit it, or name one "
            f"of {', '.join(MANAGERS)}."
        )
