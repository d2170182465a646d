"""Which runs may be compared? Those of equal configuration on equal hardware; differences are reported in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.gate.rounds import Key, RunGroup
from results.record import Record, flat

_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib", "gpus")
_MOST_FIELDS = 5
_NOT_RECORDED = "not recorded"


class UnlikeError(ValueError):
    """The runs cannot be compared. The message names the fields that differ, and what to do."""


def refuse_unlike(base: Mapping[Key, RunGroup], candidate: Mapping[Key, RunGroup], names: tuple[str, str]) -> None:
    """Checks that both sides ran at least one configuration on equal hardware; `names` are the sides in messages.

    Raises:
        UnlikeError: they ran none, or a side has no runs.
    """
    for side, name in zip((base, candidate), names, strict=True):
        if not side:
            raise UnlikeError(f"There is no record of a run in {name}. Name a file that `run`, `sweep` or `ab` wrote.")
    if base.keys() & candidate.keys():
        return
    couples = [
        (mine, other)
        for (_, machine), mine in base.items()
        for (_, where), other in candidate.items()
        if machine == where
    ]
    if not couples:
        first, second = (next(iter(side.values())).records[0] for side in (base, candidate))
        keys = [{"hardware_key": record.identity.hardware_key} for record in (first, second)]
        found = differences(hardware(first), hardware(second), names) or differences(keys[0], keys[1], names)
        raise UnlikeError(
            f"The hardware differs: {listed(found)}. Only rates of equal machines compare: run both on one of them."
        )
    by_couple = [config_differences(mine.records[0], other.records[0], names) for mine, other in couples]
    found, (mine, other) = min(zip(by_couple, couples, strict=True), key=lambda pair: len(pair[0]))
    raise UnlikeError(
        f"No configuration is both in {names[0]} and in {names[1]}. The nearest are {mine.title} and {other.title}: "
        f"{listed(found)}. Run both with the same flags."
    )


def refuse_new_hardware(record: Record, stored: Sequence[Record], stored_name: str) -> None:
    """Checks that baselines exist for the hardware of a record; `stored_name` is their directory in messages.

    Raises:
        UnlikeError: there are none.
    """
    if not stored:
        raise UnlikeError(
            f"There are no baselines in {stored_name}. Add some with `baseline promote FILE`, or name the directory "
            "with --baselines_dir."
        )
    if record.identity.hardware_key in {other.identity.hardware_key for other in stored}:
        return
    # The baselines whose hardware differs least.
    names = ("this run", "the baselines")
    found = [(other, differences(hardware(record), hardware(other), names)) for other in stored]
    other, differing = min(found, key=lambda pair: len(pair[1]))
    raise UnlikeError(
        f"There are no baselines of this hardware ({hardware_in_words(record)}) in {stored_name}. The nearest there is "
        f"{hardware_in_words(other)}: {listed(differing)}. Only rates of equal machines compare: check on a machine "
        "that has baselines, or promote runs of this one."
    )


def hardware_in_words(record: Record) -> str:
    """Returns the machine of a record."""
    facts = hardware(record)
    words = [str(facts["cpu_model"])] if facts.get("cpu_model") else []
    words += [f"{facts['cpu_cores_usable']} cores"] if facts.get("cpu_cores_usable") else []
    words += [f"{facts['memory_gib']} GiB"] if facts.get("memory_gib") else []
    words += [f"{count} x {gpu}" for gpu, count in Counter(facts.get("gpus") or []).items()]
    return ", ".join(words) or f"hardware {record.identity.hardware_key}"


def hardware(record: Record) -> dict[str, Any]:
    """Returns the recorded fields of the machine that must be equal where rates are compared."""
    return {name: record.environment[name] for name in _HARDWARE if name in record.environment}


def software_in_words(records: Iterable[Record]) -> str:
    """Returns the versions of TensorFlow and the suite; of a mixture, each once."""
    found = []
    for record in records:
        identity, version = record.identity, record.environment.get("tensorflow_version")
        commit = f" ({identity.suite_commit})" if identity.suite_commit else ""
        found.append((f"TensorFlow {version}, " if version else "") + f"suite {identity.suite_version}{commit}")
    return "; ".join(dict.fromkeys(found))


def software_differences(base: Record, candidate: Record, names: tuple[str, str]) -> list[str]:
    """Returns how recorded versions differ, a phrase each."""
    first, second = (
        {name: value for name, value in record.environment.items() if name.endswith("_version")}
        for record in (base, candidate)
    )
    return differences(first, second, names)


def config_differences(base: Record, candidate: Record, names: tuple[str, str]) -> list[str]:
    """Returns in which fields that can change the rate the configurations differ, a phrase each."""
    not_in_key = {*base.config_not_in_key, *candidate.config_not_in_key}
    first, second = (
        flat({name: value for name, value in record.config.items() if name not in not_in_key})
        for record in (base, candidate)
    )
    return differences(first, second, names)


def differences(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    """Returns a phrase with both values for each field that differs."""
    return [
        f"{name} is {mine} in {names[0]} and {other} in {names[1]}"
        for name in {**first, **second}
        for mine, other in [(first.get(name, _NOT_RECORDED), second.get(name, _NOT_RECORDED))]
        if first.get(name) != second.get(name)
    ]


def listed(found: Sequence[str]) -> str:
    """Returns phrases of `differences` as part of a sentence; of many, the first few."""
    more = [f"{len(found) - _MOST_FIELDS} more"] if len(found) > _MOST_FIELDS else []
    return "; ".join([*found[:_MOST_FIELDS], *more]) or "all recorded fields are equal, but not the keys made from them"
