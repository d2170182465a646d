"""The record of one run: everything a reader needs in order to trust, compare and repeat its number.

A record is one JSON object. Its format has a number; `Record.from_json` refuses a number it does not know.

History:
  1  first format.
  2  a record has a kind, and may be of all-reducing a message; its identity may name a session; it lists config_aside;
     measurements of towers that go their own way hold tower_step_seconds and staleness_counts. A record of format 1 is
     of a run on its own.
  3  measurements may hold accuracies, the time that steps waited for input, skipped records, and how fast the stages of
     the input are; the kind may be input.
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

from results import statistics
from results.version import SUITE_VERSION

FORMAT_VERSION = 3
_READABLE = (1, 2, 3)


class Status(enum.StrEnum):
    """How a run ended. Only `OK` may ever become a baseline."""

    OK = "ok"
    INVALID = "invalid"
    OUT_OF_MEMORY = "oom"
    TIMEOUT = "timeout"
    CRASH = "crash"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


class Kind(enum.StrEnum):
    """What a record is of."""

    RUN = "run"
    ALL_REDUCE = "allreduce"
    INPUT = "input"


class UnknownFormatError(ValueError):
    """A record of a format that this version does not know."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """Which run this is. The keys are hashes: records with equal keys may be compared.

    Runs of one sweep have a `session_id` in common; it is empty for a run on its own.
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
class Measurement:
    """What was observed, one entry per step, all times in seconds.

    Attributes:
        images_per_step: images that one global step consumes, over all devices; None where a step has none.
        startup_seconds: from the start of the process to the start of the first step.
        first_step_seconds: the first step alone, which pays for graph optimisation and memory growth.
        warmup_step_seconds: the other steps before measuring.
        step_seconds: the measured steps.
        losses: mean loss over all devices, per measured step; None stands for a value that is not finite.
        warmup_losses: likewise, of the first step and the warm-up steps.
        peak_host_memory_bytes: largest resident set of the process.
        replica_drift: largest absolute difference between copies of a variable that must be equal;
            None where copies may differ or there is only one.
        tower_step_seconds: where towers go their own way, the measured steps of each tower; empty elsewhere. There, a
            global step is as many completed tower steps as there are towers.
        staleness_counts: likewise, how many tower steps applied a gradient of weights that were 0, 1, 2 ... updates
            old.
        message_bytes: where a step all-reduces a message, the size of that, of one tower.
        largest_error: likewise, the largest relative difference (absolute below 1) to the mean in NumPy.
        top_1_accuracies: share of a step's images that it classified rightly before its update; empty if not asked for.
        top_5_accuracies: likewise, where the right class is among the five likeliest.
        input_wait_seconds: of each measured step, how long it did nothing but wait for images; empty if none are read.
        skipped_records: bad records that were left out; None where none may be.
        input_stages: images per second of the input alone, ended after each of its stages; empty if not measured.
        bare_decode_images_per_sec: what decoding alone would reach with the same files; None if not measured.
    """

    images_per_step: int | None
    startup_seconds: float | None = None
    first_step_seconds: float | None = None
    warmup_step_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    step_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    losses: Sequence[float | None] = dataclasses.field(default_factory=list)
    warmup_losses: Sequence[float | None] = dataclasses.field(default_factory=list)
    peak_host_memory_bytes: int | None = None
    replica_drift: float | None = None
    tower_step_seconds: Sequence[Sequence[float]] = dataclasses.field(default_factory=list)
    staleness_counts: Sequence[int] = dataclasses.field(default_factory=list)
    message_bytes: int | None = None
    largest_error: float | None = None
    top_1_accuracies: Sequence[float] = dataclasses.field(default_factory=list)
    top_5_accuracies: Sequence[float] = dataclasses.field(default_factory=list)
    input_wait_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    skipped_records: int | None = None
    input_stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bare_decode_images_per_sec: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """Numbers computed from the measurement; None where it does not support one.

    `synthetic_ratio` is the rate over that of the same run with synthetic images, where the results hold one.
    """

    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    images_per_sec_per_device: float | None = None
    images_per_sec_jitter: float | None = None
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    step_ms_p99: float | None = None
    staleness_mean: float | None = None
    algorithm_bandwidth_gb_per_sec: float | None = None
    bus_bandwidth_gb_per_sec: float | None = None
    input_wait_share: float | None = None
    synthetic_ratio: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One run. `config` and `environment` are plain mappings, so that they can grow without a new format.

    `config_aside` names the fields of the configuration that cannot move the number and are not in `config_key`.
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

    def to_json(self) -> str:
        """Returns the record as one line of strictly valid JSON (no NaN, no line break)."""
        return json.dumps(_finite(dataclasses.asdict(self)), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """Reads what `to_json` wrote.

        Raises:
            UnknownFormatError: the record's `format_version` is not one that this version reads.
            ValueError: the line is not a record.
        """
        fields = orjson.loads(line)
        if not isinstance(fields, dict) or "format_version" not in fields:
            raise ValueError("not a record: there is no format_version in it")
        if fields["format_version"] not in _READABLE:
            raise UnknownFormatError(
                f"The record has format {fields['format_version']}, this version ({SUITE_VERSION}) reads "
                f"formats {_READABLE[0]} to {FORMAT_VERSION}. Read it with the version that wrote it, or a newer one."
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
                    raise TypeError(f"{name} is no object")
            if fields["status"] is Status.OK and not fields["measurement"].step_seconds:
                raise TypeError("it is ok, but no step was measured")
            return cls(**{**fields, "format_version": FORMAT_VERSION})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of format {FORMAT_VERSION}: {error}") from error


def derive(measurement: Measurement, num_devices: int) -> Derived:
    """Computes the derived numbers from the measured steps of `num_devices` devices."""
    seconds = measurement.step_seconds
    if not seconds:
        return Derived()
    p50, p90, p99 = (1000 * p for p in statistics.percentiles(seconds, (50, 90, 99)))
    return Derived(
        step_ms_p50=p50,
        step_ms_p90=p90,
        step_ms_p99=p99,
        staleness_mean=_staleness_mean(measurement.staleness_counts),
        input_wait_share=_input_wait_share(measurement),
        **_rates(seconds, measurement.images_per_step, num_devices),
        **_bandwidths(seconds, measurement.message_bytes, num_devices),
    )


def _rates(seconds: Sequence[float], images: int | None, num_devices: int) -> dict[str, float | None]:
    if images is None:
        return {}
    images_per_sec = statistics.rate(seconds, images)
    low, high = statistics.rate_interval(seconds, images)
    return {
        "images_per_sec": images_per_sec,
        "images_per_sec_low": low,
        "images_per_sec_high": high,
        "images_per_sec_per_device": images_per_sec / num_devices,
        "images_per_sec_jitter": statistics.rate_jitter(seconds, images),
    }


def _bandwidths(seconds: Sequence[float], message_bytes: int | None, num_devices: int) -> dict[str, float]:
    """Returns what nccl-tests calls so: bytes of the message over the mean time, and that times 2 (n-1)/n.

    The second is what each device's link must at least have carried, so it can be compared with the hardware's,
    whatever the number of devices. Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if message_bytes is None:
        return {}
    gb_per_sec = len(seconds) * message_bytes / sum(seconds) / 1e9
    return {
        "algorithm_bandwidth_gb_per_sec": gb_per_sec,
        "bus_bandwidth_gb_per_sec": gb_per_sec * 2 * (num_devices - 1) / num_devices,
    }


def _input_wait_share(measurement: Measurement) -> float | None:
    """Returns the share of the measured time in which there was nothing to compute on."""
    waits, seconds = measurement.input_wait_seconds, measurement.step_seconds
    if measurement.tower_step_seconds:  # there, a wait is a mean over towers, and so must be the time
        seconds = [s for tower in measurement.tower_step_seconds for s in tower]
        waits = [len(measurement.tower_step_seconds) * wait for wait in waits]
    return sum(waits) / sum(seconds) if waits else None


def _staleness_mean(counts: Sequence[int]) -> float | None:
    if not counts:
        return None
    return sum(staleness * count for staleness, count in enumerate(counts)) / sum(counts)


def trustworthy(status: Status) -> bool:
    """Returns whether a run that ended so may state a rate: wrong numbers must not look right."""
    return status in (Status.OK, Status.INTERRUPTED)


def identify(
    *,
    command: Sequence[str],
    suite_commit: str | None,
    config: Mapping[str, Any],
    hardware: Mapping[str, Any],
    software: Mapping[str, Any],
    session_id: str = "",
) -> Identity:
    """Gives a run its identity. The mappings must hold only what can move the number."""
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


def _finite(value: Any) -> Any:
    """Replaces every float that JSON cannot hold by None, in nested lists and mappings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
