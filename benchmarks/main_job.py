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
from benchmarks.display import Display, JsonDisplay, TextDisplay, say, warn
from benchmarks.errors import BenchError, ExitStatus, Terminated, UsageError
from benchmarks.run_log import RunLog
from models import specs
from results.doubts import Conditions, doubts
from results.record import Derived, Measurement, Record, Status, derive, identify, trustworthy
from results.store import Store, StoreError


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended, for the record and for the shell."""

    status: Status = Status.OK
    reason: str = ""
    exit_status: ExitStatus = ExitStatus.OK


@dataclasses.dataclass(frozen=True)
class _Machine:
    """The machine as it was before the run."""

    inventory: hardware.Inventory
    load_1min: float = dataclasses.field(default_factory=lambda: os.getloadavg()[0])


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
    process_environment.prepare(
        device=config.device, visible_gpus=config.visible_gpus, log_placement=config.log_device_placement
    )
    machine = _Machine(hardware.gpu_inventory() if config.device == "gpu" else hardware.Inventory())
    log = RunLog(images_per_step=config.batch_global)
    display = _display(config)
    outcome = _attempt(config, log, display)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what has been measured is now written, whoever is impatient
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record = _record(config, command, log, outcome, machine)
    display.finish(record)
    for warning in record.warnings[len(config.notices) :]:
        warn(warning)
    if outcome.reason:
        warn(outcome.reason)
    kept = _keep(record, store, display)
    return outcome.exit_status or kept


def _keep(record: Record, store: Store, display: Display) -> ExitStatus:
    """Stores the record; if that fails, stdout is the last place where it can be kept."""
    try:
        problems = store.append(record)
    except StoreError as error:
        warn(f"{error} The record follows on stdout.")
        say(record.to_json())
        return ExitStatus.RUN_FAILED
    for problem in problems:
        warn(problem)
    display.stored(f"{store.jsonl_path} ({record.identity.run_id}) and {store.csv_path}")
    return ExitStatus.OK


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


def _record(config: Config, command: Sequence[str], log: RunLog, outcome: Outcome, machine: _Machine) -> Record:
    hardware_facts = hardware.describe_hardware(machine.inventory)
    software = environment.describe_software()
    measurement = log.measurement()
    derived = derive(measurement, config.num_devices) if trustworthy(outcome.status) else Derived()
    spec = specs.find(config.model)
    return Record(
        identity=identify(
            command=command,
            suite_commit=environment.suite_commit(),
            config=config.key_fields(),
            hardware=hardware_facts,
            software=software,
        ),
        config=config.to_dict(),
        environment={
            **hardware_facts,
            **software,
            **environment.describe_surroundings(machine.inventory),
            "load_1min_before": machine.load_1min,
        },
        model={field: getattr(spec, field) for field in ("title", "image_size", "parameters", "gflop_per_image")},
        placement=log.placement,
        measurement=measurement,
        derived=derived,
        status=outcome.status,
        reason=outcome.reason,
        warnings=[*config.notices, *_doubts(config, measurement, derived, machine.load_1min)],
    )


def _doubts(config: Config, measurement: Measurement, derived: Derived, load_before: float) -> list[str]:
    cores = hardware.usable_cores()
    conditions = Conditions(
        load_per_core=load_before / cores,
        cpu_devices=config.num_devices if config.device == "cpu" else 0,
        cores=cores,
        training=not config.forward_only,
    )
    return doubts(measurement, derived, conditions)
