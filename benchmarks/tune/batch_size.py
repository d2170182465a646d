"""`--batch_size=auto`: the largest batch that fits into memory, by trial runs in processes of their own."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import config, run_flags
from benchmarks.config.config import Config
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError
from benchmarks.machine import linux
from benchmarks.measure import run_log
from benchmarks.process.signals import raise_on_termination
from benchmarks.record_files import open_store
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner, new_session
from results.record import Record, Status

AUTO = "auto"
_MOST_IMAGES = 4096
_MULTIPLE = 8
# A run may need more memory later than in its first steps, and other processes may need memory, too.
_SHARE_OF_MEMORY = 0.8
# Free GPU memory cannot be predicted: whether the largest batch fits depends on fragmentation.
_HEADROOM_ON_GPUS = 0.1
# Below the results directory: records and logs of the trials.
_DIRECTORY = "batch_trials"
_STEPS: dict[str, Any] = {"num_batches": 2, "num_warmup_batches": 1}
# Groups of flags that a trial does not get: the length of the run, its output, and what it does between its steps.
OF_THE_RUN_ITSELF = ("How long", "Output", "Checkpoints", "Evaluation", "Summaries and profiles")


@dataclasses.dataclass(frozen=True)
class Probed:
    """The result of a trial: whether the batch fits, its peak host memory, and the reason if it does not fit."""

    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


def largest_that_fits(
    first: int, probe: Callable[[int], Probed], room_bytes: float = math.inf, headroom: float = 0.0
) -> tuple[int, str]:
    """Searches for the largest batch, by doubling up to 4096, then by bisection; from 8 on, it is a multiple of 8.

    Args:
        first: images of the first trial.
        probe: tries a batch of so many images.
        room_bytes: host memory that a batch may take, since the host might not survive more: a batch is not tried if
            it would take more, were all of the peak of the trial before to grow with the batch.
        headroom: share of the images that is left free in the end, if a larger batch did not fit.

    Returns:
        How many images fit, 0 if not even one does, and what limits them, in a sentence.
    """
    limit = f"More than {max(first, _MOST_IMAGES)} images are not tried."
    fits, too_many, safe = 0, None, math.inf
    wanted = images = first
    while _rounded(images) > _rounded(fits):
        probed = probe(images)
        if probed.fits:
            fits = images
            if probed.peak_bytes:
                safe = images * room_bytes / probed.peak_bytes
        else:
            too_many, limit = images, f"{images} do not fit: {probed.reason}"
        wanted = _next_trial(fits, too_many)
        images = int(min(wanted, safe))
    if images < wanted:
        limit = f"More than {fits} may not fit into {room_bytes / 2**30:.1f} GiB of host memory."
    if too_many is None or not fits or not headroom:
        return _rounded(fits), limit
    spared = max(1, _rounded(int(fits * (1 - headroom))))
    return spared, limit + (f" {fits} fit, and {headroom:.0%} is left free at least." if spared < fits else "")


def _rounded(images: int) -> int:
    return images - images % _MULTIPLE if images >= _MULTIPLE else images


def _next_trial(fits: int, too_many: int | None) -> int:
    if too_many is None:
        return min(2 * fits, _MOST_IMAGES) if fits < _MOST_IMAGES else 0
    if not fits:
        return too_many // 2
    choices = [images for images in range(fits + 1, too_many) if images < _MULTIPLE or images % _MULTIPLE == 0]
    return choices[len(choices) // 2] if choices else 0


def resolve_batch_size(values: Mapping[str, Any], command: Sequence[str], count_gpus: Callable[[], int]) -> Config:
    """Returns the configuration with the largest batch that fits.

    Raises:
        UsageError: the flags contradict each other, name a cluster, run nothing, or train again in fp32; or the
            results directory cannot be written.
        BenchError: a trial failed for another reason than memory, or not even one image fits.
    """
    usual = config.resolve({**values, "batch_size": None}, count_gpus)
    on_gpu = usual.devices.on_gpu
    alone = {"several processes": usual.processes.cluster, "--print_config": values["print_config"]}
    for what, is_asked in {**alone, "--check_precision": usual.computing.check_precision}.items():
        if is_asked:
            raise UsageError(f"--batch_size=auto runs trials, which do not go with {what}: give a number.")
    begun = time.monotonic()
    open_store(usual.output.output_dir)  # refused before the search, not after it, if it cannot be written
    provenance = new_session(command, on_gpus=on_gpu)
    runner = CellRunner(output_dir=str(Path(usual.output.output_dir) / _DIRECTORY), provenance=provenance)
    raise_on_termination()
    limits = (math.inf, _HEADROOM_ON_GPUS) if on_gpu else (_SHARE_OF_MEMORY * linux.available_bytes(), 0.0)
    probe = _trials(values, runner, count_gpus)
    images, limit = largest_that_fits(usual.workload.batch_per_device, probe, *limits)
    if not images:
        raise OutOfMemoryError(f"--batch_size=auto: not even one image fits. {limit}")
    run_log.leave_out(time.monotonic() - begun)
    resolved = config.resolve({**values, "batch_size": images}, count_gpus)
    notice = f"--batch_size=auto: {images} images per device. {limit} Another batch trains differently."
    return dataclasses.replace(resolved, notices=(*resolved.notices, notice))


def _trials(values: Mapping[str, Any], runner: CellRunner, count_gpus: Callable[[], int]) -> Callable[[int], Probed]:
    """Returns a function that tries a batch of so many images, see `_probed`."""
    of_run = {flag.name for title in OF_THE_RUN_ITSELF for flag in run_flags.RUN_FLAGS[title]}
    passed_on = {name: value for name, value in values.items() if name not in of_run} | _STEPS
    fitted = [math.inf]

    def probe(images: int) -> Probed:
        flags = {**passed_on, "batch_size": images}
        cell = Cell(tuple(run_flags.words(flags)), config.resolve(run_flags.unset(flags), count_gpus))
        record = runner.run_cell(cell, f"--batch_size=auto: trying {images} images")
        probed = _probed(record, images, smallest_that_fits=min(fitted))
        fitted.extend([images] if probed.fits else [])
        return probed

    return probe


def _probed(record: Record, images: int, *, smallest_that_fits: float) -> Probed:
    """Returns the result of a trial; raises on a failure for another reason than memory."""
    reason = f"{record.status}. {record.reason}"
    was_killed = f"signal {signal.SIGKILL:d} " in record.reason or "bad_alloc" in record.reason
    match record.status:
        case Status.OK | Status.INVALID:  # whether the loss is finite does not depend on memory
            return Probed(True, record.measurement.peak_host_memory_bytes)
        case Status.OUT_OF_MEMORY | Status.TIMEOUT:
            return Probed(False, reason=reason)
        case Status.CRASH if was_killed or images > smallest_that_fits:
            return Probed(False, reason=reason)
        case Status.SKIPPED:
            raise UsageError(record.reason)
    raise BenchError(f"--batch_size=auto: the trial with {images} images failed ({record.status}): {record.reason}")
