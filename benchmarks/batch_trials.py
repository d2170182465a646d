"""`--batch_size=auto`: the largest batch that fits, found by trying, each in a process of its own. No TensorFlow."""

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

from benchmarks.batch_search import Found, Probed, largest_that_fits
from benchmarks.config import config, run_flags
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError, raise_terminated
from benchmarks.measure import run_log
from benchmarks.process import subprocesses
from benchmarks.record_files import open_store
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner
from benchmarks.system import cache, linux
from benchmarks.system.provenance import Provenance, of_this_run
from results.record import Record, Status

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

    signal.signal(signal.SIGTERM, raise_terminated)
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
