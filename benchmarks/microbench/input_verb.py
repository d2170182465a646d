"""The verb `input`: how fast is each stage of the input, and what limits it? Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
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
from benchmarks.system.provenance import Provenance, of_this_run
from benchmarks.topology.start import start
from models import specs
from results.input_verdict import advice, costs
from results.measurement import Measurement, derive
from results.record import Kind, Record, Status

_ROUNDS = 5
_DEFAULT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured, and for how many seconds per stage."""

    chosen: Config
    seconds: float


def resolve(values: Mapping[str, Any], seconds: float | None, count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: nothing is to be read, or a value makes no sense.
    """
    chosen = config.resolve(values, count_gpus, environ={})
    if chosen.data_name not in DATA_SETS:
        raise UsageError("input measures how images are read: say which with --data_dir=DIR.")
    if seconds is not None and seconds <= 0:
        raise UsageError(f"--seconds={seconds} must be above 0.")
    return Plan(chosen, _DEFAULT_SECONDS if seconds is None else seconds)


def run(plan: Plan, command: Sequence[str]) -> ExitStatus:
    """Measures each stage, prints a table and the verdict, and keeps a record.

    Raises:
        UsageError: the devices are not there, or results cannot be kept.
        DataError: the data set cannot be read.
    """
    chosen = plan.chosen
    as_text = chosen.output_format == "text"
    store = open_store(chosen.output_dir)
    provenance = of_this_run(command, on_gpus=chosen.device == "gpu", session_id=chosen.session_id)
    assert chosen.data_dir is not None, "what is not synthetic is read"
    existing_directory(chosen.data_name, chosen.data_dir)  # told before TensorFlow takes its seconds
    place, _ = start(chosen.runtime)
    from benchmarks.microbench import input_stages
    from benchmarks.training import run_input

    source = run_input.find(chosen)
    assert source is not None, "there is a directory"
    if as_text:
        say(f"{DATA_SETS[chosen.data_name].title}: {source.describe()}")
        say(f"{chosen.batch_per_device} images per batch, for {place.description}, {hardware.usable_cores()} cores\n")
    with input_stages.probes(chosen, source, place.towers) as probes:
        rates = input_stages.measure(probes, rounds=_ROUNDS, seconds=plan.seconds / _ROUNDS)
    bare = rates.pop(input_stages.BARE_DECODE, None)
    measurement = Measurement(
        images_per_step=chosen.batch_global,
        step_seconds=rates[input_stages.COPY].batch_seconds,
        input_stages={name: rate.images_per_sec for name, rate in rates.items()},
        bare_decode_images_per_sec=bare.images_per_sec if bare else None,
    )
    record = _record(chosen, {"data_set": source.identify()}, measurement, provenance)
    if as_text:
        _show(measurement, input_stages.ratios(rates["batch"], bare) if bare else [])
    else:
        say(record.to_json())
    kept = keep(store, record)
    if kept and as_text:
        say(f"record: {store.jsonl_path} ({record.identity.run_id})")
    return ExitStatus.OK if kept else ExitStatus.RUN_FAILED


def _record(chosen: Config, read: Mapping[str, Any], measurement: Measurement, provenance: Provenance) -> Record:
    spec = specs.find(chosen.model)
    return Record(
        identity=provenance.identity({**chosen.key_fields(), **read, "kind": Kind.INPUT}),
        config={**chosen.to_dict(), **read},
        config_aside=chosen.aside_fields(),
        environment=provenance.environment,
        model={"title": spec.title, "image_size": spec.image_size},
        placement={},
        measurement=measurement,
        derived=derive(measurement, chosen.num_devices),
        status=Status.OK,
        kind=Kind.INPUT,
    )


def _show(measurement: Measurement, to_bare_decode: Sequence[float]) -> None:
    """Prints the table, batches over bare decode by rounds, and what limits."""
    for line in table(measurement, hardware.usable_cores()):
        say(line)
    if to_bare_decode:
        say(
            f"\nBatches are made at {statistics.median(to_bare_decode):.2f} of the rate of bare decode "
            f"({min(to_bare_decode):.2f} to {max(to_bare_decode):.2f} over {len(to_bare_decode)} rounds)."
        )
    say(advice(measurement.input_stages))


def table(measurement: Measurement, cores: int) -> list[str]:
    """Returns a line per stage: images per second up to it, per core, and what it adds."""
    lines = [f"{'pipeline up to':15} {'images/s':>9} {'per core':>9} {'adds, ms of a core':>19} {'share':>6}"]
    for cost in costs(measurement.input_stages):
        lines.append(
            f"{cost.name:15} {cost.images_per_sec:9.0f} {cost.images_per_sec / cores:9.0f} "
            f"{1000 * cores * cost.seconds_per_image:19.2f} {cost.share:6.0%}"
        )
    bare = measurement.bare_decode_images_per_sec
    return lines if bare is None else [*lines, f"{'bare decode':15} {bare:9.0f} {bare / cores:9.0f}"]


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
    lambda given, command: run(resolve(given.values, given.values["seconds"], hardware.count_gpus), command),
)
