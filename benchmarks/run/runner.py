"""The main job: one run from configuration to record, whatever happens on the way. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import signal
import sys
import traceback
from collections.abc import Sequence

from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError, headline
from benchmarks.input.catalog import existing_directory
from benchmarks.measure import injected_delay
from benchmarks.measure.run_log import RunLog
from benchmarks.microbench import device_peak
from benchmarks.microbench.roofline import devices_with_a_peak
from benchmarks.process import tensorflow_setup
from benchmarks.process.signals import raise_on_sigterm
from benchmarks.process.watchdog import Watchdog
from benchmarks.record_files import keep, open_store
from benchmarks.run import time_slices
from benchmarks.run.display import Display, JsonDisplay, TextDisplay
from benchmarks.run.team import Alone
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance, of_this_run
from models import specs
from results.measurement import Derived, Measurement, derive
from results.quality import Conditions, quality_warnings
from results.record import Record, Status, trustworthy
from results.store import Store
from results.summary import synthetic_ratio
from variable_mgr.catalog import IN_GRAPH, REFERENCE_LOOPS


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended, for the record and for the shell."""

    status: Status = Status.OK
    reason: str = ""
    exit_status: ExitStatus = ExitStatus.OK


def run(config: Config, command: Sequence[str]) -> ExitStatus:
    """Runs `config`, says what came of it, and keeps a record of it.

    In a cluster this is one of its tasks, and the leader keeps the record of all.

    Args:
        config: what to run.
        command: the words of the command line, for the record.

    Raises:
        UsageError: what was asked for is not there; there is no record then.
    """
    store = open_store(config.output_dir)
    for notice in config.notices:
        warn(notice)
    tensorflow_setup.prepare(dataclasses.replace(config.runtime, visible_gpus=_visible_gpus(config)))
    provenance = of_this_run(command, on_gpus=config.device == "gpu", session_id=config.session_id)
    images = config.batch_global if _drives_all(config) else config.batch_per_device * config.num_devices
    log = RunLog(images_per_step=images, towers=config.num_devices, apart=_goes_alone(config))
    display = _display(config)

    def finish(outcome: Outcome) -> ExitStatus:
        return _finish(config, log, display, provenance, store, outcome)

    watchdog = Watchdog(lambda error: finish(_outcome_of(error)))
    watchdog.start()
    try:
        outcome = _attempt(config, log, display, watchdog)
    finally:
        watchdog.stop()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has been measured is now written, whoever is impatient
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return finish(outcome)


def _finish(
    config: Config, log: RunLog, display: Display, provenance: Provenance, store: Store, outcome: Outcome
) -> ExitStatus:
    """Says what came of the run, and keeps the record of it if that is this process' task."""
    if config.cluster and config.cluster.own != config.cluster.leader:
        if outcome.reason:
            warn(outcome.reason)
        elif log.reports:
            display.part(log.own(), str(config.cluster.own), str(config.cluster.leader))
        return outcome.exit_status
    record = _record(config, log, outcome, provenance)
    ratio = synthetic_ratio(record, store.jsonl_path)
    record = dataclasses.replace(record, derived=dataclasses.replace(record.derived, synthetic_ratio=ratio))
    display.finish(record)
    for warning in record.warnings[len(config.notices) :]:
        warn(warning)
    if outcome.reason:
        warn(outcome.reason)
    if not keep(store, record):
        return outcome.exit_status or ExitStatus.RUN_FAILED
    display.stored(f"{store.jsonl_path} ({record.identity.run_id}) and {store.csv_path}")
    return outcome.exit_status


def _display(config: Config) -> Display:
    if config.output_format == "json":
        return JsonDisplay()
    return TextDisplay(
        display_every=config.display_every,
        images_per_step=_images_per_line(config),
        terminal=sys.stderr.isatty(),
        accuracies=config.print_training_accuracy,
    )


def _images_per_line(config: Config) -> int:
    """Returns how many images a step is of that this process sees: its own, where workers go their own way."""
    return config.batch_per_device * config.num_devices if _goes_alone(config) else config.batch_global


def _attempt(config: Config, log: RunLog, display: Display, watchdog: Watchdog) -> Outcome:
    raise_on_sigterm()
    try:
        if config.data_dir is not None and config.cluster is None:  # in a cluster the others have to hear of it
            existing_directory(config.data_name, config.data_dir)
        log.started("Python")
        tensorflow_setup.import_tensorflow()
        from benchmarks.run import cluster_run, session

        log.started("TensorFlow")
        if config.cluster:
            cluster_run.train(config, config.cluster, log, display, watchdog)
        else:
            session.execute(config, log, display, Alone(watchdog))
    except UsageError:
        raise
    except BenchError as error:
        return _outcome_of(error)
    except KeyboardInterrupt:
        return Outcome(Status.INTERRUPTED, "Interrupted by Ctrl-C.", ExitStatus.INTERRUPTED)
    except Terminated:
        return Outcome(Status.INTERRUPTED, "Ended by SIGTERM.", ExitStatus.TERMINATED)
    except MemoryError:
        return Outcome(Status.OUT_OF_MEMORY, "The host is out of memory.", ExitStatus.RUN_FAILED)
    except Exception as error:
        display.stop()
        traceback.print_exc()
        return Outcome(Status.CRASH, f"{type(error).__name__}: {headline(error)}", ExitStatus.RUN_FAILED)
    finally:
        display.stop()
    return Outcome()


def _outcome_of(error: BenchError) -> Outcome:
    return Outcome(error.record_status, str(error), error.exit_status)


def _record(config: Config, log: RunLog, outcome: Outcome, provenance: Provenance) -> Record:
    measurement = log.measurement()
    stated = trustworthy(outcome.status) and _is_of_all(config, log)
    derived = derive(measurement, config.towers_in_total, compiled=_compiles(config)) if stated else Derived()
    derived = device_peak.beside_peak(
        derived,
        log.placement.get("flops_per_image"),
        provenance.environment,
        device=config.device,
        precision=config.precision,
        count=devices_with_a_peak(
            config.device,
            num_devices=config.num_devices,
            virtual_gpus=config.virtual_gpus,
            num_workers=config.num_workers,
            num_hosts=config.cluster.num_worker_hosts if config.cluster else 1,
        ),
    )
    read = {"data_set": log.data_set} if log.data_set else {}
    return Record(
        identity=provenance.identity({**config.key_fields(), **read}),
        config={**config.to_dict(), **read},
        config_aside=config.aside_fields(),
        environment={
            **provenance.environment,
            **injected_delay.environment(),
            **time_slices.environment(log.steps_per_turn),
        },
        model=specs.find(config.model).facts(),
        placement=log.placement,
        measurement=measurement,
        derived=derived,
        status=outcome.status,
        reason=outcome.reason,
        warnings=[
            *config.notices,
            *injected_delay.warnings(),
            *_quality_warnings(config, measurement, derived, provenance.load_per_core),
        ],
    )


def _visible_gpus(config: Config) -> Sequence[int] | None:
    """Returns which GPUs TensorFlow may see: under MirroredStrategy only those it uses, or it does without NCCL."""
    if config.device == "cpu" or config.variable_update not in REFERENCE_LOOPS or config.virtual_gpus > 1:
        return config.visible_gpus
    return (config.visible_gpus or range(config.num_devices))[: config.num_devices]


def _compiles(config: Config) -> bool:
    """Returns whether XLA compiles within the first step; staging has computed before that."""
    return config.xla == "jit" and not config.modifiers.staged_vars


def _is_of_all(config: Config, log: RunLog) -> bool:
    """Returns whether what is known is of all that trained: a worker that was interrupted knows only its own part."""
    return _drives_all(config) or len(log.reports) == config.num_workers


def _drives_all(config: Config) -> bool:
    return config.cluster is None or config.variable_update in IN_GRAPH


def _goes_alone(config: Config) -> bool:
    """Returns whether this is a worker of a cluster that waits for no other."""
    return not _drives_all(config) and (config.modifiers.asynchronous or config.forward_only)


def _quality_warnings(config: Config, measurement: Measurement, derived: Derived, load_per_core: float) -> list[str]:
    conditions = Conditions(
        load_per_core=load_per_core,
        cpu_devices=config.towers_in_total // config.num_hosts if config.device == "cpu" else 0,
        cores=hardware.usable_cores(),
        training=not config.forward_only,
    )
    return quality_warnings(measurement, derived, conditions)
