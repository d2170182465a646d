"""Is a record whole: does all that it states follow from its steps, on a machine that it names, undisturbed?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from results import statistics
from results.exchange import public_fields
from results.gate import comparability
from results.masking import MASK
from results.measurement import Measurement, derive
from results.record import Kind, Record, Status, flat
from results.text import ODD_VALUE, one_line

_SAME = 1e-6  # relative: NumPy's versions add in different orders
# The derived numbers that follow from the step times, the images of a step and the number of devices.
_OF_STEPS = (
    *("images_per_sec", "images_per_sec_low", "images_per_sec_high", "images_per_sec_per_device"),
    *("images_per_sec_jitter", "step_ms_p50", "step_ms_p90", "step_ms_p99", "step_ms_p999"),
)
_MASKED_HARDWARE = (
    "the name of a CPU or GPU is ***, since publish does not know a word of it: give its name with publish --machine."
)
_FACTS = ("cpu_model", "cpu_cores_usable", "memory_gib")
_HARDWARE = (*_FACTS, "gpus")
_SOFTWARE = tuple(f"{name}_version" for name in ("python", "tensorflow", "keras", "numpy", "cuda", "cudnn", "nccl"))
# Without compact gradients, it is not in the key.
_NOT_IN_KEY = frozenset({"modifiers.compact_gradient_dtype"})


def why_not(record: Record) -> Iterator[str]:
    """Yields a sentence for each reason why a run is not whole."""
    steps = len(record.measurement.step_seconds)
    if record.kind is not Kind.RUN or record.status is not Status.OK:
        yield f"kind and status must be run and ok, and are {record.kind} and {record.status}: leave it out"
        return
    if record.in_turn:
        yield "steps_per_turn: its steps were interleaved with another run's: measure it alone, with run or sweep"
    if record.environment.get("slowed_down_by"):
        yield "slowed_down_by: its steps were delayed on purpose: measure it without the delay"
    if (record.identity.suite_commit or "").endswith("+"):
        yield "suite_commit ends in +: files of the suite were changed: commit or undo that, and measure it again"
    if steps < statistics.MIN_STEPS_FOR_INTERVAL:
        yield (
            f"it has {steps} steps, and an interval needs {statistics.MIN_STEPS_FOR_INTERVAL}: give more --num_batches"
        )
    try:
        yield from _wrong_numbers(record)
    except ODD_VALUE:
        yield "its steps and images are no numbers of a run: measure it again"
    environment = record.environment
    needed = (*_FACTS, "tensorflow_version", *(["gpus"] if record.config.get("device") == "gpu" else []))
    if missing := [name for name in needed if environment.get(name) in (None, "", [])]:
        yield f"environment lacks {', '.join(missing)}: nobody can tell what was measured: measure it with this version"
    if missing := [n for n in ("model", "num_devices", "batch_per_device", "device") if record.config.get(n) is None]:
        yield f"config lacks {', '.join(missing)}: it cannot be compared: measure it with this version"


def _wrong_numbers(record: Record) -> Iterator[str]:
    seconds, images = record.measurement.step_seconds, record.measurement.images_per_step
    if not images:
        yield "images_per_step is missing: measure it again"
        return
    config = record.config
    devices = config.get("num_devices", 0) * (config.get("num_workers") or 1)
    wanted = config.get("batch_per_device", 0) * devices
    if wanted and images != wanted:
        yield f"images_per_step is {images}, and batch_per_device times all devices is {wanted}: measure it again"
    expected = derive(Measurement(images_per_step=images, step_seconds=seconds), devices or 1)
    for name in _OF_STEPS:
        stated, value = getattr(record.derived, name), getattr(expected, name)
        if value is None and stated is not None:
            yield f"derived.{name} is {stated}, and {len(seconds)} steps are too few for it: measure it again"
        elif value is not None and (stated is None or not math.isclose(stated, value, rel_tol=_SAME)):
            yield f"derived.{name} is {stated}, and {value:.6g} follows from step_seconds: measure it again"


def warnings(record: Record) -> list[str]:
    """Returns what makes the number of a whole run less reliable."""
    hardware = [record.environment.get(name) for name in ("cpu_model", "gpus")]
    masked = [_MASKED_HARDWARE] if MASK in str(hardware) else []
    return [*(public_fields.warning(sentence) for sentence in record.warnings), *masked]


def mixed(records: Sequence[Record]) -> Iterator[str]:
    """Yields a sentence for two records whose keys contradict what they state."""
    for key, of, what in (
        ("hardware_key", _named(_HARDWARE), "hardware"),
        ("software_key", _named(_SOFTWARE), "software"),
        ("config_key", _config, "configuration"),
    ):
        by_key: dict[str, Record] = {}
        by_facts: dict[str, Record] = {}
        for record in records:
            value, facts = getattr(record.identity, key), of(record)
            other = by_key.setdefault(value, record)
            common = facts.keys() & of(other).keys()
            first, second = ({name: of(one)[name] for name in common} for one in (other, record))
            if differing := comparability.differences(first, second, (_id(other), _id(record))):
                yield (
                    f"{_id(record)}: {key} is that of {_id(other)}, but the {what} differs: "
                    f"{comparability.listed(differing)}. Equal keys must mean equal {what}: publish their runs again."
                )
            if MASK in str(facts):
                continue  # what differs may be what is not public
            same = by_facts.setdefault(f"{record.identity.suite_version} {sorted(facts.items())}", record)
            if getattr(same.identity, key) != value:
                yield (
                    f"{_id(record)}: {key} is {value}, but {getattr(same.identity, key)} in {_id(same)} with the same "
                    f"{what}. Equal {what} must have equal keys: publish their runs again."
                )


def _named(names: Sequence[str]) -> Any:
    return lambda record: {name: record.environment.get(name) for name in names}


def _config(record: Record) -> Mapping[str, Any]:
    aside = {*record.config_aside, "cluster", "notices"}
    inside = {name: value for name, value in record.config.items() if name not in aside}
    # A cluster of one worker has another key than no cluster.
    facts = {name: str(value) for name, value in flat(inside).items() if name not in _NOT_IN_KEY}
    return {**facts, "cluster": str(bool(record.config.get("cluster")))}


def _id(record: Record) -> str:
    return one_line(record.identity.run_id)
