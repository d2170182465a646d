"""Is a record whole: does all that it states follow from its measurement, on a machine that it names, undisturbed?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from results import statistics
from results.gate import comparison
from results.masking import MASK
from results.measurement import derive
from results.record import Kind, Record, Status, flat
from results.text import ODD_VALUE, one_line

_SAME = 1e-6  # relative: NumPy's versions add in different orders
# Derived numbers that depend on more than the record.
_OF_OTHER_RUNS = ("synthetic_ratio", "measured_peak_tflops", "mfu_of_measured_peak")
_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib", "gpus")
_SOFTWARE = tuple(f"{name}_version" for name in ("python", "tensorflow", "keras", "numpy", "cuda", "cudnn", "nccl"))


def why_not(record: Record) -> Iterator[str]:
    """Yields a sentence for each reason why a run is not whole."""
    steps, environment = len(record.measurement.step_seconds), record.environment
    if record.kind is not Kind.RUN or record.status is not Status.OK:
        yield f"kind and status must be run and ok, and are {record.kind} and {record.status}: leave it out"
        return
    if record.in_turn:
        yield "steps_per_turn: its steps were interleaved with another run's: measure it alone, with run or sweep"
    if environment.get("slowed_down_by"):
        yield "slowed_down_by: its steps were delayed on purpose: measure it without the delay"
    if (record.identity.suite_commit or "").endswith("+"):
        yield "suite_commit ends in +: files of the suite were changed: commit or undo that, and measure it again"
    if steps < statistics.MIN_STEPS_FOR_INTERVAL:
        yield (
            f"it has {steps} steps, and an interval needs {statistics.MIN_STEPS_FOR_INTERVAL}: give more --num_batches"
        )
    try:
        yield from _wrong_numbers(record)
    except ODD_VALUE:  # telemetry and evaluations may hold anything
        yield "what was observed are no numbers of a run: measure it again"
    needed = (*_HARDWARE[: 4 if record.config.get("device") == "gpu" else 3], "tensorflow_version")
    if missing := [name for name in needed if environment.get(name) in (None, "", [])]:
        yield f"environment lacks {', '.join(missing)}: nobody can tell what was measured: measure it with this version"
    if missing := [n for n in ("model", "num_devices", "batch_per_device", "device") if record.config.get(n) is None]:
        yield f"config lacks {', '.join(missing)}: it cannot be compared: measure it with this version"


def _wrong_numbers(record: Record) -> Iterator[str]:
    config, measured = record.config, record.measurement
    images, steps = measured.images_per_step, len(measured.step_seconds)
    if not images:
        yield "images_per_step is missing: measure it again"
        return
    sizes = [config.get(name) for name in ("num_devices", "num_workers", "batch_per_device")]
    if not all(size is None or type(size) is int for size in sizes):
        yield "num_devices, num_workers and batch_per_device are not all whole numbers: measure it again"
        return
    devices = (sizes[0] or 0) * (sizes[1] or 1)
    wanted = (sizes[2] or 0) * devices
    if wanted and images != wanted:
        yield f"images_per_step is {images}, and batch_per_device times all devices is {wanted}: measure it again"
    compiled = config.get("xla") == "jit" and not (config.get("modifiers") or {}).get("staged_vars")
    on_cpu = config.get("device") == "cpu"
    expected = asdict(derive(measured, devices or 1, compiled=compiled, towers_share_cores=on_cpu))
    for name, value in expected.items():
        stated = getattr(record.derived, name)
        if value is None and stated is not None and name not in _OF_OTHER_RUNS:
            yield f"derived.{name} is {stated}, and {steps} steps are too few for it: measure it again"
        elif value is not None and (stated is None or not math.isclose(stated, value, rel_tol=_SAME)):
            yield f"derived.{name} is {stated}, and {value:.6g} follows from the measurement: measure it again"


def mixed(records: Sequence[Record]) -> Iterator[str]:
    """Yields a sentence for two records whose keys contradict what they state: equal keys are those of equal facts."""
    for key, facts_of, what in (
        ("hardware_key", _named(_HARDWARE), "hardware"),
        ("software_key", _named(_SOFTWARE), "software"),
        ("config_key", _config, "configuration"),
    ):
        seen: dict[str, Record] = {}
        for record in records:
            facts = facts_of(record)
            alike = [seen.setdefault(getattr(record.identity, key), record)]
            if MASK not in str(facts):  # else what differs may be what is not public
                alike.append(seen.setdefault(f"{record.identity.suite_version} {sorted(facts.items())}", record))
            for other in alike:
                first, second = ({key: getattr(one.identity, key), **facts_of(one)} for one in (other, record))
                if differing := comparison.differences(first, second, (_id(other), _id(record))):
                    yield (
                        f"{_id(record)}: {key} and {what} contradict those of {_id(other)}: "
                        f"{comparison.listed(differing)}. Equal keys mean equal {what}: publish their runs again."
                    )


def _named(names: Sequence[str]) -> Callable[[Record], dict[str, Any]]:
    return lambda record: {name: record.environment.get(name) for name in names}


def _config(record: Record) -> Mapping[str, Any]:
    not_in_key = {*record.config_not_in_key, "cluster"}
    inside = {name: value for name, value in record.config.items() if name not in not_in_key}
    # A cluster of one worker has another key than no cluster.
    return {**{n: str(v) for n, v in flat(inside).items()}, "cluster": str(bool(record.config.get("cluster")))}


def _id(record: Record) -> str:
    return one_line(record.identity.run_id)
