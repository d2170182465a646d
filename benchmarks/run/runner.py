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
from benchmarks.config.workload import Workload
from benchmarks.console import warn, warn_of_exception
from benchmarks.data.sources.data_sets import existing_directory
from benchmarks.devices.options import Devices
from benchmarks.devices.roofline import devices_with_a_peak
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
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance, of_this_run
from benchmarks.measure import injected_delay, interleaved_steps
from benchmarks.measure.display import Display, TextDisplay
from benchmarks.measure.run_log import RunLog
from benchmarks.microbench import device_peak
from benchmarks.process import sentinel, signals, tensorflow_setup
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.watchdog import SHOW_SECONDS, Watchdog, ended_after, watched
from benchmarks.record_files import open_store, save
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
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place


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
    provenance = of_this_run(command, on_gpus=config.devices.on_gpu, session_id=config.output.session_id)
    log = empty_log(config.workload, config.place, config.variables.modifiers)
    together = log.images_per_step if log.asynchronous else config.batch_global  # images of all that step together
    display = Display(together)
    if config.output.output_format == "text":
        display = TextDisplay(
            display_every=config.output.display_every,
            images_per_step=together,
            accuracies=config.workload.print_training_accuracy,
            loss_type=config.output.loss_type_to_report,
        )
    current = _Run(config, log, display, provenance)
    # The other tasks of a cluster notice by themselves that one is lost.
    sentry = sentinel.unless_dismissed(current.save_of_killed, wanted=config.processes.cluster is None)
    with signals.raised_once(), sentry as current.dismiss:
        with watched(current.save, current.show) as watchdog:
            Deadlines(watchdog).opening(f"Opening --output_dir={config.output.output_dir}")
            current.store = open_store(config.output.output_dir)
            error = current.attempt(watchdog)
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


def empty_log(workload: Workload, place: Place, modifiers: Modifiers) -> RunLog:
    """Returns the log of a run that has not begun."""
    return RunLog(
        images_per_step=workload.batch_per_device * len(place.towers),
        towers=len(place.towers),
        asynchronous=place.workers > 1 and (modifiers.asynchronous or workload.forward_only),
    )


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
    is_kept: bool = True
    dismiss: Callable[[], None] = lambda: None

    def attempt(self, watchdog: Watchdog) -> BenchError | None:
        """Carries out the run. Returns how it failed or was stopped; then no signal interrupts this process."""
        try:
            error = self._carry_out(watchdog)
            signals.ignore()
            return error
        except KeyboardInterrupt:
            return StoppedError(signal.SIGINT)
        except Terminated as terminated:
            return StoppedError(terminated.number)

    def _carry_out(self, watchdog: Watchdog) -> BenchError | None:
        config, log, display, deadlines = self.config, self.log, self.display, Deadlines(watchdog)
        data, cluster = config.data, config.processes.cluster
        try:
            deadlines.none()
            numbers = _visible_gpus(config.devices, config.variables.variable_update)
            visible = dataclasses.replace(config.runtime.devices, visible_gpus=numbers)
            tensorflow_setup.prepare(dataclasses.replace(config.runtime, devices=visible))
            if data.data_dir is not None and cluster is None:  # in a cluster the others must learn of it
                deadlines.opening(f"Opening --data_dir={data.data_dir}")
                existing_directory(data.data_name, data.data_dir)
            log.started("Python")
            deadlines.importing()
            tensorflow_setup.import_tensorflow()
            from benchmarks.cluster.member import Alone
            from benchmarks.run import cluster_run, session

            deadlines.none()
            log.started("TensorFlow")
            if cluster:
                cluster_run.train(config, cluster, log, display, watchdog)
            else:
                session.execute(config, log, display, Alone(watchdog))
        except UsageError:
            raise
        except BenchError as error:
            return error
        except MemoryError as error:
            asked = f" ({error})" if str(error) else ""  # NumPy names the size and the shape
            return OutOfMemoryError(out_of_memory(f"The host is out of memory{asked}", config.workload, config.devices))
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

    def save(self, error: BenchError | None) -> None:
        """Saves the record if this process is the only one or the leader."""
        cluster = self.config.processes.cluster
        if self.store is None or (cluster and cluster.own != cluster.leader):
            self.dismiss()  # it would wait for the same directory
            return
        record = self._record(error)
        try:
            ratio = synthetic_ratio(record, self.store.jsonl_path)
            record = replace(record, derived=replace(record.derived, synthetic_ratio=ratio))
        except Exception:  # whatever other runs have left in the file, this one is saved
            warn_of_exception()
        (self.record,), self.is_kept = save(self.store, record)
        self.dismiss()

    def _record(self, error: BenchError | None) -> Record:
        config, log, provenance = self.config, self.log, self.provenance
        devices, processes, variables = config.devices, config.processes, config.variables
        measurement, derived = log.measurement(), Derived()
        status = Status.OK if error is None else error.record_status
        has_rate = status in (Status.OK, Status.INTERRUPTED)
        # An interrupted worker knows only its own part, which has no rate of all.
        drives_all = processes.cluster is None or variables.variable_update in IN_GRAPH
        if has_rate and (drives_all or len(log.reports) == processes.num_workers):
            # XLA compiles within the first step, unless staging has computed before.
            compiled = config.computing.xla == "jit" and not variables.modifiers.staged_vars
            on_cpu = devices.device == "cpu"
            derived = derive(measurement, config.towers_in_total, compiled=compiled, towers_share_cores=on_cpu)
        derived = device_peak.beside_peak(
            derived,
            log.placement.get("flops_per_image"),
            provenance.environment,
            device=devices.device,
            precision=config.computing.precision,
            count=devices_with_a_peak(
                devices,
                num_workers=processes.num_workers,
                num_hosts=processes.cluster.num_worker_hosts if processes.cluster else 1,
            ),
        )
        conditions = conditions_of(config.to_dict(), provenance.environment, measurement)
        return replace(
            record_without_run(config, provenance, status, str(error or ""), data_set=log.data_set),
            environment={
                **provenance.environment,
                **injected_delay.environment(),
                **interleaved_steps.environment(log.steps_per_slice),
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

    def save_of_killed(self, death: sentinel.Death) -> None:
        """Saves, in another process, the record of a run that was killed and cannot do it itself."""
        held, limit = (f"{size / 2**30:.1f} GiB" for size in (death.held_bytes, death.limit_bytes))
        by = "a signal or its own failure"
        if death.signal:
            by = signals.signal_in_words(death.signal)
        requested = self.config.workload, self.config.devices
        status = Status.CRASH
        reason = f"The run was ended by {by} before it could save its record; it held {held} of memory."
        if death.out_of_memory:
            what = f"The kernel killed the run because memory ran out; it held {held}, and {limit} is the limit"
            status, reason = (
                Status.OUT_OF_MEMORY,
                out_of_memory(what, *requested),
            )
        limit_of_addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
        if death.signal == signal.SIGABRT and limit_of_addresses != resource.RLIM_INFINITY:
            size = f"{limit_of_addresses / 2**30:.1f} GiB"
            what = f"The run was aborted, as TensorFlow is where ulimit -v allows no more memory; the limit is {size}"
            status, reason = (
                Status.OUT_OF_MEMORY,
                out_of_memory(what, *requested),
            )
        record = record_without_run(self.config, self.provenance, status, reason)
        try:
            save(open_store(self.config.output.output_dir), record)
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
        elif self.record is None and self.log.reports and (cluster := self.config.processes.cluster):
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


def record_without_run(
    config: Config, provenance: Provenance, status: Status, reason: str, *, data_set: str | None = None
) -> Record:
    """Returns the record of a run that measured nothing, such as one whose process was killed."""
    read = {"data_set": data_set} if data_set else {}
    return Record(
        identity=provenance.identity({**config.key_fields(), **read}),
        config={**config.to_dict(), **read},
        config_not_in_key=config.fields_not_in_key(),
        environment=provenance.environment,
        model=specs.find_model(config.workload.model).facts(config.workload.num_classes),
        placement={},
        measurement=Measurement(images_per_step=config.batch_global),
        derived=Derived(),
        status=status,
        reason=reason,
        warnings=list(config.notices),
    )


def out_of_memory(what: str, workload: Workload, devices: Devices) -> str:
    """Returns the reason of a run that memory did not suffice for: what happened, what was requested, what to do."""
    images = counted(workload.batch_per_device, "image")
    on = counted(devices.num_devices, f"{devices.device.upper()} device")
    return f"{what}: {workload.model} with {images} per device on {on}. Try a smaller --batch_size."


def _visible_gpus(devices: Devices, manager: str) -> tuple[int, ...] | None:
    """Returns the GPUs that TensorFlow may see.

    MirroredStrategy avoids NCCL if it sees more GPUs than it uses, so a reference loop sees only those. Of a divided
    GPU (MIG), CUDA shows one instance by itself, and a number would name another GPU.
    """
    visible = devices.visible_gpus
    if not devices.on_gpu:
        return visible
    if any(gpu.is_divided for gpu in hardware.gpu_inventory().gpus):
        return None
    if manager not in REFERENCE_LOOPS or devices.virtual_gpus > 1:
        return visible
    return devices.gpu_numbers
