"""How long a run will take: from earlier runs of the same configuration, or a rough guess. No TensorFlow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.config.config import Config
from benchmarks.system.hardware import usable_cores
from models import specs
from results.record import Record, Status, key_of

_START_SECONDS = 6.0
# Rough: what a CPU core and a GPU make of a CNN's training in fp32, in 1e9 operations per second.
_GFLOPS_PER_CORE, _GFLOPS_PER_GPU = 100.0, 15_000.0


def estimate_seconds(config: Config, earlier: Sequence[Record]) -> float:
    """Returns how long a run may take, its start included.

    Args:
        config: of the run.
        earlier: records, of whatever runs; those of this configuration give the time of a step.
    """
    key = key_of(config.key_fields())
    alike = [record for record in earlier if record.identity.config_key == key and record.status is Status.OK]
    if alike:
        start = statistics.median((r.measurement.startup_seconds or _START_SECONDS) for r in alike)
        step = statistics.median(statistics.median(r.measurement.step_seconds) for r in alike)
    else:
        gflop = specs.find(config.model).gflop_per_image * (1 if config.forward_only else 3)
        at_once = _GFLOPS_PER_GPU * config.num_devices if config.device == "gpu" else _GFLOPS_PER_CORE * usable_cores()
        start, step = _START_SECONDS, gflop * config.batch_global / at_once
    steps = (config.num_batches or 100) + config.num_warmup_batches + 2
    seconds = start + steps * step
    return min(seconds, config.time_limit_seconds) if config.time_limit_seconds else seconds


def in_words(seconds: float) -> str:
    """Returns a duration as a person says it."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
