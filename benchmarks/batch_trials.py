"""`--batch_size=auto`: the largest batch that fits, found by trying, each in a process of its own. No TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import answers, child_process, config, flags, host_memory
from benchmarks.batch_search import Found, Probed, largest_that_fits
from benchmarks.cell_run import CellRunner
from benchmarks.config import Config
from benchmarks.display import warn
from benchmarks.errors import BenchError, OutOfMemoryError, UsageError, raise_terminated
from benchmarks.grid import Cell
from benchmarks.keeping import open_store
from benchmarks.provenance import of_this_run
from results.record import Record, Status

AUTO = "auto"
# A run may take more later than in its first steps, and others may want memory, too.
_SHARE_OF_MEMORY = 0.8
_STEPS: dict[str, Any] = {"num_batches": 2, "num_warmup_batches": 1}
# What a trial is not told: how long the run is to be, and where it leaves what.
_NOT_TOLD = ("num_epochs", "time_limit_seconds", "check_precision", "output_dir", "output_format", "display_every")
PROGRAM = (sys.executable, str(child_process.RUN_BENCH))


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
        UsageError: the flags do not go together, or name a cluster, or ask to run nothing while nothing is remembered.
        BenchError: a trial failed for another reason than memory, or not even one image fits.
    """
    usual = config.resolve({**values, "batch_size": None}, count_gpus)
    if usual.cluster:
        raise UsageError("--batch_size=auto tries batches in one process: with several, give a number.")
    provenance = of_this_run(command, on_gpus=usual.device == "gpu", session_id=uuid.uuid4().hex[:12])
    wanted = answers.key(provenance.identity({}), {"what": "batch_size", **usual.key_fields()})
    known = _remembered(wanted)
    if known is None and values["print_config"]:
        raise UsageError("--batch_size=auto is found by running, and --print_config runs nothing: give a number.")
    if known is None:
        with tempfile.TemporaryDirectory(prefix="cnn_bench_") as directory:
            runner = CellRunner(
                program=program, store=open_store(directory), output_dir=directory, provenance=provenance
            )
            found = _search(values, usual, runner, count_gpus)
        answers.keep(wanted, dataclasses.asdict(found))
    images, limit = (found.largest, found.limit) if known is None else known
    resolved = config.resolve({**values, "batch_size": images}, count_gpus)
    notice = f"--batch_size=auto: {images} images per device. {limit} Another batch trains differently."
    return dataclasses.replace(resolved, notices=(*resolved.notices, notice))


def _remembered(wanted: str) -> tuple[int, str] | None:
    found = answers.find(wanted)
    if found is None:
        return None
    time_utc, answer = found
    images = answer.get("largest")
    if not isinstance(images, int) or images < 1:
        answers.FILE.ignore(ValueError(f"a batch of {images!r}"))
        return None
    return images, f"Found on {time_utc[:10]} ({answers.FILE.path()}; remove the file to search anew)."


def _search(values: Mapping[str, Any], usual: Config, runner: CellRunner, count_gpus: Callable[[], int]) -> Found:
    told = {name: value for name, value in values.items() if name not in _NOT_TOLD} | _STEPS
    numbers = itertools.count()

    def probe(images: int) -> Probed:
        given = {**told, "batch_size": images}
        chosen = config.resolve(flags.unset(given), count_gpus)
        probed = _probed(runner.run(Cell(tuple(flags.words(given)), chosen), next(numbers)), images)
        peak = f", {probed.peak_bytes / 2**30:.1f} GiB of host memory at most" if probed.peak_bytes else ""
        warn(f"--batch_size=auto: {images} {'fit' + peak if probed.fits else 'do not fit: ' + probed.reason}")
        return probed

    signal.signal(signal.SIGTERM, raise_terminated)
    on_host = usual.device == "cpu"
    room = _SHARE_OF_MEMORY * host_memory.available_bytes() if on_host else None
    found = largest_that_fits(usual.batch_per_device, probe, room_bytes=room)
    if not found.largest:
        raise OutOfMemoryError(f"--batch_size=auto: not even one image fits. {found.limit}")
    return found


def _probed(record: Record, images: int) -> Probed:
    """Returns what a trial showed.

    Raises:
        UsageError: the run refused to begin.
        BenchError: it failed, and not for want of memory or time.
    """
    peak = record.measurement.peak_host_memory_bytes
    if record.status in (Status.OK, Status.INVALID):  # a loss that grew is no question of memory
        return Probed(True, peak)
    if record.status is Status.SKIPPED:
        raise UsageError(record.reason)
    killed = f"signal {signal.SIGKILL:d} " in record.reason or "bad_alloc" in record.reason
    if record.status in (Status.OUT_OF_MEMORY, Status.TIMEOUT) or record.status is Status.CRASH and killed:
        return Probed(False, reason=f"{record.status}. {record.reason}")
    raise BenchError(f"--batch_size=auto: the trial with {images} images failed ({record.status}): {record.reason}")
