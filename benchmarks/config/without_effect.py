"""Flags that have no effect in a run. Imports without TensorFlow.

A flag that asks for something that the run would not do, such as a limit of GPU memory on a CPU, is refused by the
module that reads it: its result could be mistaken for one with it. The flags here only set a part that the run does not
have, and scripts for tf_cnn_benchmarks pass them everywhere. They are named in a notice, which the record keeps, and
are then as if they had not been given, so that equal runs have an equal `config_key`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.config.between_options import WHEN_TO_EVALUATE
from benchmarks.config.optimizer_options import OPTIMIZER_FLAGS, Hyperparameters
from benchmarks.errors import UsageError
from variable_mgr.catalog import MANAGERS, REFERENCE_LOOPS, named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """What decides whether a flag has an effect.

    Attributes:
        given: flag values by name; None is not given.
        on_gpu: whether GPUs compute.
        in_cluster: whether there are several processes.
    """

    given: Mapping[str, Any]
    on_gpu: bool
    in_cluster: bool

    @property
    def manager(self) -> str:
        """The variable manager or reference loop."""
        return named(self.given["variable_update"])

    @property
    def uses_shared_devices(self) -> bool:
        """Whether weights are shared, or gradients or weights are averaged, on devices that a flag chooses."""
        if self.manager in REFERENCE_LOOPS:  # which refuse the flag
            return True
        entry = MANAGERS[self.manager]
        if entry.one_copy:
            return not self.in_cluster
        if self.given["forward_only"]:
            return False
        by_nccl = ["use_nccl"] if self.on_gpu and self.manager == "replicated" else []
        names = ("all_reduce_spec", "hierarchical_copy", *by_nccl)
        is_chosen = self.given["variable_update"] == "nccl" or any(self.given[name] for name in names)
        return entry.copies_by_default(in_cluster=self.in_cluster) and not is_chosen


_OF_THE_RATE = tuple(flag.name for flag in OPTIMIZER_FLAGS["Learning rate"])
_CONSTANTS = tuple(field.name for field in dataclasses.fields(Hyperparameters))

_OF_UPDATES = (
    *("optimizer", "momentum", "weight_decay", "weight_decay_on", "lars_trust_coefficient", *_CONSTANTS),
    *("gradient_clip", "gradient_clip_norm", "label_smoothing", *_OF_THE_RATE),
)

# The flags, when they have no effect, and why.
_RULES: tuple[tuple[tuple[str, ...], Callable[[Situation], bool], str], ...] = (
    (
        ("allow_growth", "batchnorm_persistent", "force_gpu_compatible"),
        lambda now: not now.on_gpu,
        "it is about GPUs, and this run uses none",
    ),
    (
        ("local_parameter_device",),
        lambda now: not now.uses_shared_devices,
        "no variables are shared within a process, and no gradients are averaged by copies",
    ),
    (
        _OF_UPDATES,
        lambda now: bool(now.given["forward_only"]),
        "--forward_only updates nothing",
    ),
    (
        (
            *_OF_UPDATES,
            *("num_batches", "num_epochs", "num_warmup_batches", "print_training_accuracy"),
            *("save_model_steps", "save_model_secs", "max_ckpts_to_keep", "stop_at_top_1_accuracy"),
            *WHEN_TO_EVALUATE,
        ),
        lambda now: bool(now.given["eval"]),
        "--eval trains nothing, and takes every image of the validation set once",
    ),
    (("max_ckpts_to_keep",), lambda now: not now.given["train_dir"], "only checkpoints in --train_dir are counted"),
    (
        ("momentum",),
        lambda now: now.given["optimizer"] not in ("momentum", "nesterov", "lars"),
        "only --optimizer=momentum, nesterov and lars read it",
    ),
    (
        ("lars_trust_coefficient",),
        lambda now: now.given["optimizer"] != "lars",
        "only --optimizer=lars reads it",
    ),
    (("weight_decay_on",), lambda now: now.given["weight_decay"] == 0, "--weight_decay=0 acts on nothing"),
    (
        tuple(name for name in _CONSTANTS if name.startswith("rmsprop")),
        lambda now: now.given["optimizer"] != "rmsprop",
        "only --optimizer=rmsprop reads it",
    ),
    (
        tuple(name for name in _CONSTANTS if name.startswith("adam")),
        lambda now: now.given["optimizer"] != "adam",
        "only --optimizer=adam reads it",
    ),
)


# Flags of a way to start a cluster: each acts only with one of these flags, unless it has the harmless value.
_NEEDS: Mapping[str, tuple[tuple[str, ...], int | None]] = {
    "server_port": (("hosts", "cluster"), None),
    "ssh": (("hosts",), False),
    "max_restarts": (("local_cluster", "hosts"), 0),
    "private_network": (("local_cluster",), True),
}


def refuse_without_cluster(given: Mapping[str, Any]) -> None:
    """Refuses flags of a way to start a cluster that is not used.

    Args:
        given: flag values by name; None is not given.

    Raises:
        UsageError: such a flag is given.
    """
    for name, (needed, harmless) in _NEEDS.items():
        if given[name] not in (None, harmless) and not any(given[other] for other in needed):
            others = " or ".join(f"--{other}" for other in needed)
            raise UsageError(f"--{name}={_spelled(given[name])} acts only with {others}: add that, or leave it out.")


def drop(
    given: Mapping[str, Any], usual: Mapping[str, Any], *, on_gpu: bool, in_cluster: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the flag values without those that have no effect, and a sentence on each that was dropped.

    Args:
        given: flag values by name; None is not given.
        usual: the default of each flag; one that is given with it is dropped without a sentence.
        on_gpu: whether GPUs compute.
        in_cluster: whether there are several processes.
    """
    now = Situation(given=given, on_gpu=on_gpu, in_cluster=in_cluster)
    kept, notices = dict(given), []
    for names, holds, because in _RULES:
        for name in names:
            if kept[name] is None or not holds(now):
                continue
            if kept[name] != usual[name]:
                notices.append(f"--{name}={_spelled(kept[name])} has no effect: {because}.")
            kept[name] = None
    return kept, tuple(notices)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
