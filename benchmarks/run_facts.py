"""What is known of a run before its first step: how many steps it takes, and what a person should read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.input.catalog import DATA_SETS
from benchmarks.training.run_input import RunInput
from models import specs


def steps_to_measure(config: Config, tower_input: RunInput) -> int:
    """Returns how many steps are measured; an epoch of synthetic images is as long as the real one."""
    if config.num_batches:
        return config.num_batches
    images = (
        tower_input.source.count() if tower_input.source else DATA_SETS[specs.find(config.model).data_name].train_images
    )
    assert config.num_epochs is not None, "the configuration gives either batches or epochs"
    return max(1, round(config.num_epochs * images / config.batch_global))


def facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a person should know of the run before it starts.

    Args:
        config: of the run.
        data: the input in words.
        placement: see `benchmarks.training.placement_table`.
    """
    spec = specs.find(config.model)
    mode = "inference only" if config.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.precision}, {config.data_format}",
        "Data": data,
        "Batch size": f"{config.batch_per_device} per device, {config.batch_global} global",
        "Devices": placement["devices"],
        "Variables": f"{config.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        "Optimizer": f"{config.optimizer}, learning rate {config.learning_rate:g}, "
        f"weight decay {config.weight_decay:g}",
    }
