"""The record of one run: all that is needed to judge, compare and repeat its number.

A record is one JSON object. Its format has a number; `Record.from_json` refuses any other.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import math
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from results.masking import without_secrets
from results.measurement import Derived, Measurement
from results.text import one_line
from results.version import SUITE_VERSION

FORMAT_VERSION = 1
# Key in the environment of a run whose steps were interleaved with those of another run: steps per time slice.
STEPS_PER_TURN = "steps_per_turn"
# A reader of JSON rounds an integer beyond these.
_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**64 - 1
# No run takes so long; sums and products of larger numbers overflow.
_LONGEST_SECONDS = 1e12
_DEEPEST = 20


class Status(enum.StrEnum):
    """How a run ended. Only an `OK` record can become a baseline."""

    OK = "ok"
    INVALID = "invalid"
    OUT_OF_MEMORY = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


class Kind(enum.StrEnum):
    """What a record measures."""

    RUN = "run"
    ALL_REDUCE = "allreduce"
    INPUT = "input"


class UnknownFormatError(ValueError):
    """The record has a format that this version cannot read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Identifies a run.

    Attributes:
        run_id: identifies the run.
        time_utc: when the record was made, ISO 8601.
        command: the words of the command line, without secrets.
        suite_version: version of this suite.
        suite_commit: commit of its checkout at the start of the run; `+` follows if files were changed; null without a
            checkout.
        config_key: hash of the configuration, as far as it can change the rate.
        hardware_key: hash of CPU, cores, memory and GPUs, without the host's name.
        software_key: hash of the versions of Python, TensorFlow, Keras, NumPy, CUDA, cuDNN and NCCL.
        session_id: shared by the runs of one sweep; empty for a single run.
    """

    run_id: str
    time_utc: str
    command: list[str]
    suite_version: str
    suite_commit: str | None
    config_key: str
    hardware_key: str
    software_key: str
    session_id: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One run. `config`, `environment`, `model` and `placement` are plain mappings: new entries need no new format.

    Attributes:
        identity: which run it is, and hashes of what records must have in common to be compared.
        config: every decision about the run.
        environment: hardware, versions, environment variables, and the load before the run.
        model: facts about the model.
        placement: what is where, and what is sent in a step.
        measurement: what was observed.
        derived: what is computed from the measurement.
        status: how the run ended.
        reason: the status as a sentence; empty if it is ok.
        kind: what is measured: a `run`, one reduction (`allreduce`), or the stages of the input (`input`).
        warnings: sentences on the quality of the measurement.
        config_aside: names of the fields of `config` that cannot change the rate, and are not in `config_key`.
        format_version: version of this format.
    """

    identity: Identity
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    model: Mapping[str, Any]
    placement: Mapping[str, Any]
    measurement: Measurement
    derived: Derived
    status: Status
    reason: str = ""
    kind: Kind = Kind.RUN
    warnings: Sequence[str] = dataclasses.field(default_factory=list)
    config_aside: Sequence[str] = dataclasses.field(default_factory=list)
    format_version: int = FORMAT_VERSION

    @property
    def in_turn(self) -> bool:
        """Returns whether its steps were interleaved with those of another run."""
        return STEPS_PER_TURN in self.environment

    def with_config_key(self, key: str) -> Record:
        """Returns the record with another key of its configuration."""
        if key == self.identity.config_key:
            return self
        return dataclasses.replace(self, identity=dataclasses.replace(self.identity, config_key=key))

    def masked(self) -> Record:
        """Returns the record without what looks like a secret in its configuration, reason, warnings and session."""

        def mask(value: Any) -> Any:
            if isinstance(value, str):
                return without_secrets([value])[0]
            if isinstance(value, Mapping):
                return {name: mask(item) for name, item in value.items()}
            return [mask(item) for item in value] if isinstance(value, list | tuple) else value

        identity = dataclasses.replace(self.identity, session_id=mask(self.identity.session_id))
        config, reason, warnings = mask(self.config), mask(self.reason), mask(self.warnings)
        return dataclasses.replace(self, identity=identity, config=config, reason=reason, warnings=warnings)

    def to_json(self) -> str:
        """Returns the record as one line of strictly valid JSON: no NaN, no line break, no bytes that are not UTF-8."""
        return json.dumps(strict(dataclasses.asdict(self)), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes, shared: Shared | None = None) -> Record:
        """Reads the output of `to_json`.

        Args:
            line: the record.
            shared: holds parts of earlier records; equal parts of this one become the same objects.

        Raises:
            UnknownFormatError: this version cannot read the record's `format_version`.
            ValueError: the line is not a record.
        """
        fields = orjson.loads(line)
        if not isinstance(fields, dict) or "format_version" not in fields:
            raise ValueError("not a record: format_version is missing")
        if fields["format_version"] != FORMAT_VERSION:
            found = one_line(str(fields["format_version"]))
            raise UnknownFormatError(
                f"The record has format {found}, and format {FORMAT_VERSION} is read here: read it with the version "
                "that wrote it (suite_commit)."
            )
        try:
            _check("", fields)
            shared = {} if shared is None else shared
            for name in _SHARED:
                if name in fields:
                    fields[name] = _checked_and_shared(name, fields[name], shared)
            identity, taken = fields["identity"], fields["measurement"]
            if "command" in identity:
                identity["command"] = _checked_and_shared("command", identity["command"], shared)
            fields["measurement"] = {name: _EMPTY if value == [] else value for name, value in taken.items()}
            for name, part in _PARTS.items():
                _check(name, fields[name])
                fields[name] = part(**fields[name])
            fields["status"], fields["kind"] = Status(fields["status"]), Kind(fields["kind"])
            _check_steps(fields["status"], fields["measurement"].step_seconds)
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of format {FORMAT_VERSION}: {error}") from error


_PARTS: Mapping[str, type] = {"identity": Identity, "measurement": Measurement, "derived": Derived}
_Check = Callable[[Any], bool]
_Scalar = str | float | bool | None
# What views read of the mappings that may hold anything else, too.
_FREE_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "config": {
        **dict.fromkeys(("model", "message", "variable_update", "shared_on", "device", "precision"), _Scalar),
        **dict.fromkeys(("data_name", "data_set", "data_format", "optimizer", "forward_only"), _Scalar),
        **dict.fromkeys(("num_devices", "num_workers", "num_ps", "batch_per_device", "virtual_gpus"), _Scalar),
        "modifiers": Mapping[str, _Scalar] | None,
        "input": Mapping[str, Any] | None,
    },
    "environment": {"tensorflow_version": _Scalar, "gpus": Sequence[str] | None},
    "model": {"gflop_per_image": float | None},
    "placement": {"sent_per_step": Mapping[str, Any] | None},
}


def _checker(hint: Any) -> _Check:
    """Returns a function that tells whether a value of a JSON document fits a type hint; whole numbers are floats."""
    outer, inner = typing.get_origin(hint), typing.get_args(hint)
    if outer in (list, Sequence, Mapping):
        kind: type = dict if outer is Mapping else list
        items: Callable[[Any], Iterable[Any]] = dict.values if outer is Mapping else iter
        if inner[-1] is Any:
            return lambda value: type(value) is kind
        if allowed := _scalars(inner[-1]):  # as fast as can be: there may be 100,000 steps
            return lambda value: type(value) is kind and (not value or allowed.issuperset(map(type, items(value))))
        fits = _checker(inner[-1])
        return lambda value: type(value) is kind and all(map(fits, items(value)))
    if allowed := _scalars(hint):
        return lambda value: type(value) in allowed
    either = [_checker(part) for part in inner]
    return lambda value: any(fits(value) for fits in either)


def _scalars(hint: Any) -> frozenset[type]:
    """Returns the types of values that fit a hint without containers; empty if it has some."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    parts = typing.get_args(hint) if is_union else (hint,)
    if not set(parts) <= {str, int, float, bool, type(None)}:
        return frozenset()
    return frozenset({int, float}.union(parts) if {int, float} & set(parts) else parts)


def _checks_of(part: type) -> dict[str, _Check]:
    hints = typing.get_type_hints(part)
    return {field.name: _checker(hints[field.name]) for field in dataclasses.fields(part)}


# By the path of a mapping; the empty path is the record itself.
_CHECKS: Mapping[str, Mapping[str, _Check]] = {
    "": {
        **dict.fromkeys(("identity", "measurement", "derived", *_FREE_FIELDS), _checker(Mapping[str, Any])),
        **dict.fromkeys(("status", "kind", "reason"), _checker(str)),
        **dict.fromkeys(("warnings", "config_aside"), _checker(Sequence[str])),
    },
    **{name: _checks_of(part) for name, part in _PARTS.items()},
    **{name: {field: _checker(hint) for field, hint in hints.items()} for name, hints in _FREE_FIELDS.items()},
}


def _check(path: str, fields: Mapping[str, Any]) -> None:
    """Raises a TypeError if a field has a value of a type that its readers do not expect."""
    for name, fits in _CHECKS[path].items():
        if name in fields and not fits(fields[name]):
            raise TypeError(f"{path}{'.' * bool(path)}{name} has a value of the wrong type")


# Parts of records by the name of their field and a hash of their text.
Shared = dict[tuple[str, bytes], Any]
_SHARED = (*_FREE_FIELDS, "config_aside", "warnings")
# A list takes 56 bytes, and most of a measurement's are empty.
_EMPTY: Sequence[Any] = []


def _checked_and_shared(path: str, value: Any, shared: Shared) -> Any:
    """Returns an equal value of an earlier record, or this one after a check of its types and its depth.

    Runs of one machine or configuration have most of it in common. That is two thirds of the memory of a record, and
    of the time of the checks.

    Args:
        path: the field; those within it begin with it.
        value: a nested list or mapping.
        shared: what earlier records hold.

    Raises:
        TypeError: it has a value of the wrong type, or is nested too deeply.
    """
    try:
        key = path, hashlib.blake2b(orjson.dumps(value), digest_size=16).digest()
    except orjson.JSONEncodeError as error:  # of more than 254 levels, or with text that is none
        raise TypeError(f"{path} is nested too deeply") from error
    if key in shared:
        return shared[key]
    if path in _CHECKS:
        _check(path, value)
        if not _is_flat_enough(value, _DEEPEST):
            raise TypeError(f"{path} is nested too deeply")
        for name, item in value.items():
            if type(item) in (dict, list) and item:
                value[name] = _checked_and_shared(f"{path}.{name}", item, shared)
    shared[key] = value
    return value


def _is_flat_enough(value: Any, levels: int) -> bool:
    """Returns whether nested lists and mappings have at most so many levels; views walk through them recursively."""
    items = value.values() if type(value) is dict else value
    nested = [item for item in items if type(item) in (dict, list)]
    return not nested or (levels > 0 and all(_is_flat_enough(item, levels - 1) for item in nested))


def _check_steps(status: Status, step_seconds: Sequence[float]) -> None:
    """Raises a TypeError if the measured steps cannot be those of a run."""
    if status is Status.OK and not step_seconds:
        raise TypeError("status is ok, but no step was measured")
    if step_seconds and not (min(step_seconds) >= 0 and 0 < sum(step_seconds) < _LONGEST_SECONDS):
        raise TypeError("measurement.step_seconds are no times of steps")


def identify(
    *,
    command: Sequence[str],
    suite_commit: str | None,
    config: Mapping[str, Any],
    hardware: Mapping[str, Any],
    software: Mapping[str, Any],
    session_id: str = "",
) -> Identity:
    """Returns the identity of a run. The mappings must hold only what can affect the number."""
    return Identity(
        run_id=uuid.uuid4().hex[:12],
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=without_secrets(command),
        suite_version=SUITE_VERSION,
        suite_commit=suite_commit,
        config_key=key_of(config),
        hardware_key=key_of(hardware),
        software_key=key_of(software),
        session_id=session_id,
    )


def key_of(values: Mapping[str, Any]) -> str:
    """Returns a short hash of the values, independent of their order."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def strict(value: Any) -> Any:
    r"""Returns nested lists and mappings as strict JSON can hold them.

    A float that is not finite becomes None. An integer of more than 64 bits becomes text. Bytes of an argument or a
    path that are not UTF-8, which Python holds as lone surrogates, become escapes such as `\udcff`.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {strict(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a mapping without nested ones, whose entries are named `outer.inner`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
