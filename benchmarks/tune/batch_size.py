"""`--batch_size=auto`: the largest batch that fits into memory, by trial runs in processes of their own."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from benchmarks.config import config, run_flags
from benchmarks.config.config import Config
from benchmarks.console import progress, warn
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError
from benchmarks.machine import linux
from benchmarks.measure import run_log
from benchmarks.process.signals import raise_on_termination
from benchmarks.record_files import open_store
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner, new_session
from benchmarks.trackers import tracker_list
from benchmarks.tune import remembered
from results.record import Record, Status

AUTO = "auto"
_MOST_IMAGES = 4096
_MULTIPLE = 8
# A run may need more memory later than in its first steps, and other processes may need memory, too.
_SHARE_OF_MEMORY = 0.8
# Free GPU memory cannot be predicted: whether the largest batch fits depends on fragmentation.
_HEADROOM_ON_GPUS = 0.1
# Training again in fp32 takes up to twice the memory, which the peak of a trial does not include.
_CHECK_FACTOR = 2
# Below the results directory: records and logs of the trials.
_DIRECTORY = "batch_trials"
_STEPS: dict[str, Any] = {"num_batches": 2, "num_warmup_batches": 1}
# Flags that a trial does not get: the length of the run, its output, and what it does between its steps.
_NOT_PASSED_ON = (
    *("num_epochs", "time_limit_seconds", "output_dir", "output_format", "display_every"),
    *(
        flag.name
        for title in ("Checkpoints", "Evaluation", "Summaries and profiles")
        for flag in run_flags.RUN_FLAGS[title]
    ),
    *tracker_list.FLAGS,
)


@dataclasses.dataclass(frozen=True)
class Probed:
    """The result of a trial: whether the batch fits, its peak host memory, and the reason if it does not fit."""

    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search: images that fit (0, not even one, is not kept), the limit in a sentence, peak memory."""

    largest: Annotated[int, msgspec.Meta(ge=1)]
    limit: str
    peak_bytes: int | None = None


def largest_that_fits(
    first: int, probe: Callable[[int], Probed], room_bytes: float = math.inf, headroom: float = 0.0
) -> Found:
    """Searches for the largest batch, a multiple of 8 if it is 8 or more: by doubling up to 4096, then by bisection.

    Args:
        first: images of the first trial.
        probe: tries a batch of so many images.
        room_bytes: host memory that a batch may take, since the host might not survive more: a batch is not tried if
            the peaks of earlier trials, extrapolated linearly, exceed it.
        headroom: share of the images that is left free in the end, if a larger batch did not fit.
    """
    peaks: dict[int, int] = {}
    limits: dict[int, str] = {}

    def try_batch(images: int) -> bool:
        probed = probe(images)
        if not probed.fits:
            limits[images] = f"{images} do not fit: {probed.reason}"
        elif probed.peak_bytes is not None:
            peaks[images] = probed.peak_bytes
        return probed.fits

    fits, too_many, images = 0, None, first
    while images:
        if _expected_bytes(peaks, images) > room_bytes and len(peaks) == 1 and (smaller := min(peaks) // 2):
            try_batch(smaller)  # one peak alone does not show what part of it grows with the batch
        expected = _expected_bytes(peaks, images)
        if expected > room_bytes:
            needs, has = (f"{size / 2**30:.1f} GiB" for size in (expected, room_bytes))
            limits[images] = f"{images} would take about {needs} of host memory, and {has} may be used."
        if expected <= room_bytes and try_batch(images):
            fits = images
        else:
            too_many = images
        images = _next_trial(fits, too_many)
    if too_many is None:
        return Found(fits, f"More than {fits} images are not tried.", peaks.get(fits))
    spared, limit = int(fits * (1 - headroom)), limits[too_many]
    spared = max(1, spared - spared % _MULTIPLE if spared >= _MULTIPLE else spared)
    if spared < fits:
        limit += f" {fits} fit, and {headroom:.0%} is left free at least."
    return Found(min(spared, fits), limit, peaks.get(fits))


def _expected_bytes(peaks: Mapping[int, int], images: int) -> float:
    """Returns the peak by the two largest trials; by a single one, as if all of its memory grew with the batch."""
    if not peaks:
        return 0.0
    *_, before, last = 0, *sorted(peaks)
    slope = (peaks[last] - peaks.get(before, 0)) / (last - before)
    return peaks[last] + max(0.0, slope) * (images - last)


def _next_trial(fits: int, too_many: int | None) -> int:
    if too_many is None:
        return min(2 * fits, _MOST_IMAGES) if fits < _MOST_IMAGES else 0
    if not fits:
        return too_many // 2
    choices = [images for images in range(fits + 1, too_many) if images < _MULTIPLE or images % _MULTIPLE == 0]
    return choices[len(choices) // 2] if choices else 0


def resolve_batch_size(values: Mapping[str, Any], command: Sequence[str], count_gpus: Callable[[], int]) -> Config:
    """Returns the configuration with the largest batch that fits, from the cache or from a search.

    Raises:
        UsageError: the flags contradict each other, name a cluster, or run nothing and the cache has no answer; or
            the results directory cannot be written.
        BenchError: a trial failed for another reason than memory, or not even one image fits.
    """
    usual = config.resolve({**values, "batch_size": None}, count_gpus)
    on_gpu, is_checked = usual.devices.on_gpu, usual.computing.check_precision
    if usual.processes.cluster:
        raise UsageError("--batch_size=auto runs trials in one process: with several processes, give a number.")
    provenance = new_session(command, on_gpus=on_gpu)
    question = {"what": "batch_size", "check_precision": is_checked, **usual.key_fields()}
    key = remembered.key(provenance.identity({}), question)
    answer = _cached(key, on_gpu=on_gpu)
    if answer is None:
        if values["print_config"]:
            raise UsageError("--batch_size=auto runs trials, and --print_config runs nothing: give a number.")
        begun = time.monotonic()
        open_store(usual.output.output_dir)  # refused before the search, not after it, if it cannot be written
        runner = CellRunner(output_dir=str(Path(usual.output.output_dir) / _DIRECTORY), provenance=provenance)
        raise_on_termination()
        probe = _trials(values, runner, count_gpus, is_checked=is_checked)
        limits = (math.inf, _HEADROOM_ON_GPUS) if on_gpu else (_SHARE_OF_MEMORY * linux.available_bytes(), 0.0)
        answer = largest_that_fits(usual.workload.batch_per_device, probe, *limits)
        if not answer.largest:
            raise OutOfMemoryError(f"--batch_size=auto: not even one image fits. {answer.limit}")
        run_log.leave_out(time.monotonic() - begun)
        remembered.FILE.put(key, {"answer": dataclasses.asdict(answer)})
    resolved = config.resolve({**values, "batch_size": answer.largest}, count_gpus)
    notice = f"--batch_size=auto: {answer.largest} images per device. {answer.limit} Another batch trains differently."
    return dataclasses.replace(resolved, notices=(*resolved.notices, notice))


def _cached(key: str, *, on_gpu: bool) -> Found | None:
    """Returns the cached answer; None if there is none, or if it takes more memory than is free now."""
    held = remembered.FILE.saved(key, remembered.Answered[Found])
    if held is None:
        return None
    time_utc, images, peak, free = held.time_utc, held.answer.largest, held.answer.peak_bytes, linux.available_bytes()
    if not on_gpu and peak is not None and peak > free:
        warn(
            f"--batch_size=auto: {images} images fitted on {time_utc[:10]} with {peak / 2**30:.1f} GiB of host memory, "
            f"but only {free / 2**30:.1f} GiB are free now: searching again."
        )
        return None
    return Found(images, f"Found on {time_utc[:10]} ({remembered.FILE.path()}; remove the file to search again).", peak)


def _trials(
    values: Mapping[str, Any], runner: CellRunner, count_gpus: Callable[[], int], *, is_checked: bool
) -> Callable[[int], Probed]:
    """Returns a function that tries a batch of so many images, see `_probed`."""
    passed_on = {name: value for name, value in values.items() if name not in _NOT_PASSED_ON} | _STEPS
    fitted = [math.inf]

    def probe(images: int) -> Probed:
        flags = {**passed_on, "batch_size": images}
        cell = Cell(tuple(run_flags.words(flags)), config.resolve(run_flags.unset(flags), count_gpus))
        progress.begin(f"--batch_size=auto: trying {images} images", measured=True)
        record = runner.run_cell(cell)
        progress.end()
        probed = _probed(record, images, is_checked=is_checked, smallest_that_fits=min(fitted))
        fitted.extend([images] if probed.fits else [])
        peak = f", {probed.peak_bytes / 2**30:.1f} GiB of host memory at most" if probed.peak_bytes else ""
        warn(f"--batch_size=auto: {images} {'fit' + peak if probed.fits else 'do not fit: ' + probed.reason}")
        return probed

    return probe


def _probed(record: Record, images: int, *, is_checked: bool, smallest_that_fits: float) -> Probed:
    """Returns the result of a trial, which trained again in fp32 if `is_checked`; raises on another failure."""
    reason = f"{record.status}. {record.reason}"
    was_killed = f"signal {signal.SIGKILL:d} " in record.reason or "bad_alloc" in record.reason
    match record.status:
        case Status.OK if is_checked and not record.measurement.fp32_losses:
            return Probed(False, reason="training again in fp32 (--check_precision) failed.")
        case Status.OK | Status.INVALID:  # whether the loss is finite does not depend on memory
            peak = record.measurement.peak_host_memory_bytes
            return Probed(True, peak and peak * (_CHECK_FACTOR if is_checked else 1))
        case Status.OUT_OF_MEMORY | Status.TIMEOUT:
            return Probed(False, reason=reason)
        case Status.CRASH if was_killed or images > smallest_that_fits:
            return Probed(False, reason=reason)
        case Status.SKIPPED:
            raise UsageError(record.reason)
    raise BenchError(f"--batch_size=auto: the trial with {images} images failed ({record.status}): {record.reason}")
