"""The main job: one run from configuration to record, whatever happens on the way. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import signal
import sys
import traceback
from collections.abc import Sequence

from benchmarks import hardware, process_environment
from benchmarks.config import Config
from benchmarks.display import Display, JsonDisplay, TextDisplay, warn
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError, headline, raise_terminated
from benchmarks.keeping import keep, open_store
from benchmarks.provenance import Provenance, of_this_run
from benchmarks.run_log import RunLog
from models import specs
from results.doubts import Conditions, doubts
from results.measurement import Derived, Measurement, derive
from results.record import Record, Status, trustworthy
from results.synthetic import synthetic_ratio


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended, for the record and for the shell."""

    status: Status = Status.OK
    reason: str = ""
    exit_status: ExitStatus = ExitStatus.OK


def run(config: Config, command: Sequence[str]) -> ExitStatus:
    """Runs `config`, says what came of it, and keeps a record of it.

    Args:
        config: what to run.
        command: the words of the command line, for the record.

    Raises:
        UsageError: what was asked for is not there; there is no record then.
    """
    store = open_store(config.output_dir)
    for notice in config.notices:
        warn(notice)
    process_environment.prepare(
        device=config.device, visible_gpus=config.visible_gpus, log_placement=config.log_device_placement
    )
    provenance = of_this_run(command, on_gpus=config.device == "gpu", session_id=config.session_id)
    log = RunLog(images_per_step=config.batch_global, towers=config.num_devices)
    display = _display(config)
    outcome = _attempt(config, log, display)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has been measured is now written, whoever is impatient
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
        images_per_step=config.batch_global,
        terminal=sys.stderr.isatty(),
        accuracies=config.print_training_accuracy,
    )


def _attempt(config: Config, log: RunLog, display: Display) -> Outcome:
    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        process_environment.import_tensorflow()
        from benchmarks import execution

        execution.execute(config, log, display)
    except UsageError:
        raise
    except BenchError as error:
        return Outcome(error.record_status, str(error), error.exit_status)
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


def _record(config: Config, log: RunLog, outcome: Outcome, provenance: Provenance) -> Record:
    measurement = log.measurement()
    derived = derive(measurement, config.num_devices) if trustworthy(outcome.status) else Derived()
    spec = specs.find(config.model)
    read = {"data_set": log.data_set} if log.data_set else {}
    return Record(
        identity=provenance.identity({**config.key_fields(), **read}),
        config={**config.to_dict(), **read},
        config_aside=config.aside_fields(),
        environment=provenance.environment,
        model={field: getattr(spec, field) for field in ("title", "image_size", "parameters", "gflop_per_image")},
        placement=log.placement,
        measurement=measurement,
        derived=derived,
        status=outcome.status,
        reason=outcome.reason,
        warnings=[*config.notices, *_doubts(config, measurement, derived, provenance.load_per_core)],
    )


def _doubts(config: Config, measurement: Measurement, derived: Derived, load_per_core: float) -> list[str]:
    conditions = Conditions(
        load_per_core=load_per_core,
        cpu_devices=config.num_devices if config.device == "cpu" else 0,
        cores=hardware.usable_cores(),
        training=not config.forward_only,
    )
    return doubts(measurement, derived, conditions)
