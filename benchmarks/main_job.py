"""The main job: one run from configuration to record, whatever happens on the way. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from benchmarks import environment, hardware, process_environment
from benchmarks.config import Config
from benchmarks.display import Display, JsonDisplay, TextDisplay, warn
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError
from benchmarks.run_log import RunLog
from models import specs
from results.doubts import Conditions, doubts
from results.record import Derived, Measurement, Record, Status, derive, identify
from results.store import Store, StoreError


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
    store = _open_store(config)
    for notice in config.notices:
        warn(notice)
    load_before = os.getloadavg()[0]
    process_environment.prepare(
        device=config.device, visible_gpus=config.visible_gpus, log_placement=config.log_device_placement
    )
    log = RunLog(images_per_step=config.batch_global)
    display = _display(config)
    outcome = _attempt(config, log, display)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has been measured is now written, whoever is impatient
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record = _record(config, command, log, outcome, load_before)
    for warning in record.warnings:
        warn(warning)
    store.append(record)
    display.finish(record, f"{store.jsonl_path} ({record.identity.run_id}) and {store.csv_path}")
    if outcome.reason:
        warn(outcome.reason)
    return outcome.exit_status


def _open_store(config: Config) -> Store:
    try:
        return Store(Path(config.output_dir))
    except StoreError as error:
        raise UsageError(str(error)) from error


def _display(config: Config) -> Display:
    if config.output_format == "json":
        return JsonDisplay()
    return TextDisplay(
        display_every=config.display_every, images_per_step=config.batch_global, terminal=sys.stderr.isatty()
    )


def _attempt(config: Config, log: RunLog, display: Display) -> Outcome:
    signal.signal(signal.SIGTERM, _terminate)
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
        first_line = (str(error).strip().splitlines() or [""])[0]
        return Outcome(Status.CRASH, f"{type(error).__name__}: {first_line}", ExitStatus.RUN_FAILED)
    finally:
        display.stop()
    return Outcome()


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated


def _record(config: Config, command: Sequence[str], log: RunLog, outcome: Outcome, load_before: float) -> Record:
    inventory = hardware.gpu_inventory() if config.device == "gpu" else hardware.Inventory()
    machine = hardware.describe_hardware(inventory)
    software = environment.describe_software()
    measurement = log.measurement()
    derived = derive(measurement, config.num_devices)
    spec = specs.find(config.model)
    return Record(
        identity=identify(
            command=command,
            suite_commit=environment.suite_commit(),
            config=config.key_fields(),
            hardware=machine,
            software=software,
        ),
        config=config.to_dict(),
        environment={
            **machine,
            **software,
            **environment.describe_surroundings(inventory),
            "load_1min_before": load_before,
        },
        model={field: getattr(spec, field) for field in ("title", "image_size", "parameters", "gflop_per_image")},
        placement=log.placement,
        measurement=measurement,
        derived=derived,
        status=outcome.status,
        reason=outcome.reason,
        warnings=[*config.notices, *_doubts(config, measurement, derived, load_before)],
    )


def _doubts(config: Config, measurement: Measurement, derived: Derived, load_before: float) -> list[str]:
    cores = hardware.usable_cores()
    conditions = Conditions(
        load_per_core=load_before / cores,
        cpu_devices=config.num_devices if config.device == "cpu" else 0,
        cores=cores,
    )
    return doubts(measurement, derived, conditions)
