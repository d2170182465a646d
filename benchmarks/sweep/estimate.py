"""How long a run will take: from earlier runs of the same configuration, or from a rough guess. No TensorFlow."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from typing import TypeVar

from benchmarks.config.config import Config
from benchmarks.machine.hardware import usable_cores
from models import specs
from results.record import Record, Status, key_of

T = TypeVar("T", bound=Hashable)

_START_SECONDS = 6.0
# Rough rates of CNN training in fp32, in 1e9 operations per second.
_GFLOPS_PER_CORE, _GFLOPS_PER_GPU = 100.0, 15_000.0
_MARGIN = 1.1


def estimate_seconds(config: Config, earlier: Sequence[Record], steps: int | None = None) -> float:
    """Returns how long a run may take, its start included.

    Args:
        config: of the run.
        earlier: records; those of its configuration time a step.
        steps: that are measured; None: as configured.
    """
    key = key_of(config.key_fields())
    alike = [record for record in earlier if record.identity.config_key == key and record.status is Status.OK]
    if alike:
        start = statistics.median((r.measurement.startup_seconds or _START_SECONDS) for r in alike)
        step = statistics.median(statistics.median(r.measurement.step_seconds) for r in alike)
    else:
        gflop = specs.find_model(config.workload.model).gflop_per_image * (1 if config.workload.forward_only else 3)
        at_once = _GFLOPS_PER_CORE * usable_cores()
        if config.devices.on_gpu:
            at_once = _GFLOPS_PER_GPU * config.devices.num_devices
        start, step = _START_SECONDS, gflop * config.batch_global / at_once
    steps = (steps or config.length.num_batches or 100) + config.length.num_warmup_batches + 2
    seconds = start + steps * step
    return min(seconds, config.length.time_limit_seconds) if config.length.time_limit_seconds else seconds
