"""Checks whether a record can be published, and removes what may name a person, host, place or file.

The type of a value decides whether it is public: numbers, booleans, and words that a flag of the suite may have are.
Other text is private, except in a few fields whose text has a fixed form, such as a version, and the title that the
user gives the machine. So a field that is added later needs no line here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from results.environment import HARDWARE, Utilisation, data_sheet, hardware_in_words
from results.masking import MASK
from results.measurement import derive
from results.quality import UNLIKE_WORKERS, quality_warnings, restart_warning
from results.record import Kind, Record, Status
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.summary import summarize
from results.text import one_line

OWN_MODEL = "own model"
# Words of the suite that are not values of flags.
_OWN_WORDS = frozenset(
    (MASK, OWN_MODEL, "run", "none", "records", "one_record", "tensorflow", "PCI_BUS_ID", "ERROR", "BF16")
)
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d{1,2})?[kKmMgG]?", re.ASCII)
_BETWEEN_NUMBERS = re.compile(r"[\s,;:#=/]+")
_KEY, _FLAG = re.compile(r"[A-Za-z_][\w ()]*", re.ASCII), re.compile(r"--?[A-Za-z]\w*", re.ASCII)
_VERSION = (
    r"(v?\d+(?:\.\d+){0,2}(?:[.-]?(?:rc|dev|post|a|b)\d++)*+(?:-\d+-g[0-9a-f]{7,40})?"
    r"(?:\+(?:nv|cu|cpu|rocm)[\d.]{0,8})?|[6-9](?:\.\d{1,3}){3})"  # cuDNN's have four numbers, unlike private addresses
)
# Forms of text by the last word of a field's name. The groups of the expression are published.
_FORMS = {
    "version": _VERSION,
    "digest": "([0-9a-f]{8,64})",
    "model": r"(keras:[A-Z]\w{0,40})",
    "uuid": r"(device \d+)",
    "system": r"(Linux-\d++(?:\.\d++)*+)[^ /]{0,80}?(-(?:x86_64|aarch64|ppc64le))[^ /]{0,80}?(-with-glibc\d+\.\d+)",
}
# What identifies a run is published only if it has the form that the suite writes.
_IDENTITY = {
    **dict.fromkeys(("run_id", "config_key", "hardware_key", "software_key"), "[0-9a-f]{12}"),
    "suite_version": _VERSION,
    "suite_commit": r"[0-9a-f]{3,40}\+?|None",
    "time_utc": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00",
}
# What reading unexpected values raises: telemetry and evaluations may contain anything.
_ODD_VALUE = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
_SAME = 1e-6  # relative: NumPy's versions add in different orders
# Derived numbers that depend on other records, too.
_OF_OTHER_RUNS = ("synthetic_ratio", "measured_peak_tflops", "mfu_of_measured_peak")


def reasons_not_to_publish(record: Record) -> Iterator[str]:
    """Yields a sentence for each reason why a run cannot be published."""
    steps, environment = len(record.measurement.step_seconds), record.environment
    if record.kind is not Kind.RUN or record.status is not Status.OK:
        what = f"its verb is {record.kind}" if record.kind is not Kind.RUN else f"its status is {record.status}"
        yield f"it is not a completed run: {what}"
        return
    if record.is_interleaved:
        yield "steps_per_slice: its steps were interleaved with another run's: measure it alone, with run or sweep"
    if environment.get("slowed_down_by"):
        yield "slowed_down_by: its steps were delayed on purpose: measure it without the delay"
    if (record.identity.suite_commit or "").endswith("+"):
        yield "suite_commit ends in +: files of the suite were changed: commit or undo that, and measure it again"
    if any(sentence.startswith(UNLIKE_WORKERS) for sentence in record.warnings):
        yield "its workers were unlike, and the record describes one of them: measure it with equal hosts and variables"
    if steps < MIN_STEPS_FOR_INTERVAL:
        yield (f"it has {steps} steps, and an interval needs {MIN_STEPS_FOR_INTERVAL}: increase --num_batches")
    try:
        yield from _wrong_numbers(record)
        for row in summarize([record]):
            if isinstance(row.data_sheet, Utilisation) and row.data_sheet.share is None:
                yield f"MFU {row.data_sheet.text}: measure it again"
    except _ODD_VALUE:
        yield "its measurement has values that no run writes: measure it again"
    needed = (*HARDWARE[: 4 if record.config.get("device") == "gpu" else 3], "tensorflow_version")
    if missing := [name for name in needed if environment.get(name) in (None, "", [])]:
        yield f"environment lacks {', '.join(missing)}, so what was measured is unknown: measure it with this version"
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
    expected = (sizes[2] or 0) * devices
    if expected and images != expected:
        yield f"images_per_step is {images}, and batch_per_device times all devices is {expected}: measure it again"
    compiled = config.get("xla") == "jit" and not (config.get("modifiers") or {}).get("staged_vars")
    on_cpu = config.get("device") == "cpu"
    derived = asdict(derive(measured, devices or 1, compiled=compiled, towers_share_cores=on_cpu))
    for name, value in derived.items():
        stated = getattr(record.derived, name)
        if value is None and stated is not None and name not in _OF_OTHER_RUNS:
            yield f"derived.{name} is {stated}, and {steps} steps are too few for it: measure it again"
        elif value is not None and (stated is None or not math.isclose(stated, value, rel_tol=_SAME)):
            yield f"derived.{name} is {stated}, and {value:.6g} follows from the measurement: measure it again"


def public(record: Record, words: frozenset[str], machine: str = "") -> Record:
    """Returns a valid run without its private values. Keys, steps and derived numbers stay the same.

    `words` are the values that flags of the suite may have. `machine` is the title of a machine that has none yet.

    Raises:
        ValueError: the run has values or an identity that no run writes, or its machine has no title.
    """
    identity, environment = record.identity, record.environment
    for name, form in _IDENTITY.items():
        if not re.fullmatch(form, str(getattr(identity, name)), re.ASCII):
            raise ValueError(f"{name} does not have the form that a run writes")
    if not (title := one_line(str(environment.get("machine") or machine))):
        raise ValueError(f"the machine has no title: give --machine=TEXT, such as '{hardware_in_words(record)}'")
    try:
        taken = replace(record.measurement, telemetry=_numbered(record.measurement.telemetry))
        measurement = replace(taken, **{n: _of(value, n, words) for n, value in asdict(taken).items()})
        config = _of(record.config, "", words)
        warnings = quality_warnings(measurement, record.derived, config, environment)
        if measurement.restarts:
            warnings.append(restart_warning(measurement.restarts))
    except _ODD_VALUE as error:
        raise ValueError("it has values that no run writes") from error
    return replace(
        record,
        identity=replace(identity, command=_command(identity.command, words), session_id=""),
        config=config,
        config_not_in_key=[name for name in record.config_not_in_key if name in config],
        environment={**_of(environment, "", words), "machine": title},
        model=_of(record.model, "", words),
        # Its lists contain names of variables and devices.
        placement=_of({n: value for n, value in record.placement.items() if type(value) is not list}, "", words),
        measurement=measurement,
        reason="",
        warnings=warnings,
    )


def _of(value: Any, name: str, words: frozenset[str]) -> Any:
    """Returns the public parts of a value: `MASK` replaces private text, and keys that may be ids are left out."""
    if isinstance(value, str):
        return _text(value, name, words)
    if isinstance(value, Mapping):
        parts = {key: _of(part, key, words) for key, part in value.items() if _KEY.fullmatch(key)}
        return {key: part for key, part in parts.items() if part or not value[key]}
    if isinstance(value, list | tuple):
        return [_of(part, name, words) for part in value]
    return value


def _text(text: str, name: str, words: frozenset[str]) -> str:
    if text == "" or text in words or text in _OWN_WORDS or data_sheet(text):
        return text
    if all(part in words or _NUMBER.fullmatch(part) for part in _BETWEEN_NUMBERS.split(text)):
        return text
    form = _FORMS.get(name.rpartition("_")[2])
    if form and (match := re.fullmatch(form, text, re.ASCII)):
        return "".join(match.groups())
    return OWN_MODEL if name == "model" else MASK


def _command(command: Sequence[str], words: frozenset[str]) -> list[str]:
    """Returns a command with `MASK` in place of private values."""
    public_words, name = [], ""
    for word in command:
        flag, equals, value = word.partition("=")
        if is_flag := _FLAG.fullmatch(flag) is not None:
            name = flag.lstrip("-")
        public_value = _text(value if is_flag else word, name, words).replace(OWN_MODEL, MASK)
        public_words.append(f"{flag}{equals}{public_value}" if is_flag else public_value)
    return public_words


def _numbered(telemetry: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns telemetry with numbers in place of the ids of GPUs and hosts; equal ids get equal numbers."""
    names: dict[str, str] = {}

    def name(uuid: Any) -> str:
        return names.setdefault(str(uuid), f"device {len(names)}")

    return [
        {
            **process,
            **({"gpus": [{**g, "uuid": name(g["uuid"])} for g in process["gpus"]]} if "gpus" in process else {}),
        }
        for process in telemetry
    ]
