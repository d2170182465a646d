"""The verb `input`: the speed of each stage of the input, and the limiting stage. Imports TensorFlow late."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.flag import Flag, Groups, only
from benchmarks.config.run_flags import IMAGE_FLAGS, RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.input.catalog import DATA_SETS, existing_directory
from benchmarks.record_files import keep, open_store
from benchmarks.system import hardware
from benchmarks.system.provenance import of_this_run
from benchmarks.topology.start import start
from models import specs
from results.input_verdict import advice, costs
from results.measurement import Measurement, derive
from results.record import Kind, Record, Status
from results.store import Store

_ROUNDS = 5
_DEFAULT_SECONDS = 5.0


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> tuple[Config, float]:
    """Turns flag values (None: not given) into the run whose input is measured, and the seconds per stage.

    Raises:
        UsageError: no data set is given, or a value is invalid.
    """
    chosen = config.resolve(values, count_gpus, environ={})
    if chosen.data_name not in DATA_SETS:
        raise UsageError("input measures how images are read: pass --data_dir=DIR.")
    seconds = _DEFAULT_SECONDS if values["seconds"] is None else values["seconds"]
    if seconds <= 0:
        raise UsageError(f"--seconds={seconds} must be above 0.")
    return chosen, seconds


def run(chosen: Config, seconds: float, command: Sequence[str]) -> ExitStatus:
    """Measures each stage, prints a table and the limiting stage, and saves a record.

    Raises:
        UsageError: devices are missing, or results cannot be written.
        DataError: the data set cannot be read.
    """
    as_text = chosen.output_format == "text"
    store = open_store(chosen.output_dir)
    provenance = of_this_run(command, on_gpus=chosen.device == "gpu", session_id=chosen.session_id)
    assert chosen.data_dir is not None and chosen.input is not None, "a data set has a directory and options"
    existing_directory(chosen.data_name, chosen.data_dir)  # reported before the seconds of TensorFlow's import
    place, session_config = start(chosen.runtime)
    from benchmarks.input import host_pipeline
    from benchmarks.input.tower_input import InputSpec
    from benchmarks.microbench import input_stages
    from benchmarks.training import run_input

    model = specs.find(chosen.model)
    spec = InputSpec(
        batch_per_device=chosen.batch_per_device,
        image_size=model.image_size,
        channels=model.channels,
        data_format=chosen.data_format,
        num_classes=chosen.num_classes,
        seed=chosen.seed,
    )
    source = host_pipeline.find(chosen.data_name, chosen.data_dir, chosen.input.split)

    how = {"in_turn": not chosen.modifiers.asynchronous, "pipelined": chosen.pipelined_input}
    build_copy = functools.partial(run_input.build, model, spec, place.towers, chosen.input, source, **how)
    if as_text:
        say(f"{DATA_SETS[chosen.data_name].title}: {source.describe()}")
        say(f"{chosen.batch_per_device} images per batch, for {place.description}, {hardware.usable_cores()} cores\n")
    with input_stages.probes(
        source, spec, chosen.input, num_devices=chosen.num_devices, session_config=session_config, build_copy=build_copy
    ) as probes:
        rates = input_stages.measure(probes, rounds=_ROUNDS, seconds=seconds / _ROUNDS)
    bare = rates.pop(input_stages.BARE_DECODE, None)
    measurement = Measurement(
        images_per_step=chosen.batch_global,
        step_seconds=rates[input_stages.COPY].batch_seconds,
        input_stages={name: rate.images_per_sec for name, rate in rates.items()},
        bare_decode_images_per_sec=bare.images_per_sec if bare else None,
    )
    read = {"data_set": source.identify()}
    record = Record(
        identity=provenance.identity({**chosen.key_fields(), **read, "kind": Kind.INPUT}),
        config={**chosen.to_dict(), **read},
        config_aside=chosen.aside_fields(),
        environment=provenance.environment,
        model={"title": model.title, "image_size": model.image_size},
        placement={},
        measurement=measurement,
        derived=derive(measurement, chosen.num_devices),
        status=Status.OK,
        kind=Kind.INPUT,
    )
    if as_text:
        _show(measurement, rates["batch"].rounds, bare.rounds if bare else [])
    return _save(store, record, as_text)


def _show(measurement: Measurement, batches_per_sec: Sequence[float], bare_per_sec: Sequence[float]) -> None:
    """Prints a line per stage, the rate of batches over that of bare decode in each round, and the limiting stage.

    A line shows images per second up to the stage, per core, and the stage's own cost.
    """
    cores, bare = hardware.usable_cores(), measurement.bare_decode_images_per_sec
    say(f"{'pipeline up to':15} {'images/s':>9} {'per core':>9} {'adds, ms of a core':>19} {'share':>6}")
    for cost in costs(measurement.input_stages):
        say(
            f"{cost.name:15} {cost.images_per_sec:9.0f} {cost.images_per_sec / cores:9.0f} "
            f"{1000 * cores * cost.seconds_per_image:19.2f} {cost.share:6.0%}"
        )
    if bare is not None:
        say(f"{'bare decode':15} {bare:9.0f} {bare / cores:9.0f}")
        ratios = [one / other for one, other in zip(batches_per_sec, bare_per_sec, strict=True)]
        say(
            f"\nBatches are made at {statistics.median(ratios):.2f} of the rate of bare decode "
            f"({min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} rounds)."
        )
    say(advice(measurement.input_stages))


def _save(store: Store, record: Record, as_text: bool) -> ExitStatus:
    if not as_text:
        say(record.to_json())
    kept = keep(store, record)
    if kept and as_text:
        say(f"record: {store.jsonl_path} ({record.identity.run_id})")
    return ExitStatus.OK if kept else ExitStatus.RUN_FAILED


INPUT_FLAGS: Groups = {
    "What is measured": (
        Flag("seconds", float, "per stage (default 5)"),
        *only(RUN_FLAGS["What is trained"], "model", "batch_size", "num_classes"),
        Flag("tf_random_seed", int, "seed of the order and the crops (default 1234)"),
    ),
    **IMAGE_FLAGS,
    "Devices": RUN_FLAGS["Devices"],
    "Output": only(RUN_FLAGS["Output"], "output_dir", "output_format", "session_id"),
}
VERB = Verb(
    "input",
    "how fast is each stage of the input, and which one limits it?",
    INPUT_FLAGS,
    lambda given, command: run(*resolve(given.values, hardware.count_gpus), command),
)
