"""Records that no run has made, and some of real runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from results import loading, record
from results.measurement import Measurement, derive
from results.record import Kind, Record, Status

# Of a field of a JSON document.
FieldPath = tuple[str | int, ...]
# Of `night`.
MACHINE = {"cpu_model": "EPYC", "cpu_cores_usable": 8, "memory_gib": 32, "gpus": []}
GOLDEN = Path(__file__).resolve().parent.parent / "results" / "golden"


def make_record(**changes: object) -> Record:
    """A run on two devices whose derived numbers are easily worked out by hand."""
    measurement = Measurement(
        images_per_step=16,
        startup_seconds=2.0,
        first_step_seconds=1.0,
        warmup_step_seconds=[0.3],
        step_seconds=[0.1] * 6,
        losses=[6.0, 5.5, 5.0, 4.5, 4.0, 3.5],
        warmup_losses=[7.0, 6.5],
    )
    fields = {
        "identity": record.identify(
            command=["--model=trivial"], suite_commit=None, config={"a": 1}, hardware={"b": 2}, software={}
        ),
        "config": {"model": "trivial", "num_devices": 2, "batch_per_device": 8},
        "environment": {"tensorflow_version": "2.21.0"},
        "model": {"gflop_per_image": 0.0085},
        "placement": {},
        "measurement": measurement,
        "derived": derive(measurement, 2),
        "status": Status.OK,
    }
    return Record(**{**fields, **changes})


def fake_run(
    *,
    step_seconds: float | list[float] = 0.1,
    rate: float | None = None,
    status: Status = Status.OK,
    reason: str = "",
    hardware: str = "a machine",
    sent: int = 0,
    warnings: tuple[str, ...] = (),
    **config: object,
) -> Record:
    """A run with 20 equal steps, of that time or at that rate, or with those given."""
    reduces = config.get("variable_update", "replicated") == "replicated"
    chosen = {
        "model": "resnet50",
        "device": "gpu",
        "num_devices": 1,
        "batch_per_device": 32,
        "variable_update": "replicated",
        "shared_on": "gpu",
        "modifiers": {"all_reduce_spec": "psgpu" if reduces else None},
        "data_name": "synthetic",
        "precision": "fp32",
        "forward_only": False,
        "output_dir": "out",
    } | config
    images = chosen["num_devices"] * chosen["batch_per_device"]
    step_seconds = step_seconds if rate is None else images / rate
    seconds = step_seconds if isinstance(step_seconds, list) else [step_seconds] * 20
    measurement = Measurement(
        images_per_step=images,
        startup_seconds=3.0,
        first_step_seconds=1.0,
        warmup_step_seconds=[0.2, 0.15],
        step_seconds=seconds if status is Status.OK else [],
        losses=[6.0] * len(seconds),
    )
    command = [f"--{name}={value}" for name, value in chosen.items() if isinstance(value, str | int)]
    return Record(
        identity=record.identify(
            command=command,
            suite_commit="abc",
            config={name: value for name, value in chosen.items() if name != "output_dir"},
            hardware={"cpu": hardware},
            software={"tensorflow": "2.21.0"},
        ),
        config=chosen,
        config_not_in_key=["output_dir"],
        environment={"cpu": hardware, "tensorflow_version": "2.21.0", "variables": {"TF_X": "<b>1</b>"}},
        model={"gflop_per_image": 7.7},
        placement={"sent_per_step": {"gradient_bytes": sent, "total_bytes": sent}},
        measurement=measurement,
        derived=derive(measurement, chosen["num_devices"]),
        status=status,
        reason=reason,
        warnings=warnings,
    )


def at_minutes(runs: Sequence[Record], minutes: Iterable[int]) -> list[Record]:
    """The runs, as if they had ended at these minutes of an hour."""
    times = (f"2026-01-01T00:{minute:02d}:00+00:00" for minute in minutes)
    return [replace(run, identity=replace(run.identity, time_utc=at)) for run, at in zip(runs, times, strict=True)]


def night(day: int, rate: float = 100.0, rounds: int = 3, **config: object) -> list[Record]:
    """The rounds of a session, a minute and 0.2 % apart."""
    made = []
    for index in range(rounds):
        run = fake_run(rate=rate * (1 + 0.002 * (index - 1)), **config)
        time = f"2026-01-{day:02d}T00:{index:02d}:00+00:00"
        identity = replace(run.identity, time_utc=time, session_id=f"night {day}")
        made.append(replace(run, identity=identity, environment={**MACHINE, "tensorflow_version": "2.21.0"}))
    return made


def nights(number: int, rate: float = 100.0, *, slower_from: int = 99, **config: object) -> list[Record]:
    """Sessions that differ by 0.5 %, of which the last are 10 % slower."""
    levels = {day: rate * (0.9 if day >= slower_from else 1.0) for day in range(1, number + 1)}
    return [run for day, level in levels.items() for run in night(day, level * (1 + 0.005 * (day % 3 - 1)), **config)]


def fake_reduction(spec: str, size_bytes: int, seconds: float) -> Record:
    """An all-reduce of one tensor on two devices."""
    run = fake_run(num_devices=2)
    measurement = Measurement(
        images_per_step=None, step_seconds=[seconds] * 5, message_bytes=size_bytes, largest_error=1e-8
    )
    return replace(
        run,
        kind=Kind.ALL_REDUCE,
        config={"message": f"{size_bytes // 1024}K", "modifiers": {"all_reduce_spec": spec}, "num_devices": 2},
        measurement=measurement,
        derived=derive(measurement, 2),
    )


def fake_input() -> Record:
    """The stages of the input of a made-up data set."""
    run = fake_run(data_name="imagenet", data_set="TFDS <records>, 4 files")
    measurement = Measurement(
        images_per_step=32,
        step_seconds=[0.04] * 20,
        input_stages={"read": 5000.0, "decode": 1000.0, "copy": 800.0},
        bare_decode_images_per_sec=1000.0,
    )
    return replace(run, kind=Kind.INPUT, measurement=measurement, derived=derive(measurement, 1))


def everything() -> list[Record]:
    """Records with something for every view: scaling, batches, managers, real data, failures, reductions."""
    records = []
    for model, seconds in (("resnet50", 0.1), ("vgg16", 0.3)):
        for devices in (1, 2, 4):
            for manager, cost in (("independent", 0.0), ("replicated", 0.01), ("parameter_server", 0.3)):
                slower = seconds * (1 + cost * (devices - 1))
                for repeat in range(3):
                    steps = [slower * (1 + 0.01 * ((step + repeat) % 5)) for step in range(20)]
                    records.append(
                        fake_run(
                            model=model,
                            num_devices=devices,
                            variable_update=manager,
                            step_seconds=steps,
                            sent=int(cost * 1e9) * (devices - 1),
                        )
                    )
    records += [fake_run(batch_per_device=batch, step_seconds=0.02 + 0.002 * batch) for batch in (8, 16, 64)]
    records.append(fake_run(data_name="imagenet", step_seconds=0.125, num_devices=2))
    records += [fake_run(precision="fp16", step_seconds=0.12) for _ in range(3)]
    records.append(fake_run(model="inception3", status=Status.OUT_OF_MEMORY, reason="Out of memory: <script>alert(1)"))
    records += [fake_run(model="trivial"), fake_run(model="trivial", status=Status.CRASH, reason="Ended by a | b.")]
    records.append(fake_run(model="alexnet", status=Status.SKIPPED, reason="asks for 8 GPUs"))
    records += [
        fake_reduction(spec, 2**n, 1e-4 + 2**n / speed)
        for spec, speed in (("psgpu", 5e9), ("xring", 3e9))
        for n in range(10, 24)
    ]
    records.append(fake_input())
    return records


def paths(value: Any, prefix: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the path and the value of every field and entry of a JSON document."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*prefix, key), part
        if isinstance(part, dict | list):
            yield from paths(part, (*prefix, key))


def with_field(record: Record, path: FieldPath, value: Any) -> str:
    """Returns the line of a record with another value at a path."""
    fields = part = json.loads(record.to_json())
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return json.dumps(fields)


def golden_records() -> list[Record]:
    """Returns records of real runs: two in one process, one of two workers, and one of the input's stages."""
    loaded = loading.load(GOLDEN / "records.jsonl")
    assert loaded.problems == []
    return loaded.records
