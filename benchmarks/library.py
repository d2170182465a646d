"""The suite as a library: `train` for scripts and notebooks. Imports without TensorFlow.

A run has a process of its own. TensorFlow's devices can be configured once per process, a run may exhaust the memory or
crash, and its signal handlers and watchdog would replace those of the caller.
"""

from __future__ import annotations

import itertools
import math
import threading

from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import UsageError
from benchmarks.sweep.grid import Cell, require_own_tasks
from benchmarks.sweep.isolated_run import CellRunner, new_session
from benchmarks.sweep.progress import in_few_words
from benchmarks.trackers import tracker_list
from results.record import Record, Status

# `CellRunner` sets these flags itself.
_OWN_FLAGS = ("--output_dir=", "--session_id=", "--output_format=")
_numbers = itertools.count(1)
_one_at_a_time = threading.Lock()


def train(config: Config) -> Record:
    """Trains in a process of its own, and returns the record, which is also appended to `config.output_dir`.

    A run that fails, in whatever way, returns its record as well: `status` is then not `Status.OK`, `reason` is a
    sentence, and rates are None. Notices, warnings and failures are printed on stderr. There is no limit of time
    besides those of the configuration. Runs of several threads follow each other, since at once they would slow each
    other down.

    Args:
        config: made by `Config.from_flags`.

    Raises:
        UsageError: the configuration was made otherwise, is a task of a cluster that others start, or names an
            `output_dir` that cannot be written, or a tracker that cannot be used.
        KeyboardInterrupt: after the run has ended. Its record is saved, unless it had not yet begun to compute.
    """
    if config.command is None:
        raise UsageError("train() needs a configuration of Config.from_flags(), unchanged: pass all flags to that.")
    cell = Cell(tuple(word for word in config.command if not word.startswith(_OWN_FLAGS)), config)
    require_own_tasks(cell)
    tracker_list.require(config.output.trackers)
    warn(*config.notices)
    output = config.output
    session = new_session(cell.arguments, on_gpus=config.devices.on_gpu, session_id=output.session_id)
    runner = CellRunner(output_dir=output.output_dir, provenance=session, timeout_seconds=math.inf, numbers=_numbers)
    what = in_few_words(config.to_dict())
    with _one_at_a_time:
        record = runner.run_cell(cell, f"running {what}")
    warn(*record.warnings[len(config.notices) :])
    if record.status is not Status.OK:
        warn(f"{what}: {record.status}: {record.reason}")
    return record
