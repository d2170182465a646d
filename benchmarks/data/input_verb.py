"""The verb `input`: the speed of each stage of the input, and the limiting stage. Imports TensorFlow late."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from benchmarks.cluster import ranks
from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.flag import Parsed
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.data.sources.data_sets import DATA_SETS, existing_directory
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import BenchError, ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance, of_this_run
from benchmarks.option import Flag, Groups, only
from benchmarks.process.deadlines import Deadlines, recorded
from benchmarks.process.signals import until_stopped
from benchmarks.process.watchdog import watched
from benchmarks.record_files import open_store, save
from benchmarks.run.run_record import base_record
from models import specs
from results.input_bottleneck import advice, costs
from results.measurement import Measurement, derive
from results.record import Kind, Record, Status
from results.text import Table

if TYPE_CHECKING:
    from benchmarks.data.pipeline.input_stages import Rates

_ROUNDS = 5
_DEFAULT_SECONDS = 5.0


def run_input(chosen: Config, seconds: float, command: Sequence[str]) -> ExitStatus:
    """Measures each stage, saves a record, and prints a table and the limiting stage.

    Raises:
        UsageError: devices are missing, or results cannot be written.
        DataError: the data set cannot be read.
    """
    workload, data, output = chosen.workload, chosen.data, chosen.output
    step_timeout_seconds, as_text = chosen.processes.step_timeout_seconds, output.output_format == "text"
    assert data.data_dir is not None and data.input is not None, "a data set has a directory and options"
    warn(*chosen.notices)
    with watched() as watchdog:
        deadlines = Deadlines(watchdog, step_timeout_seconds)
        deadlines.opening("Opening the results directory")
        store = open_store(output.output_dir)
        deadlines.opening("Looking at this machine")
        provenance = of_this_run(command, on_gpus=chosen.devices.on_gpu, session_id=output.session_id)
        deadlines.opening(f"Opening --data_dir={data.data_dir}")
        existing_directory(data.data_name, data.data_dir)  # reported before the seconds of TensorFlow's import
        place, session_config = start(chosen.runtime, deadlines)
    from benchmarks.data.pipeline import input_pipeline, input_stages
    from benchmarks.graph import run_graph

    model, data_set = specs.find_model(workload.model), None

    def save_failed(error: BenchError) -> None:
        save(store, _record(chosen, provenance, data_set=data_set, error=error))

    with recorded(step_timeout_seconds, save_failed) as deadlines:
        deadlines.preparation(f"Reading --data_dir={data.data_dir}")
        source = input_pipeline.find_source(data.data_name, data.data_dir, data.input.split)
        data_set = source.identify()
        if as_text:
            say(f"{DATA_SETS[data.data_name].title}: {source.describe()}")
            cores = hardware.usable_cores()
            say(f"{workload.batch_per_device} images per batch, for {place.description}, {cores} cores\n")
        measured = input_stages.Measuring(
            source=source,
            spec=run_graph.input_spec(chosen),
            options=data.input,
            num_devices=chosen.devices.num_devices,
            session_config=session_config,
            deadlines=deadlines,
        )
        how = {"pipelined": data.pipelined_input}
        build = functools.partial(input_pipeline.build, model, measured.spec, place.towers, data.input, source, **how)
        with input_stages.probes(measured, build) as probes:
            rates = input_stages.measure(probes, rounds=_ROUNDS, seconds=seconds / _ROUNDS, deadlines=deadlines)
            deadlines.preparation("Ending the input's pipelines")
        buffer = input_stages.shuffle_buffer(measured, seconds / _ROUNDS)
    measurement = _measurement(rates, buffer, images_per_step=chosen.batch_global)
    (record,), kept = save(store, _record(chosen, provenance, measurement, data_set=data_set))
    if not as_text:
        say(record.to_json())
    else:
        _show(measurement, {**vars(data.input), "pipelined_input": data.pipelined_input})
        if kept:
            say(f"record: {store.jsonl_path} ({record.identity.run_id})")
    return ExitStatus.OK if kept else ExitStatus.RUN_FAILED


def _measurement(
    rates: Mapping[str, Rates], shuffle_buffer: Mapping[str, float], *, images_per_step: int
) -> Measurement:
    from benchmarks.data.pipeline.input_stages import BARE_DECODE, COPY

    stages = {name: rate for name, rate in rates.items() if name != BARE_DECODE}
    bare = rates.get(BARE_DECODE)
    return Measurement(
        images_per_step=images_per_step,
        step_seconds=rates[COPY].batch_seconds,
        input_stages={name: rate.images_per_sec for name, rate in stages.items()},
        input_stage_rounds={name: rate.rounds for name, rate in stages.items()},
        shuffle_buffer=shuffle_buffer,
        bare_decode_images_per_sec=bare.images_per_sec if bare else None,
    )


def _record(
    chosen: Config,
    provenance: Provenance,
    measurement: Measurement | None = None,
    *,
    data_set: str | None = None,
    error: BenchError | None = None,
) -> Record:
    """Returns the record of a measurement, or of its failure."""
    status, reason = (error.record_status, str(error)) if error else (Status.OK, "")
    base = base_record(chosen, provenance, status, reason, data_set=data_set, kind=Kind.INPUT)
    if measurement is None:
        return base
    return replace(base, measurement=measurement, derived=derive(measurement, chosen.devices.num_devices))


def _show(measurement: Measurement, options: Mapping[str, Any]) -> None:
    """Prints a line per stage, and the limiting stage.

    A line shows images per second up to the stage with its interval, per core, and the stage's own cost.
    """
    from benchmarks.data.pipeline.input_stages import shuffle_buffer_in_words

    stages, rounds = measurement.input_stages, measurement.input_stage_rounds
    cores, bare = hardware.usable_cores(), measurement.bare_decode_images_per_sec
    numbers = ("images/s", "95 % interval", "per core", "adds, ms of a core", "share")
    stage_costs, rows = costs(stages, rounds), []
    for cost in stage_costs:
        adds, share = f"{1000 * cores * cost.seconds_per_image:.2f}", f"{cost.share:.0%}"
        adds, share = (adds, share) if cost.is_clear else ("noise", "")
        rate, interval = cost.images_per_sec.value, cost.images_per_sec.range("{:.0f}".format)
        rows.append([cost.name, f"{rate:.0f}", interval, f"{rate / cores:.0f}", adds, share])
    if bare is not None:
        rows.append(["bare decode", f"{bare:.0f}", "", f"{bare / cores:.0f}", "", ""])
    say(*Table(("pipeline up to", *numbers), rows, numbers).text(rule=False))
    say("")
    if not all(cost.is_clear for cost in stage_costs):
        say("noise: the repeats do not separate this stage from the slowest before it (paired t test at 99 %).")
    say(advice(stages, options, rounds))
    if measurement.shuffle_buffer:
        say(shuffle_buffer_in_words(measurement.shuffle_buffer))


INPUT_FLAGS: Groups = {
    "What is measured": (
        Flag("stage_seconds", float, "measuring time per stage", default=_DEFAULT_SECONDS, above=0),
        *only(RUN_FLAGS["What is trained"], "model", "batch_size", "num_classes"),
        *only(RUN_FLAGS["Optimizer"], "tf_random_seed"),
        *only(RUN_FLAGS["Several processes"], "step_timeout_seconds"),
    ),
    **{title: RUN_FLAGS[title] for title in ("Data", "How images are read and prepared")},
    "Devices": RUN_FLAGS["Devices"],
    "Output": only(RUN_FLAGS["Output"], "output_dir", "output_format", "session_id"),
}


def _resolve_and_run(given: Parsed, command: Sequence[str]) -> ExitStatus:
    warn(*ranks.refuse_copies(os.environ, can_join=False))
    chosen = config.resolve(given.values, hardware.count_gpus, environ={})
    if chosen.data.data_name not in DATA_SETS:
        raise UsageError("input measures how images are read: pass --data_dir=DIR.")
    seconds = _DEFAULT_SECONDS if given.values["stage_seconds"] is None else given.values["stage_seconds"]
    return until_stopped(lambda: run_input(chosen, seconds, command), "Stopped before the end: there are no rates.")


VERB = Verb(
    "input",
    INPUT_FLAGS,
    _resolve_and_run,
    examples=("input --data_dir=data/fake",),
)
