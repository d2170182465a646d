"""What the text output shows of a run before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.training import pipeline
from models import specs


def shown_facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the text output shows of a run before it starts; `data` describes the input."""
    workload, variables, training = config.workload, config.variables, config.training
    spec = specs.find_model(workload.model)
    mode = "evaluation" if workload.eval_only else "inference only" if workload.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    parts = placement.get("pipeline")
    batch = f"{workload.batch_per_device} per device, {config.batch_global} global"
    if parts:
        batch += f", in {parts['micro_batches']} micro-batches of {parts['images_per_micro_batch']}"
    seen = " that this worker sees" if config.processes.num_workers > 1 else ""
    rate = training.schedule or f"learning rate {training.learning_rate:g}"
    chosen = {
        "precision": config.computing.precision,
        "batch_per_device": f"{workload.batch_per_device}",
        "all_reduce_spec": variables.modifiers.all_reduce_spec,
    }
    why = {name: f" ({value}: {config.reasons[name]})" for name, value in chosen.items() if name in config.reasons}
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.computing.precision}, {workload.data_format}"
        + why.get("precision", ""),
        "Data": data,
        "Batch size": batch + why.get("batch_per_device", ""),
        "Devices": placement["devices"],
        "Variables": f"{variables.variable_update}: {placement['manager']}" + why.get("all_reduce_spec", ""),
        "Placement": f"{placement['variables']} variables{seen}; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        **(pipeline.stage_facts(parts) if parts else {}),
        "Optimizer": f"{training.optimizer}, {rate}, weight decay {training.weight_decay:g}",
    }
