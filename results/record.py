"""The record of one run: all that is needed to judge, compare and repeat its number.

A record is one JSON object. Its format has a number; `Record.from_json` refuses an unknown number.

History:
  1  first format.
  2  adds the kind (`run` or `allreduce`), the session in the identity, config_aside, and for asynchronous towers
     tower_step_seconds and staleness_counts. Records of format 1 have the kind `run`.
  3  adds accuracies, the time that steps waited for input, skipped records, the rates of the input's stages, and the
     kind `input`.
  4  adds runs of several processes: the steps of each worker, and the slowest worker.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from results.measurement import Derived, Measurement
from results.version import SUITE_VERSION

FORMAT_VERSION = 4
# Key in the environment of a run whose steps were interleaved with those of another run: steps per time slice.
STEPS_PER_TURN = "steps_per_turn"


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
    """Identifies a run. The keys are hashes: records with equal keys can be compared.

    Runs of one sweep share a `session_id`; it is empty for a single run.
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
    """One run. `config` and `environment` are plain mappings, so new entries need no new format.

    `config_aside` names the fields of the configuration that do not affect the number and are not in `config_key`.
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

    def to_json(self) -> str:
        """Returns the record as one line of strictly valid JSON (no NaN, no line break)."""
        return json.dumps(finite(dataclasses.asdict(self)), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """Reads the output of `to_json`.

        Raises:
            UnknownFormatError: this version cannot read the record's `format_version`.
            ValueError: the line is not a record.
        """
        fields = orjson.loads(line)
        if not isinstance(fields, dict) or "format_version" not in fields:
            raise ValueError("not a record: format_version is missing")
        if fields["format_version"] not in range(1, FORMAT_VERSION + 1):
            raise UnknownFormatError(
                f"The record has format {fields['format_version']}, this version ({SUITE_VERSION}) reads "
                f"formats 1 to {FORMAT_VERSION}. Read it with the version that wrote it, or a newer one."
            )
        if fields["format_version"] == 1:
            fields["kind"] = Kind.RUN
        parts = {"identity": Identity, "measurement": Measurement, "derived": Derived, "status": Status, "kind": Kind}
        try:
            for name, part in parts.items():
                value = fields[name]
                fields[name] = part(**value) if isinstance(value, dict) else part(value)
            for name in ("config", "environment", "model", "placement"):
                if not isinstance(fields[name], dict):
                    raise TypeError(f"{name} is not an object")
            if fields["status"] is Status.OK and not fields["measurement"].step_seconds:
                raise TypeError("status is ok, but no step was measured")
            return cls(**{**fields, "format_version": FORMAT_VERSION})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of format {FORMAT_VERSION}: {error}") from error


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
        command=list(command),
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


def finite(value: Any) -> Any:
    """Returns nested lists and mappings with None for every float that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
