"""Takes out of a record what names people, hosts, places or files. What is not known to be public is left out."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from results.exchange import public_fields as public
from results.masking import MASK
from results.record import Record, Status
from results.text import one_line

# They have no effect on the rate, and name places and sessions.
_NOT_REPEATED = frozenset(
    "output_dir session_id output_format display_every tensorboard_dir wandb_project mlflow_uri".split()
)
OWN_MODEL = "own model"
# The words of a title: with letters and at most one slash; numbers such as 2.20, 24.04.1, 6/79/0 and 12:30, with a unit
# or a percent sign; signs alone. A host, an address, a path, a user at a host, a variable has another form.
_WORD_OF_TITLE = re.compile(
    r"[\w+&#°'-]*%?|[\w+-]+/[\w+-]+|\d+(?:[.,]\d+){1,2}[\w+-]{0,5}%?|\d+(?:/\d+){1,2}|\d+:\d+|[@&+×x/|–—:-]"
)
_BEFORE_WORDS, _AFTER_WORDS = "([{\"'", ")]}\"',;.:!?"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What is public, and what is not.

    Attributes:
        words: of the suite, such as names of models, managers and values of flags.
        flags: names of all flags of a run.
        places: those whose values name paths or hosts, so that even a number is private.
        private: names of this host, its user and their home directory.
    """

    words: frozenset[str]
    flags: frozenset[str]
    places: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()

    def private_in(self, title: str) -> str | None:
        """Returns a word of a title that may name a person, host, address or path; None if all are plain."""
        words = [word.lstrip(_BEFORE_WORDS).rstrip(_AFTER_WORDS) for word in title.split()]
        odd = next((word for word in words if not _WORD_OF_TITLE.fullmatch(word)), None)
        names = {part.lower() for word in words for part in (word, *re.split(r"\W+", word))}
        return odd or next((n for n in sorted(self.private) if n.lower() in names and n not in self.words), None)


class Stripping:
    """Strips records; `left_out` counts, by the name of a field, the records whose value was left out or masked."""

    def __init__(self, vocabulary: Vocabulary, machine: str = "") -> None:
        self._words = vocabulary.words | public.WORDS | {MASK, OWN_MODEL}
        self._vocabulary, self._machine = vocabulary, machine
        self.left_out: Counter[str] = Counter()

    def record(self, record: Record) -> Record:
        """Returns a valid run without what is not public. It has the same keys, steps and derived numbers.

        Raises:
            ValueError: it is not valid, or what identifies it is not as a run writes it.
        """
        identity = record.identity
        hashes = (identity.run_id, identity.config_key, identity.hardware_key, identity.software_key)
        commit = (identity.suite_commit or "0" * 12).removesuffix("+")
        if record.status is not Status.OK or not all(re.fullmatch("[0-9a-f]{12}", one) for one in hashes):
            raise ValueError("it is no valid run with a run_id and keys of 12 hexadecimal digits")
        if not re.fullmatch("[0-9a-f]{3,40}", commit) or public.version(identity.suite_version) is None:
            raise ValueError("suite_version or suite_commit is not as a run writes it")
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", identity.time_utc):
            raise ValueError("time_utc is no time as a run writes it")
        environment = self._kept(record.environment, "environment")
        if machine := self._title(record.environment.get("machine")):
            environment["machine"] = machine
        config = self._kept(record.config, "config")
        if record.config.get("cluster"):
            config["cluster"] = MASK  # its addresses
        command = self.command(identity.command)
        warnings = list(dict.fromkeys(map(public.warning, record.warnings)))
        self.left_out["identity.session_id"] += bool(identity.session_id)
        self.left_out["identity.command"] += command != list(identity.command)
        self.left_out["warnings"] += warnings != list(record.warnings)
        return replace(
            record,
            identity=replace(identity, command=command, session_id=""),
            config=config,
            config_aside=[name for name in record.config_aside if name in config],
            environment=environment,
            model=self._kept(record.model, "model"),
            placement=self._kept(record.placement, "placement"),
            measurement=replace(record.measurement, **self._measured(msgspec.structs.asdict(record.measurement))),
            reason="",
            warnings=warnings,
        )

    def _title(self, recorded: Any) -> str:
        title = self._machine or (recorded if isinstance(recorded, str) else "")
        return "" if self._vocabulary.private_in(title) else one_line(title)

    def _kept(self, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Returns the listed fields of a mapping, as far as their values are public."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            field = f"{path}.{name}"
            if isinstance(value, Mapping):
                if inner := self._kept(value, field):
                    found[name] = inner
            elif field in public.PLAIN or field in public.FORMS:
                found[name] = self._value(value, field)
                if found[name] != value:
                    self.left_out[field] += 1
            elif value is None and any(each.startswith(f"{field}.") for each in public.PLAIN):
                found[name] = None
            elif value not in (None, "", [], ()) and field != "environment.machine":
                self.left_out[field] += 1
        return found

    def _value(self, value: Any, field: str) -> Any:
        if isinstance(value, str):
            if field in public.FORMS:
                return MASK if value == MASK else public.FORMS[field](value) or MASK
            if public.is_plain(value, self._words):
                return value
            if field == "config.model":
                return value if public.is_keras_model(value) else OWN_MODEL
            return MASK
        if isinstance(value, Sequence):
            return [MASK if isinstance(one, Mapping | list) else self._value(one, field) for one in value]
        return value

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns a command to repeat: flags with `MASK` for private values, without those that have no effect."""
        found: list[str] = []
        flag, takes_value, keeps = "", False, False
        for number, word in enumerate(words):
            name, equals, value = word.lstrip("-").partition("=")
            if word.startswith("-") and not public.is_plain(word, frozenset()):
                known = {name, name.removeprefix("no")} & self._vocabulary.flags
                flag, keeps, takes_value = name, bool(known) and name not in _NOT_REPEATED, not equals
                if keeps:
                    found.append(f"--{name}{equals}{self._public_or_mask(flag, value) if equals else ''}")
            elif number == 0 and word == "run":
                found.append(word)
            elif takes_value:
                found += [self._public_or_mask(flag, word)] if keeps else []
                takes_value = False
        return found

    def _public_or_mask(self, flag: str, value: str) -> str:
        is_public = public.is_plain(value, self._words) or public.is_keras_model(value)
        return value if is_public and flag not in self._vocabulary.places else MASK

    def _measured(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a measurement: numbers, under known names; devices and hosts get numbers for names."""
        names: dict[str, str] = {}

        def numbered(name: str) -> str:
            return names.setdefault(name, f"device {len(names)}")

        def kept(value: Any, key: str = "") -> Any:
            if isinstance(value, Mapping):
                if key == "mean_watts":
                    return {numbered(str(name)): kept(one) for name, one in value.items()}
                return {name: kept(one, name) for name, one in value.items() if name in public.KEYS}
            if isinstance(value, list | tuple):
                return [kept(one) for one in value]
            if key == "uuid":
                return numbered(str(value))
            if isinstance(value, str):
                return value if key == "energy_of" and public.is_plain(value, self._words) else ""
            return value

        found = {name: kept(value) for name, value in fields.items()}
        self.left_out["measurement.telemetry"] += found["telemetry"] != list(fields["telemetry"])
        return found
