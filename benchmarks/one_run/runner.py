"""One run, from configuration to record, however it ends. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import resource
import signal
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from benchmarks import console
from benchmarks.cluster import restarts
from benchmarks.config.config import Config
from benchmarks.console import warn, warn_of_exception
from benchmarks.errors import (
    BenchError,
    ExitStatus,
    OutOfMemoryError,
    StoppedError,
    Terminated,
    UsageError,
    headline,
    lack_of_memory,
)
from benchmarks.input.catalog import existing_directory
from benchmarks.measure import injected_delay
from benchmarks.measure.run_log import RunLog
from benchmarks.microbench import device_peak
from benchmarks.microbench.roofline import devices_with_a_peak
from benchmarks.one_run import time_slices
from benchmarks.one_run.display import Display, TextDisplay
from benchmarks.process import sentinel, signals, tensorflow_setup
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import SHOW_SECONDS, Watchdog, ended_after, watched
from benchmarks.record_files import keep, open_store
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance, of_this_run
from benchmarks.trackers import handover
from models import specs
from models.outside_code import OutsideCodeError
from results.measurement import Derived, Measurement, derive
from results.quality import conditions_of, quality_warnings
from results.record import Record, Status
from results.store import Store
from results.summary import synthetic_ratio
from results.text import counted
from variable_mgr.catalog import IN_GRAPH, REFERENCE_LOOPS


def run(config: Config, command: Sequence[str]) -> ExitStatus:
    """Runs `config`, saves a record of it, and prints its result.

    In a cluster this is one of its tasks, and the leader saves the record of all. What saves it also sends it to
    trackers, at the very end: a record that another process saves, because this one was killed or hangs, is not sent.

    Args:
        config: what to run.
        command: for the record.

    Raises:
        UsageError: something requested is missing; then there is no record.
    """
    for notice in config.notices:
        warn(notice)
    provenance = of_this_run(command, on_gpus=config.devices.device == "gpu", session_id=config.output.session_id)
    log = empty_log(config)
    together = log.images_per_step if log.asynchronous else config.batch_global  # images of all that step together
    display = Display(together)
    if config.output.output_format == "text":
        display = TextDisplay(
            display_every=config.output.display_every,
            images_per_step=together,
            accuracies=config.workload.print_training_accuracy,
            loss_type=config.output.loss_type_to_report,
        )
    end = _End(config, log, display, provenance)
    # The other tasks of a cluster notice by themselves that one is lost.
    sentry = sentinel.unless_dismissed(end.save_of_killed, wanted=config.processes.cluster is None)
    with signals.raised_once(), sentry as end.dismiss:
        with watched(end.save, end.show) as watchdog:
            Deadlines(watchdog).opening(f"Opening --output_dir={config.output.output_dir}")
            end.store = open_store(config.output.output_dir)
            error = _attempt(config, log, display, watchdog)
        end.save(error)
    if not isinstance(error, StoppedError):
        status = end.show(error)
        end.send(handover.SEND_SECONDS)
        return status
    signals.ignore()
    with ended_after(SHOW_SECONDS, error.exit_status):  # a reader of stdout may have paused
        status = end.show(error)
    end.send(handover.STOPPED_SECONDS)
    return status


def empty_log(config: Config) -> RunLog:
    """Returns the log of a run that has not begun."""
    return RunLog(
        images_per_step=config.batch_global
        if _drives_all(config)
        else config.workload.batch_per_device * config.devices.num_devices,
        towers=config.towers_in_total if _drives_all(config) else config.devices.num_devices,
        asynchronous=not _drives_all(config)
        and (config.variables.modifiers.asynchronous or config.workload.forward_only),
    )


@dataclasses.dataclass
class _End:
    """The end of a run: first its record is saved, then its result is printed. An error says how it failed.

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
    is_kept: bool = True
    dismiss: Callable[[], None] = lambda: None

    def save(self, error: BenchError | None) -> None:
        """Saves the record if this process is the only one or the leader."""
        is_leader = (
            self.config.processes.cluster is None
            or self.config.processes.cluster.own == self.config.processes.cluster.leader
        )
        if self.store is None or not is_leader:
            self.dismiss()  # it would wait for the same directory
            return
        record = _record(self.config, self.log, error, self.provenance)
        try:
            ratio = synthetic_ratio(record, self.store.jsonl_path)
            record = replace(record, derived=replace(record.derived, synthetic_ratio=ratio))
        except Exception:  # whatever other runs have left in the file, this one is saved
            warn_of_exception()
        (self.record,), self.is_kept = keep(self.store, record)
        self.dismiss()

    def save_of_killed(self, death: sentinel.Death) -> None:
        """Saves, in another process, the record of a run that was killed and cannot do it itself."""
        held, limit = (f"{size / 2**30:.1f} GiB" for size in (death.held_bytes, death.limit_bytes))
        by = (
            f"signal {death.signal} ({signal.strsignal(death.signal)})"
            if death.signal
            else "a signal or its own failure"
        )
        status = Status.CRASH
        reason = f"The run was ended by {by} before it could save its record; it held {held} of memory."
        if death.out_of_memory:
            what = f"The kernel killed the run because memory ran out; it held {held}, and {limit} is the limit"
            status, reason = Status.OUT_OF_MEMORY, out_of_memory(what, self.config)
        limit_of_addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
        if death.signal == signal.SIGABRT and limit_of_addresses != resource.RLIM_INFINITY:
            size = f"{limit_of_addresses / 2**30:.1f} GiB"
            what = f"The run was aborted, as TensorFlow is where ulimit -v allows no more memory; the limit is {size}"
            status, reason = Status.OUT_OF_MEMORY, out_of_memory(what, self.config)
        record = record_without_run(self.config, self.provenance, status, reason)
        try:
            keep(open_store(self.config.output.output_dir), record)
        except Exception as error:
            warn(f"{error} The record of the run follows.")
            console.log(record.cleaned().to_json())
        warn(reason)  # last, since a reader of stderr may have paused

    def show(self, error: BenchError | None) -> ExitStatus:
        """Prints the result, and returns the status of the process."""
        if self.record is not None:
            self.display.finish(self.record)
            for warning in self.record.warnings[len(self.config.notices) :]:
                warn(warning)
        if error is not None:
            warn(str(error))
        elif self.record is None and self.log.reports and self.config.processes.cluster:
            cluster = self.config.processes.cluster
            self.display.part(self.log.own(), str(cluster.own), str(cluster.leader))
        if self.record is not None and self.store is not None and self.is_kept:
            run_id = self.record.identity.run_id
            self.display.stored(f"{self.store.jsonl_path} ({run_id}) and {self.store.csv_path}")
        if error is not None:
            return error.exit_status
        return ExitStatus.OK if self.is_kept else ExitStatus.RUN_FAILED

    def send(self, limit_seconds: float) -> None:
        """Sends the saved record to trackers, which can no longer change a result or a status."""
        if self.record is not None and self.store is not None and self.is_kept:
            stored_in = [self.store.jsonl_path]
            handover.send_of_run(self.record, self.config.output.trackers, stored_in, self.display.sent, limit_seconds)


def _attempt(config: Config, log: RunLog, display: Display, watchdog: Watchdog) -> BenchError | None:
    """Carries out the run, and returns how it failed or was stopped. Afterwards no signal interrupts this process."""
    try:
        error = _carry_out(config, log, display, watchdog)
        signals.ignore()
        return error
    except KeyboardInterrupt:
        return StoppedError(signal.SIGINT)
    except Terminated as terminated:
        return StoppedError(terminated.number)


def _carry_out(config: Config, log: RunLog, display: Display, watchdog: Watchdog) -> BenchError | None:
    deadlines = Deadlines(watchdog)
    try:
        deadlines.none()
        visible = dataclasses.replace(config.runtime.devices, visible_gpus=_visible_gpus(config))
        tensorflow_setup.prepare(dataclasses.replace(config.runtime, devices=visible))
        if (
            config.data.data_dir is not None and config.processes.cluster is None
        ):  # in a cluster the others must learn of it
            deadlines.opening(f"Opening --data_dir={config.data.data_dir}")
            existing_directory(config.data.data_name, config.data.data_dir)
        log.started("Python")
        deadlines.importing()
        tensorflow_setup.import_tensorflow()
        from benchmarks.cluster.member import Alone
        from benchmarks.one_run import cluster_run, session

        deadlines.none()
        log.started("TensorFlow")
        if config.processes.cluster:
            cluster_run.train(config, config.processes.cluster, log, display, watchdog)
        else:
            session.execute(config, log, display, Alone(watchdog))
    except UsageError:
        raise
    except BenchError as error:
        return error
    except MemoryError as error:
        asked = f" ({error})" if str(error) else ""  # NumPy names the size and the shape
        return OutOfMemoryError(out_of_memory(f"The host is out of memory{asked}", config))
    except (KeyboardInterrupt, signals.Terminated):
        raise
    except OutsideCodeError as error:
        return BenchError(f"--model={config.workload.model}: {error}")
    except BaseException as error:  # the code of a layer may raise SystemExit
        display.stop()
        warn_of_exception()
        lack = lack_of_memory(error)  # such as of the task's server, which takes a GPU's memory at once
        return (OutOfMemoryError if lack else BenchError)(f"{lack or type(error).__name__}: {headline(error)}")
    finally:
        display.stop()
    return None


def _record(config: Config, log: RunLog, error: BenchError | None, provenance: Provenance) -> Record:
    measurement, derived = log.measurement(), Derived()
    status = Status.OK if error is None else error.record_status
    # An interrupted worker knows only its own part, which has no rate of all.
    has_rate = status in (Status.OK, Status.INTERRUPTED)
    if has_rate and (_drives_all(config) or len(log.reports) == config.processes.num_workers):
        # XLA compiles within the first step, unless staging has computed before.
        compiled = config.computing.xla == "jit" and not config.variables.modifiers.staged_vars
        on_cpu = config.devices.device == "cpu"
        derived = derive(measurement, config.towers_in_total, compiled=compiled, towers_share_cores=on_cpu)
    derived = device_peak.beside_peak(
        derived,
        log.placement.get("flops_per_image"),
        provenance.environment,
        device=config.devices.device,
        precision=config.computing.precision,
        count=devices_with_a_peak(
            config.devices,
            num_workers=config.processes.num_workers,
            num_hosts=config.processes.cluster.num_worker_hosts if config.processes.cluster else 1,
        ),
    )
    conditions = conditions_of(config.to_dict(), provenance.environment, measurement)
    return replace(
        record_without_run(config, provenance, status, str(error or ""), data_set=log.data_set),
        environment={
            **provenance.environment,
            **injected_delay.environment(),
            **time_slices.environment(log.steps_per_slice),
        },
        placement=log.placement_of_all(),
        measurement=measurement,
        derived=derived,
        warnings=[
            *config.notices,
            *injected_delay.warnings(),
            *restarts.warnings(),
            *quality_warnings(measurement, derived, conditions),
        ],
    )


def record_without_run(
    config: Config, provenance: Provenance, status: Status, reason: str, *, data_set: str | None = None
) -> Record:
    """Returns the record of a run that measured nothing, such as one whose process was killed."""
    read = {"data_set": data_set} if data_set else {}
    return Record(
        identity=provenance.identity({**config.key_fields(), **read}),
        config={**config.to_dict(), **read},
        config_aside=config.aside_fields(),
        environment=provenance.environment,
        model=specs.find(config.workload.model).facts(config.workload.num_classes),
        placement={},
        measurement=Measurement(images_per_step=config.batch_global),
        derived=Derived(),
        status=status,
        reason=reason,
        warnings=list(config.notices),
    )


def out_of_memory(what: str, requested: Config | Sequence[str]) -> str:
    """Returns the reason of a run that memory did not suffice for: what happened, what was requested, what to do.

    `requested` are flags if there is no configuration.
    """
    if isinstance(requested, Config):
        devices = counted(requested.devices.num_devices, f"{requested.devices.device.upper()} device")
        images = counted(requested.workload.batch_per_device, "image")
        return f"{what}: {requested.workload.model} with {images} per device on {devices}. Try a smaller --batch_size."
    return f"{what}: {' '.join(requested)}. Try a smaller --batch_size."


def _drives_all(config: Config) -> bool:
    """Returns whether this process takes the steps of all towers, alone or as the client of all workers."""
    return config.processes.cluster is None or config.variables.variable_update in IN_GRAPH


def _visible_gpus(config: Config) -> tuple[int, ...] | None:
    """Returns the GPUs that TensorFlow may see.

    MirroredStrategy avoids NCCL if it sees more GPUs than it uses, so a reference loop sees only those. Of a divided
    GPU (MIG), CUDA shows one instance by itself, and a number would name another GPU.
    """
    if config.devices.device == "cpu":
        return config.devices.visible_gpus
    if any(gpu.is_divided for gpu in hardware.gpu_inventory().gpus):
        return None
    if config.variables.variable_update not in REFERENCE_LOOPS or config.devices.virtual_gpus > 1:
        return config.devices.visible_gpus
    return config.devices.gpu_numbers
