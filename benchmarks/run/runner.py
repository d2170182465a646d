"""One run, from configuration to record, however it ends. Imports TensorFlow late.

Who saves the record: this process, after the run has ended, failed or been stopped. If its main thread hangs, the
thread of its watchdog does, and then ends the process. If the process is killed, the sentinel beside it does
(`run_record.save_of_killed`), unless a parent records the end. Of a cluster the leader alone saves; if it is killed,
the process that started it does. A leader that was started by hand, and is killed, leaves no record. The first that
saves dismisses the sentinel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from benchmarks.config.config import Config
from benchmarks.config.outside_models import is_code
from benchmarks.console import warn, warn_of_exception
from benchmarks.data.sources.data_sets import existing_directory
from benchmarks.errors import (
    BenchError,
    ExitStatus,
    OutOfMemoryError,
    StoppedError,
    UsageError,
    headline,
    lack_of_memory,
    stopped,
)
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance, of_this_run
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.process import sentinel, signals, tensorflow_setup
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.process.watchdog import SHOW_SECONDS, ended_after, watched
from benchmarks.record_files import open_store, save
from benchmarks.run import run_record
from benchmarks.trackers import handover
from models.outside_code import UnusableModelError, exits_refused
from results.input_bottleneck import synthetic_ratio
from results.record import Record
from results.store import Store
from variable_mgr.catalog import REFERENCE_LOOPS


def run(config: Config, command: Sequence[str]) -> ExitStatus:
    """Runs `config`, saves a record of it, and prints its result.

    In a cluster this is one of its tasks, and the leader saves the record of all. The main thread sends it to trackers
    at the very end: a record that the watchdog or the sentinel has saved is not sent.

    Raises:
        UsageError: something requested is missing; then there is no record.
    """
    warn(*config.notices)
    cluster = config.processes.cluster
    provenance = of_this_run(
        command,
        on_gpus=config.devices.on_gpu,
        session_id=config.output.session_id,
        starts_alone=cluster is None or cluster.is_alone_on_this_host,
    )
    log = run_record.empty_log(config)
    display = Display(
        log.images_per_step if log.asynchronous else config.batch_global,
        display_every=config.output.display_every if config.output.output_format == "text" else 0,
        accuracies=config.workload.print_training_accuracy,
        loss_type=config.output.loss_type_to_report,
        hardware=hardware.in_words(
            hardware.describe_hardware(provenance.inventory),
            config.devices.gpu_numbers,
            shows_unused=cluster is None,
        ),
    )
    current = _Run(config, log, display, provenance)
    beside = sentinel.unless_dismissed(
        functools.partial(run_record.save_of_killed, config, provenance), wanted=cluster is None
    )
    with signals.raised_once(), beside as current.dismiss:
        with watched(current.save, current.show) as watchdog:
            deadlines = Deadlines(watchdog, config.processes.step_timeout_seconds)
            deadlines.opening(f"Opening --output_dir={config.output.output_dir}")
            current.store = open_store(config.output.output_dir)
            error = current.attempt(deadlines)
        current.save(error)
    if not isinstance(error, StoppedError):
        status = current.show(error)
        current.send(handover.SEND_SECONDS)
        return status
    signals.ignore()
    with ended_after(SHOW_SECONDS, error.exit_status):  # a reader of stdout may have paused
        status = current.show(error)
    current.send(handover.STOPPED_SECONDS)
    return status


@dataclasses.dataclass
class _Run:
    """A run: it is attempted, then its record is saved, then its result is printed. An error says how it failed.

    Attributes:
        store: None until it is opened.
        record: None until it is saved, and in tasks of a cluster that save none.
        dismiss: dismisses the process that saves a record if this one is killed.
    """

    config: Config
    log: RunLog
    display: Display
    provenance: Provenance
    store: Store | None = None
    record: Record | None = None
    could_not_save: bool = False
    dismiss: Callable[[], None] = lambda: None

    def attempt(self, deadlines: Deadlines) -> BenchError | None:
        """Carries out the run. Returns how it failed or was stopped; then no signal interrupts this process."""
        try:
            error = self._carry_out(deadlines)
            signals.ignore()
            return error
        except KeyboardInterrupt as error:
            return stopped(error)

    def _carry_out(self, deadlines: Deadlines) -> BenchError | None:
        config, log, display = self.config, self.log, self.display
        data = config.data
        try:
            deadlines.none()
            numbers = _visible_gpus(config.devices, config.variables.variable_update)
            visible = dataclasses.replace(config.runtime.devices, visible_gpus=numbers)
            tensorflow_setup.prepare(dataclasses.replace(config.runtime, devices=visible))
            # In a cluster the others must learn of it.
            if data.data_dir is not None and config.processes.cluster is None:
                deadlines.opening(f"Opening --data_dir={data.data_dir}")
                existing_directory(data.data_name, data.data_dir)
            log.started("Python")
            deadlines.importing()
            tensorflow_setup.import_tensorflow()
            from benchmarks.run import cluster_run

            deadlines.none()
            log.started("TensorFlow")
            with exits_refused() if is_code(config.workload.model) else contextlib.nullcontext():  # also in steps
                cluster_run.join_and_run(config, log, display, deadlines.silent())
        except (UsageError, KeyboardInterrupt):
            raise
        except OutOfMemoryError as error:
            return OutOfMemoryError(f"{error} {run_record.smaller_batch(config)}")
        except BenchError as error:
            return error
        except MemoryError as error:
            asked = f" ({error})" if str(error) else ""  # NumPy names the size and the shape
            return OutOfMemoryError(run_record.out_of_memory(f"The host is out of memory{asked}", config))
        except UnusableModelError as error:
            return BenchError(f"--model={config.workload.model}: {error}")
        except BaseException as error:  # the code of a layer may raise SystemExit
            display.stop()
            warn_of_exception()
            lack = lack_of_memory(error)  # such as of the task's server, which takes a GPU's memory at once
            return (OutOfMemoryError if lack else BenchError)(f"{lack or type(error).__name__}: {headline(error)}")
        finally:
            display.stop()
        return None

    def save(self, error: BenchError | None) -> None:
        """Saves the record if this process is the only one or the leader."""
        if self.store is None or not self.config.processes.leads:
            self.dismiss()  # the sentinel would hang on the directory that this process could not open
            return
        record = run_record.record_of(self.config, self.provenance, self.log, error)
        try:
            ratio = synthetic_ratio(record, self.store.jsonl_path)
            record = replace(record, derived=replace(record.derived, synthetic_ratio=ratio))
        except Exception:  # whatever other runs have left in the file, this one is saved
            warn_of_exception()
        (self.record,), is_saved = save(self.store, record)
        self.could_not_save = not is_saved
        self.dismiss()

    def show(self, error: BenchError | None) -> ExitStatus:
        """Prints the result, and returns the status of the process."""
        if self.record is not None:
            self.display.finish(self.record)
            warn(*self.record.warnings[len(self.config.notices) :])
        if error is not None:
            warn(str(error))
        elif self.record is None and self.log.reports and (cluster := self.config.processes.cluster):
            self.display.part(self.log.own(), str(cluster.own), str(cluster.leader))
        if self.record is not None and self.store is not None and not self.could_not_save:
            run_id = self.record.identity.run_id
            derived = f" and {self.store.csv_path}" if self.store.csv_has_last else ""
            self.display.stored(self.record, f"{self.store.jsonl_path} ({run_id}){derived}")
        if error is not None:
            return error.exit_status
        return ExitStatus.RUN_FAILED if self.could_not_save else ExitStatus.OK

    def send(self, limit_seconds: float) -> None:
        """Sends the saved record to trackers, which can no longer change a result or a status."""
        if self.record is not None and self.store is not None and not self.could_not_save:
            stored_in = [self.store.jsonl_path]
            handover.send_of_run(self.record, self.config.output.trackers, stored_in, self.display.sent, limit_seconds)


def _visible_gpus(devices: Devices, manager: str) -> tuple[int, ...] | None:
    """Returns the GPUs that TensorFlow may see.

    MirroredStrategy avoids NCCL if it sees more GPUs than it uses, so a reference loop sees only those.
    """
    sees_others = devices.on_gpu and devices.virtual_gpus == 1 and hardware.count_gpus() > devices.physical_gpus
    return devices.gpu_numbers if manager in REFERENCE_LOOPS and sees_others else devices.visible_gpus
