"""What cannot be asked of training loops that are not this suite's. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.topology.cluster import Cluster
from models import specs
from variable_mgr.catalog import BASELINES

_APPLICATION = "resnet50"
_TAKES = {
    "data_name": ("synthetic",),
    "optimizer": ("sgd", "momentum"),
    "precision": ("fp32", "tf32", "bf16"),
    "xla": ("off",),
}
_REFUSES = {
    "data_dir": "trains on synthetic images only",
    "forward_only": "trains and nothing else",
    "print_training_accuracy": "reports the loss only",
    "local_parameter_device": "decides by itself where variables and gradients are",
    "log_device_placement": "decides by itself where operations run",
    "use_nccl": "decides by itself how gradients are reduced",
    "use_fp16": "does not scale the loss",
    "check_precision": "trains once",
    "xla_compile": "runs without XLA",
    "conv1x1_as_matmul": "has Keras' convolutions",
    "filter_gradients_as_matmul": "has Keras' convolutions",
}


def refuse(given: Mapping[str, Any], cluster: Cluster | None) -> None:
    """Refuses what these loops do not do; modifiers are refused by `variable_mgr.modifiers`, as of every manager.

    Args:
        given: flag values by name; None is not given.
        cluster: the tasks; None for a single process.

    Raises:
        UsageError: something was asked for that would not happen.
    """
    loop = given["variable_update"]
    if given["keras_application"] and (loop, _model(given)) != ("keras_fit", _APPLICATION):
        raise UsageError(
            "--keras_application takes Keras' own ResNet-50 and trains it with Keras' fit: say "
            f"--variable_update=keras_fit --model={_APPLICATION}, or leave it out."
        )
    if loop not in BASELINES:
        return
    if cluster:
        raise UsageError(
            f"--variable_update={loop} works in one process only: leave out the cluster, or say "
            "--variable_update=collective_all_reduce."
        )
    for name, taken in _TAKES.items():
        if given[name] not in (None, *taken):
            raise UsageError(
                f"--{name}={given[name]}: {loop} takes {' or '.join(taken)} only. Say that, or "
                "--variable_update=replicated."
            )
    for name, does in _REFUSES.items():
        if given[name]:
            raise UsageError(f"--{name}: {loop} {does}. Leave it out, or say --variable_update=replicated.")


def _model(given: Mapping[str, Any]) -> str:
    return specs.find(given["model"] or _APPLICATION).name
