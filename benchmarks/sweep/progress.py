"""What the user sees before a sweep: the grid, and how long it may take. No TensorFlow."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.config.config import Config
from benchmarks.config.workload import MOST_STEPS, USUAL_STEPS
from benchmarks.console import in_words
from benchmarks.data.sources.data_sets import data_set_of
from benchmarks.machine.hardware import usable_cores
from benchmarks.sweep.grid import Cell, own_flags
from models import specs
from results.record import Record, Status, key_of
from results.summary import manager_of, processes_of
from results.text import counted

# From the start of a process to its first step; on a GPU as on an H200, where XLA compiled ResNet-50 for 40 s.
_START_SECONDS, _START_SECONDS_ON_GPU, _COMPILING_SECONDS = 6.0, 20.0, 40.0
# Rough rates of CNN training in fp32, in 1e9 operations per second.
_GFLOPS_PER_CORE, _GFLOPS_PER_GPU = 100.0, 15_000.0


def estimate_seconds(config: Config, earlier: Sequence[Record], steps: int | None = None) -> float:
    """Returns how long a run may take, its start included; earlier records of its configuration time a step."""
    key = key_of(config.key_fields())
    alike = [record for record in earlier if record.identity.config_key == key and record.status is Status.OK]
    if alike:
        start = statistics.median((r.measurement.startup_seconds or _START_SECONDS) for r in alike)
        step = statistics.median(statistics.median(r.measurement.step_seconds) for r in alike)
    else:
        gflop = specs.find_model(config.workload.model).gflop_per_image * (1 if config.workload.forward_only else 3)
        start, at_once = _START_SECONDS, _GFLOPS_PER_CORE * usable_cores()
        if config.devices.on_gpu:
            start, at_once = _START_SECONDS_ON_GPU, _GFLOPS_PER_GPU * config.devices.num_devices
            start += _COMPILING_SECONDS if config.computing.xla == "jit" else 0.0
        step = gflop * config.batch_global / at_once
    length = config.length
    at_least = 0.0 if steps else min(length.at_least_seconds or 0.0, MOST_STEPS * step)
    planned = steps or length.num_batches
    if not planned and config.data.data_dir:
        planned = USUAL_STEPS  # how many images a directory has is not known here
    if not planned:
        images = data_set_of(specs.find_model(config.workload.model).data_name).train_images
        planned = math.ceil((length.num_epochs or 1) * images / config.batch_global)
    measured = max(planned * step, at_least)
    seconds = start + (length.num_warmup_batches + 2) * step + measured
    return min(seconds, config.length.time_limit_seconds) if config.length.time_limit_seconds else seconds


def grid_lines(
    cells: Sequence[Cell], estimates: Sequence[float], repeats: int, missing: Sequence[tuple[Cell, float]]
) -> list[str]:
    """Returns the grid as lines: each combination with its estimated time, or why it is not run.

    `missing` are the runs, each with its estimated seconds, that earlier records do not make unnecessary.
    """
    common, own = own_flags(cells)
    lines = [f"All: {common}"] if common else []
    left = Counter(cell for cell, _ in missing)
    for number, (cell, seconds, flags) in enumerate(zip(cells, estimates, own, strict=True), start=1):
        if cell.config is None:
            what = f"cannot run: {cell.why_not}"
        elif cell.same_as_before:
            what = "same as an earlier one"
        elif not left[cell]:
            what = "done"
        else:
            what = f"about {in_words(seconds)}"
        lines.append(f"{number:4}  {flags}   {what}")
    runs = sum(cell.runs for cell in cells)
    times = "" if repeats == 1 else f" x {repeats} repeats"
    done = runs * repeats - len(missing)
    what = f"{counted(len(missing), 'run')}, about {in_words(math.fsum(seconds for _, seconds in missing))}"
    if done:
        what = f"{what}; {done} done earlier" if missing else f"nothing to run, {counted(done, 'run')} done earlier"
    lines.append(f"{runs} of {len(cells)} combinations{times}: {what}.\n")
    return lines


def what_is_run(cell: Cell) -> str:
    """Returns a cell in few words; as flags, if it has no configuration."""
    return " ".join(cell.arguments) if cell.config is None else in_few_words(cell.config.to_dict())


def in_few_words(config: Mapping[str, Any]) -> str:
    """Returns a record's configuration in few words."""
    size = f"{config.get('num_devices')} x {config.get('batch_per_device')}"
    return ", ".join(filter(None, (str(config.get("model")), manager_of(config), processes_of(config), size)))
