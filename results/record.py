"""The record of one run: all that is needed to judge, compare and repeat its number.

A record is one JSON object. Its format has a number; `Record.from_json` refuses any other.
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import json
import math
import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from results.masking import without_secrets
from results.measurement import Derived, Measurement
from results.record_parts import COUNTS, PARTS
from results.step_statistics import rate
from results.text import harmless
from results.version import SUITE_VERSION

FORMAT_VERSION: Literal[1] = 1
# Key in the environment of a run whose steps were interleaved with those of another run: steps per time slice.
STEPS_PER_SLICE = "steps_per_slice"
# A reader of JSON rounds an integer beyond these.
_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**64 - 1
# No run takes so long; sums and products of larger numbers overflow.
_LONGEST_SECONDS = 1e12
_SAME = 1e-6  # relative: programs that rewrite a record round its numbers
_DEEPEST, _DEEPEST_WRITTEN = 20, 200
_FLAG = re.compile("--?[A-Za-z]")


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


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies a run.

    Attributes:
        run_id: identifies the run.
        time_utc: when the record was made, ISO 8601.
        command: the words of the command line, without secrets.
        suite_version: version of this suite.
        suite_commit: commit of its checkout at the start of the run; `+` follows if files were changed; null without a
            checkout.
        config_key: hash of the fields of the configuration that can change the rate.
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


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. `config`, `environment`, `model` and `placement` are plain mappings: new entries need no new format.

    Attributes:
        identity: which run it is, and hashes of what records must have in common to be compared.
        config: every decision about the run.
        environment: hardware, versions, environment variables, and what others used before the run.
        model: facts about the model.
        placement: what is where, and what is sent in a step.
        measurement: what was observed.
        derived: what is computed from the measurement.
        status: how the run ended.
        reason: the status as a sentence; empty if it is ok.
        kind: what is measured: a `run`, one reduction (`allreduce`), or the stages of the input (`input`).
        warnings: sentences on the quality of the measurement.
        config_not_in_key: names of the fields of `config` that cannot change the rate, and are not in `config_key`.
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
    warnings: Sequence[str] = []
    config_not_in_key: Sequence[str] = []
    format_version: Literal[1] = FORMAT_VERSION

    @property
    def is_interleaved(self) -> bool:
        """Whether its steps were interleaved with those of another run."""
        return STEPS_PER_SLICE in self.environment

    @property
    def ended(self) -> float:
        """When it was made, in seconds since 1970; 0 if its time cannot be read."""
        try:
            made = datetime.datetime.fromisoformat(self.identity.time_utc)
            return (made if made.tzinfo else made.replace(tzinfo=datetime.UTC)).timestamp()
        except (ValueError, OverflowError):
            return 0.0

    @property
    def minute(self) -> str:
        """When it was made, in UTC, to the minute; as it is stated if that cannot be read."""
        if not self.ended:
            return self.identity.time_utc[:16]
        return datetime.datetime.fromtimestamp(self.ended, datetime.UTC).strftime("%Y-%m-%d %H:%M")

    @property
    def rate(self) -> float | None:
        """Images per second, if the run is valid."""
        return self.derived.images_per_sec if self.status is Status.OK else None

    @property
    def command_line(self) -> str:
        """The command that repeats it, without secrets."""
        return shlex.join(["run_bench.py", *recorded_command(self.identity.command)])

    def cleaned(self) -> Record:
        """Returns the record as it is saved, printed and sent: secrets are masked, and no text controls its reader."""

        def mask(value: Any) -> Any:
            if isinstance(value, str):
                return without_secrets([value])[0]
            if isinstance(value, Mapping):
                return {name: mask(item) for name, item in value.items()}
            return [mask(item) for item in value] if isinstance(value, list | tuple) else value

        command, session_id = recorded_command(self.identity.command), harmless(mask(self.identity.session_id))
        return replace(
            self,
            identity=replace(self.identity, command=command, session_id=session_id),
            config=strict(mask(self.config)),
            environment=strict(mask(self.environment)),
            model=strict(self.model),
            placement=strict(self.placement),
            measurement=Measurement(**strict(self.measurement)),
            reason=strict(mask(self.reason)),
            warnings=strict(mask(self.warnings)),
        )

    def to_json(self) -> str:
        """Returns the record as one line of strictly valid JSON: no NaN, no line break, no bytes that are not UTF-8."""
        return json.dumps(strict(self, _DEEPEST_WRITTEN), allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """Reads the output of `to_json`.

        Raises:
            UnknownFormatError: this version cannot read the record's `format_version`.
            ValueError: the line is not a record.
        """
        line = line.encode() if isinstance(line, str) else line
        try:
            if b"NaN" in line or b"Infinity" in line:  # as Python writes them, which is no JSON
                line = json.dumps(json.loads(line, parse_constant=lambda name: None)).encode()
            try:
                decoded = _LINE.decode(_harmless_line(line))
            except msgspec.ValidationError:
                decoded = _LINE.decode(_harmless_line(json.dumps(json.loads(line, parse_float=_number)).encode()))
            fields = msgspec.structs.asdict(decoded)
            _check_steps(fields["status"], fields["measurement"], fields["derived"])
            return cls(**fields | {name: _read_part(name, bytes(fields[name])) for name in PARTS})
        except (msgspec.MsgspecError, json.JSONDecodeError, UnicodeError, RecursionError) as error:
            raise _why_not_read(line, error) from error


# A record of which the parts are still text.
_LINE = msgspec.json.Decoder(
    msgspec.defstruct(
        "Line",
        [(field.name, msgspec.Raw if field.name in PARTS else field.type) for field in msgspec.structs.fields(Record)],
        forbid_unknown_fields=True,
    )
)
_CHECKS: Mapping[str, msgspec.json.Decoder[Any]] = {name: msgspec.json.Decoder(part) for name, part in PARTS.items()}


class _Format(msgspec.Struct):
    format_version: Any


def _why_not_read(line: bytes, error: Exception) -> ValueError:
    try:
        version = msgspec.json.decode(_harmless_line(line), type=_Format).format_version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ValueError(f"not a record: {error}")
    if version == FORMAT_VERSION:
        return ValueError(f"not a record of format {FORMAT_VERSION}: {error}")
    return UnknownFormatError(
        f"The record has format {version}, and format {FORMAT_VERSION} is read here: read it with the version that "
        "wrote it (suite_commit)."
    )


def _harmless_line(line: bytes) -> bytes:
    # Nearly every line is harmless already, as its bytes show.
    is_plain = (line.isascii() and b"\x7f" not in line) or line.decode().strip().isprintable()
    if is_plain and (b"\\" not in line or b"\\" not in line.replace(rb"\\", b"").replace(rb"\"", b"")):
        return line
    return msgspec.json.encode(strict(msgspec.json.decode(line)))


@functools.lru_cache(maxsize=1024)  # runs of one configuration have most of them in common
def _read_part(name: str, text: bytes) -> Mapping[str, Any]:
    """Returns a part of a record after a check of what views read of it."""
    try:
        _CHECKS[name].decode(text)
        part: dict[str, Any] = strict(msgspec.json.decode(text))
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{name}: {error}") from error
    return part | {field: int(part[field]) for field in COUNTS if _is_count(part.get(field))}


def _number(text: str) -> float | None:
    """Returns a number with a point or exponent: whole ones as integers, None for one too large for a float."""
    value = float(text)
    return None if math.isinf(value) else int(value) if _is_count(value) else value


def _is_count(value: Any) -> bool:
    # Programs that rewrite a file may make 2.0 of 2.
    return isinstance(value, float) and value.is_integer() and 0 <= value < -_SMALLEST_INTEGER


def _check_steps(status: Status, measurement: Measurement, derived: Derived) -> None:
    """Checks that the rate follows from the steps, so that no two views of a record have two rates."""
    step_seconds, stated = measurement.step_seconds, derived.images_per_sec
    if status is Status.OK and not step_seconds:
        raise msgspec.ValidationError("status is ok, but no step was measured")
    if step_seconds and not (min(step_seconds) >= 0 and 0 < sum(step_seconds) < _LONGEST_SECONDS):
        raise msgspec.ValidationError("measurement.step_seconds are no times of steps")
    if stated is None:
        return
    follows = rate(step_seconds, measurement.images_per_step or 0) if step_seconds else 0.0
    if not math.isclose(stated, follows, rel_tol=_SAME):
        raise msgspec.ValidationError(
            f"derived.images_per_sec is {stated}, and {follows:.6g} follows from images_per_step and step_seconds"
        )
    low, high = derived.images_per_sec_low or 0.0, derived.images_per_sec_high or math.inf
    if low > stated * (1 + _SAME) or stated > high * (1 + _SAME):
        raise msgspec.ValidationError(
            f"derived.images_per_sec is {stated}, outside of images_per_sec_low {low} to images_per_sec_high {high}"
        )


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
        run_id=f"f{uuid.uuid4().hex[:11]}",  # no spreadsheet takes it for a number, as it does 12e45678
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=list(command),
        suite_version=SUITE_VERSION,
        suite_commit=suite_commit,
        config_key=key_of(config),
        hardware_key=key_of(hardware),
        software_key=key_of(software),
        session_id=session_id,
    )


def recorded_command(words: Sequence[str]) -> list[str]:
    """Returns the words of a command as a saved record has them."""
    return [harmless(word) for word in without_secrets(words)]


def flags_of_command(words: Sequence[str]) -> list[list[str]]:
    """Returns the words of a saved command by flag: one, or two if its value is a word of its own; a verb is alone."""
    flags: list[list[str]] = []
    for word in recorded_command(words):
        last = flags[-1] if flags else []
        if len(last) == 1 and _FLAG.match(last[0]) and "=" not in last[0] and not _FLAG.match(word):
            last.append(word)
        else:
            flags.append([word])
    return flags


def key_of(values: Mapping[str, Any]) -> str:
    """Returns a short hash of the values, independent of their order."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def strict(value: Any, levels: int = _DEEPEST) -> Any:
    r"""Returns nested lists and mappings as strict JSON can hold them, and readers can show them.

    A float that is not finite becomes None. An integer of more than 64 bits becomes text. Text with line breaks or with
    characters that control a terminal is one line without them. Bytes of an argument or a path that are not UTF-8,
    which Python holds as lone surrogates, become escapes such as `\udcff`.

    Raises:
        ValueError: there are more than `levels` lists and mappings within each other; views walk through them
            recursively.
    """
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER else str(value)
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping | list | tuple) and not levels:
        raise msgspec.ValidationError("it is nested too deeply")
    if isinstance(value, Mapping):
        return {strict(key): strict(item, levels - 1) for key, item in value.items()}
    return [strict(item, levels - 1) for item in value] if isinstance(value, list | tuple) else value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a mapping without nested ones, whose entries are named `outer.inner`."""
    entries: dict[str, Any] = {}
    for name, value in values.items():
        entries |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return entries


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns both values of each field in which two mappings differ; None for one that a mapping lacks."""
    both = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    return {name: values for name, values in both.items() if values[0] != values[1]}
