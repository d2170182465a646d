"""May two sets of rounds be compared? Not if their hardware differs, or they have no configuration in common."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from results.gate.rounds import Key, Rounds
from results.record import Record

_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib", "gpus")
_MOST_FIELDS = 5
_NOT_RECORDED = "not recorded"


class UnlikeError(ValueError):
    """What is to be compared is not alike. The message says in what, and what to do."""


def refuse_unlike(base: Mapping[Key, Rounds], candidate: Mapping[Key, Rounds], names: tuple[str, str]) -> None:
    """Sees to it that at least one configuration was run on equal hardware by both sides, which `names` names.

    Raises:
        UnlikeError: none was, or a side has no runs.
    """
    for side, name in zip((base, candidate), names, strict=True):
        if not side:
            raise UnlikeError(
                f"There is no record of a run in {name}. Name a file that `run`, `sweep` or `ab` has left."
            )
    if base.keys() & candidate.keys():
        return
    alike = {machine for _, machine in base} & {machine for _, machine in candidate}
    if not alike:
        first, second = (next(iter(side.values())).records[0] for side in (base, candidate))
        found = _differences(_hardware(first), _hardware(second), names)
        raise UnlikeError(
            f"The hardware differs: {found}. Only rates of equal machines compare: run both on one of them."
        )
    couples = [
        (mine, other)
        for (_, machine), mine in base.items()
        for (_, where), other in candidate.items()
        if machine == where
    ]
    nearest = min(couples, key=lambda couple: len(_unlike(*_configs(*couple))))
    found = _differences(*_configs(*nearest), names)
    raise UnlikeError(
        f"No configuration is both in {names[0]} and in {names[1]}. The nearest are {nearest[0].title} and "
        f"{nearest[1].title}: {found}. Run both with the same flags."
    )


def hardware_in_words(record: Record) -> str:
    """Returns the machine of a record."""
    facts = hardware(record)
    words = [str(facts["cpu_model"])] if facts["cpu_model"] else []
    words += [f"{facts['cpu_cores_usable']} cores"] if facts["cpu_cores_usable"] else []
    words += [f"{facts['memory_gib']} GiB"] if facts["memory_gib"] else []
    words += [f"{count} x {gpu}" for gpu, count in Counter(facts["gpus"] or []).items()]
    return ", ".join(words) or f"hardware {record.identity.hardware_key}"


def hardware(record: Record) -> dict[str, Any]:
    """Returns what is recorded of the machine and must be equal where rates are compared."""
    return {name: record.environment.get(name) for name in _HARDWARE}


def software_in_words(records: Sequence[Record]) -> str:
    """Returns TensorFlow's version and the suite's; of a mixture, each once."""
    return "; ".join(dict.fromkeys(map(_software, records)))


def software_differences(base: Record, candidate: Record, names: tuple[str, str]) -> str:
    """Returns which recorded versions differ, and how; empty if none does."""
    first, second = (
        {name: value for name, value in record.environment.items() if name.endswith("_version")}
        for record in (base, candidate)
    )
    return _differences(first, second, names) if _unlike(first, second) else ""


def _software(record: Record) -> str:
    commit = record.identity.suite_commit
    suite = f"suite {record.identity.suite_version}" + (f" ({commit})" if commit else "")
    version = record.environment.get("tensorflow_version")
    return f"TensorFlow {version}, {suite}" if version else suite


def _hardware(record: Record) -> dict[str, Any]:
    return hardware(record) | {"hardware_key": record.identity.hardware_key}


def _configs(base: Rounds, candidate: Rounds) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns both configurations without what cannot move the number, and with what is nested in them flat."""
    first, second = base.records[0], candidate.records[0]
    aside = {*first.config_aside, *second.config_aside}
    return _flat(first.config, aside), _flat(second.config, aside)


def _flat(config: Mapping[str, Any], aside: set[str]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name not in aside:
            flat |= (
                {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {name: value}
            )
    return flat


def _unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _differences(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Returns the fields that differ with both values; the key of the hardware only if nothing else does."""
    unlike = _unlike(first, second)
    unlike = [name for name in unlike if name != "hardware_key"] or unlike
    if not unlike:
        return "all recorded fields are alike, but other versions of the suite have computed their keys"
    words = [
        f"{name} is {first.get(name, _NOT_RECORDED)} in {names[0]} and {second.get(name, _NOT_RECORDED)} in {names[1]}"
        for name in itertools.islice(unlike, _MOST_FIELDS)
    ]
    return "; ".join([*words, *([f"{len(unlike) - _MOST_FIELDS} more"] if len(unlike) > _MOST_FIELDS else [])])
