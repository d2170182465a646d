"""The largest batch that fits into memory: doubling until one does not, then halving what is between. Runs nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import config, run_flags
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError
from benchmarks.measure import run_log
from benchmarks.process import subprocesses
from benchmarks.process.signals import raise_on_sigterm
from benchmarks.record_files import open_store
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.system import cache, linux
from benchmarks.system.provenance import Provenance, of_this_run
from results.record import Record, Status

MOST_IMAGES = 4096
_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Probed:
    """What came of trying a batch: whether it fits, the host memory that it took at most, and why it does not fit."""

    fits: bool
    peak_bytes: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
        largest: images that fit; 0 if not even one does.
        limit: why it is not more, as a sentence.
        peak_bytes: host memory that the largest took at most; None if that is not known.
    """

    largest: int
    limit: str
    peak_bytes: int | None = None


def largest_that_fits(
    first: int,
    probe: Callable[[int], Probed],
    *,
    room_bytes: float | None = None,
    most: int = MOST_IMAGES,
    headroom: float = 0.0,
) -> Found:
    """Looks for the largest batch, a multiple of 8 if that many fit.

    Args:
        first: images to begin with.
        probe: tries a batch of so many images.
        room_bytes: host memory that a batch may take; where earlier peaks, drawn on in a straight line, lead above it,
            nothing is tried, since the host might not survive it. None if the host's memory is not at stake.
        most: images that are tried at most, unless `first` is more.
        headroom: share of the images that is left out in the end, if one more would not fit.
    """
    search = _Search(probe, math.inf if room_bytes is None else room_bytes)
    fits, too_many = 0, first
    if search.fits(first):
        fits, too_many = first, min(2 * first, most)
        while fits < most and search.fits(too_many):
            fits, too_many = too_many, min(2 * too_many, most)
        if fits >= most:
            return Found(fits, f"More than {fits} images are not tried.", search.peaks.get(fits))
    while not fits and too_many > 1:
        middle = too_many // 2
        fits, too_many = (middle, too_many) if search.fits(middle) else (0, middle)
    while middle := _between(fits, too_many):
        fits, too_many = (middle, too_many) if search.fits(middle) else (fits, middle)
    return _spared(Found(fits, search.limits[too_many], search.peaks.get(fits)), headroom)


def _spared(found: Found, headroom: float) -> Found:
    """Returns less than was found, to leave a run some room: a multiple of 8 if that many are left, and at least 1."""
    images = int(found.largest * (1 - headroom))
    images -= images % _MULTIPLE if images >= _MULTIPLE else 0
    if found.largest < 2 or images == found.largest:
        return found
    why = f"{found.limit} {found.largest} fit, and {headroom:.0%} is left free at least."
    return dataclasses.replace(found, largest=max(1, images), limit=why)


def _between(fits: int, too_many: int) -> int:
    """Returns the middle one of the numbers between that come into question; 0 if there are none."""
    choices = [images for images in range(fits + 1, too_many) if images < _MULTIPLE or images % _MULTIPLE == 0]
    return choices[len(choices) // 2] if fits and choices else 0


class _Search:
    """Tries batches, and remembers what they took and why they did not fit."""

    def __init__(self, probe: Callable[[int], Probed], room_bytes: float) -> None:
        self._probe = probe
        self._room_bytes = room_bytes
        self.peaks: dict[int, int] = {}
        self.limits: dict[int, str] = {}

    def fits(self, images: int) -> bool:
        """Tries a batch, unless it is foreseen not to fit."""
        if self._is_too_much(images) and len(self.peaks) == 1 and (smaller := min(self.peaks) // 2):
            self._try(smaller)  # what does not grow with the batch shows only in two peaks
        if self._is_too_much(images):
            self.limits[images] = (
                f"{images} would take about {self._expected_bytes(images) / 2**30:.1f} GiB of host memory, and "
                f"{self._room_bytes / 2**30:.1f} GiB may be used."
            )
            return False
        return self._try(images)

    def _try(self, images: int) -> bool:
        probed = self._probe(images)
        if not probed.fits:
            self.limits[images] = f"{images} do not fit: {probed.reason}"
        elif probed.peak_bytes is not None:
            self.peaks[images] = probed.peak_bytes
        return probed.fits

    def _is_too_much(self, images: int) -> bool:
        return self._expected_bytes(images) > self._room_bytes

    def _expected_bytes(self, images: int) -> float:
        """Returns the peak by the two largest batches that were tried; from one alone, as if all of it grew."""
        if not self.peaks:
            return 0.0
        *before, last = sorted(self.peaks)
        if not before:
            return self.peaks[last] * images / last
        slope = (self.peaks[last] - self.peaks[before[-1]]) / (last - before[-1])
        return self.peaks[last] + max(0.0, slope) * (images - last)


AUTO = "auto"
# A run may take more later than in its first steps, and others may want memory, too.
_SHARE_OF_MEMORY = 0.8
# On a GPU, what is free cannot be foreseen: the largest batch fits by chance, as memory comes in pieces.
_HEADROOM_ON_GPUS = 0.1
# Training again in fp32 takes up to twice as much, and is not in the peak that a trial tells of.
_CHECK_FACTOR = 2
# Where in the results directory the trials' records and logs are.
_DIRECTORY = "batch_trials"
_STEPS: dict[str, Any] = {"num_batches": 2, "num_warmup_batches": 1}
# What a trial is not told: how long the run is to be, and where it leaves what.
_NOT_TOLD = ("num_epochs", "time_limit_seconds", "output_dir", "output_format", "display_every")
PROGRAM = (sys.executable, str(subprocesses.RUN_BENCH))


def resolve(
    values: Mapping[str, Any],
    command: Sequence[str],
    count_gpus: Callable[[], int],
    program: Sequence[str] = PROGRAM,
) -> Config:
    """Returns the configuration with the largest batch that fits, as it is remembered or found now.

    Args:
        values: of the flags of `run`, with `batch_size` auto.
        command: the words of the command line.
        count_gpus: asks how many GPUs there are.
        program: starts a trial, given its flags.

    Raises:
        UsageError: the flags do not go together, or name a cluster, or ask to run nothing while nothing is remembered,
            or results cannot be kept.
        BenchError: a trial failed for another reason than memory, or not even one image fits.
    """
    usual = config.resolve({**values, "batch_size": None}, count_gpus)
    if usual.cluster:
        raise UsageError("--batch_size=auto tries batches in one process: with several, give a number.")
    provenance = of_this_run(command, on_gpus=usual.device == "gpu", session_id=uuid.uuid4().hex[:12])
    wanted = cache.key(provenance.identity({}), _question(usual))
    known = _remembered(wanted, usual)
    if known is None and values["print_config"]:
        raise UsageError("--batch_size=auto is found by running, and --print_config runs nothing: give a number.")
    if known is None:
        begun = time.monotonic()
        found = _search(values, usual, _runner(usual, program, provenance), count_gpus)
        run_log.leave_out(time.monotonic() - begun)
        cache.keep(wanted, dataclasses.asdict(found))
    images, limit = (found.largest, found.limit) if known is None else known
    resolved = config.resolve({**values, "batch_size": images}, count_gpus)
    notice = f"--batch_size=auto: {images} images per device. {limit} Another batch trains differently."
    return dataclasses.replace(resolved, notices=(*resolved.notices, notice))


def _runner(usual: Config, program: Sequence[str], provenance: Provenance) -> CellRunner:
    """Returns what runs trials; the results directory is opened, which is rather refused now than after the search."""
    open_store(usual.output_dir)
    directory = str(Path(usual.output_dir) / _DIRECTORY)
    return CellRunner(
        program=program,
        store=open_store(directory),
        output_dir=directory,
        provenance=provenance,
        first_to_be_killed=True,
    )


def _question(usual: Config) -> dict[str, Any]:
    """Returns what an answer depends on, beside the hardware and the software."""
    return {"what": "batch_size", "check_precision": usual.check_precision, **usual.key_fields()}


def _remembered(wanted: str, usual: Config) -> tuple[int, str] | None:
    """Returns the images and a sentence; None if nothing is remembered, or if it would take more than is free now."""
    found = cache.find(wanted)
    if found is None:
        return None
    time_utc, answer = found
    images = answer.get("largest")
    if not isinstance(images, int) or images < 1:
        cache.FILE.ignore(ValueError(f"a batch of {images!r}"))
        return None
    peak, free = answer.get("peak_bytes"), linux.available_bytes()
    if usual.device == "cpu" and isinstance(peak, int) and peak > free:
        warn(
            f"--batch_size=auto: {images} fitted on {time_utc[:10]} and took {peak / 2**30:.1f} GiB of host memory, "
            f"and {free / 2**30:.1f} GiB are free now: looking anew."
        )
        return None
    return images, f"Found on {time_utc[:10]} ({cache.FILE.path()}; remove the file to search anew)."


def _search(values: Mapping[str, Any], usual: Config, runner: CellRunner, count_gpus: Callable[[], int]) -> Found:
    told = {name: value for name, value in values.items() if name not in _NOT_TOLD} | _STEPS
    numbers, fitted = itertools.count(), [math.inf]

    def probe(images: int) -> Probed:
        given = {**told, "batch_size": images}
        chosen = config.resolve(run_flags.unset(given), count_gpus)
        record = runner.run(Cell(tuple(run_flags.words(given)), chosen), next(numbers))
        if record.status is Status.CRASH and images > min(fitted):  # with less it went well
            probed = Probed(False, reason=f"{record.status}. {record.reason}")
        else:
            probed = _probed(record, images, is_checked=usual.check_precision)
        fitted.extend([images] if probed.fits else [])
        peak = f", {probed.peak_bytes / 2**30:.1f} GiB of host memory at most" if probed.peak_bytes else ""
        warn(f"--batch_size=auto: {images} {'fit' + peak if probed.fits else 'do not fit: ' + probed.reason}")
        return probed

    raise_on_sigterm()
    on_host = usual.device == "cpu"
    room = _SHARE_OF_MEMORY * linux.available_bytes() if on_host else None
    headroom = 0.0 if on_host else _HEADROOM_ON_GPUS
    found = largest_that_fits(usual.batch_per_device, probe, room_bytes=room, headroom=headroom)
    if not found.largest:
        raise OutOfMemoryError(f"--batch_size=auto: not even one image fits. {found.limit}")
    return found


def _probed(record: Record, images: int, *, is_checked: bool) -> Probed:
    """Returns what a trial showed, which trained again in fp32 if `is_checked`.

    Raises:
        UsageError: the run refused to begin.
        BenchError: it failed, and not for want of memory or time.
    """
    peak = record.measurement.peak_host_memory_bytes
    if record.status is Status.OK and is_checked and not record.measurement.fp32_losses:
        return Probed(False, reason="training again in fp32 (--check_precision) failed.")
    if record.status in (Status.OK, Status.INVALID):  # a loss that grew is no question of memory
        return Probed(True, peak and peak * (_CHECK_FACTOR if is_checked else 1))
    if record.status is Status.SKIPPED:
        raise UsageError(record.reason)
    killed = f"signal {signal.SIGKILL:d} " in record.reason or "bad_alloc" in record.reason
    if record.status in (Status.OUT_OF_MEMORY, Status.TIMEOUT) or record.status is Status.CRASH and killed:
        return Probed(False, reason=f"{record.status}. {record.reason}")
    raise BenchError(f"--batch_size=auto: the trial with {images} images failed ({record.status}): {record.reason}")
