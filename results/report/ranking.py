"""Which settings are the fastest, as far as runs can be told apart; where one overtakes another, or gains no more."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from results.intervals import is_faster
from results.record import recorded_command
from results.report.anomalies import title
from results.report.headline import ps_megabytes_per_sec
from results.summary import MANAGER, SCALED, Row, Siblings, manager_of
from results.text import counted

# Of more managers, only pairs of which one overtakes the other are listed.
_FEW_MANAGERS = 3
_PROCESSES = ("num_ps", "num_hosts")
_FLAGS_OF_PRECISION = ("precision", "use_fp16", "nouse_fp16")


@dataclasses.dataclass(frozen=True)
class Winner:
    """The fastest of several settings of a model: its flags, and those of the settings within its noise, if any."""

    model: str
    devices: int | None  # None: any number
    flags: str
    best: Row
    within_noise: Sequence[str]


def standings(rows: Sequence[Row]) -> list[Row]:
    """Returns the valid rows whose devices train one model; independent towers are only an upper bound."""
    return [
        row
        for row in rows
        if row.images_per_sec is not None and (row.devices == 1 or row.config.get("variable_update") != "independent")
    ]


def beats(one: Row, other: Row) -> bool:
    """Returns whether one is clearly faster; repeats are paired only if both have as many, and all are valid."""
    blocks = [[record.derived.images_per_sec or 0.0 for record in row.records] for row in (one, other)]
    are_pairs = len(one.records) == len(other.records) and all(map(all, blocks))
    return is_faster(one.among_processes, other.among_processes, blocks if are_pairs else ())


def winners(rows: Sequence[Row]) -> list[Winner]:
    """Returns the fastest settings of each model, for each number of devices and for any; none without a rival."""
    winning = []
    for model, group in _grouped(rows, _model).items():
        flags = _differing_flags(group)
        by_devices = _grouped(group, lambda row: row.devices)
        parts = [*by_devices.items(), *([(None, group)] if len(by_devices) > 1 else [])]
        for devices, rivals in parts:
            if len(rivals) > 1:
                best = max(rivals, key=lambda row: row.rate)
                ties = [flags[id(row)] for row in rivals if row is not best and not beats(best, row)]
                winning.append(Winner(model[0], devices, flags[id(best)], best, ties))
    return winning


def _model(row: Row) -> tuple[str, ...]:
    """Returns what must be equal in rows that are ranked: the model, what is done with which images, and where.

    How the images are read and prepared is a setting, as is the precision.
    """
    config, identity = row.config, row.records[0].identity
    model = f"{config.get('model')}{' inference' if config.get('forward_only') else ''}"
    if config.get("data_name") not in (None, "synthetic"):
        model += f", {config['data_name']}"
    return model, str(config.get("data_set")), identity.hardware_key, identity.software_key


def _grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _differing_flags(rows: Sequence[Row]) -> dict[int, str]:
    """Returns for each row, by its id, the flags of its command that not all have; its title if there are none."""
    words = list(map(_flags, rows))
    common = set.intersection(*map(set, words)) if words else set()
    return {
        id(row): " ".join(word for word in flags if word not in common) or title(row)
        for row, flags in zip(rows, words, strict=True)
    }


def _flags(row: Row) -> list[str]:
    """Returns the flags of a row's command, without those that cannot change the rate, and always the precision."""
    first = row.records[0]
    words: list[str] = []
    for word in recorded_command(first.identity.command):
        if word.startswith("--"):
            words.append(word)
        elif words:
            words[-1] += f"={word}"  # --name value
    left_out = {f"--{name}" for name in (*first.config_not_in_key, *_FLAGS_OF_PRECISION)}
    kept = [word for word in words if word.partition("=")[0] not in left_out]
    return [*kept, f"--precision={row.config.get('precision')}"]


def crossings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns for pairs of variable managers on several numbers of workers or devices which one is faster where.

    Each is a model and a sentence.
    """
    training = [row for row in rows if not row.config.get("forward_only")]
    groups = Siblings(training).groups(SCALED + MANAGER)
    return [(_model(group[0])[0], sentence) for group in groups for sentence in _crossings_of(group)]


def _crossings_of(alike: Sequence[Row]) -> Iterator[str]:
    """Yields sentences on rows that differ only in the manager and in the numbers of workers, servers and devices."""
    of_workers, of_devices = ("num_devices", "num_workers", "worker"), ("num_workers", "num_devices", "device")
    for fixed, varying, noun in (of_workers, of_devices):
        for number, group in _grouped(alike, _count(fixed)).items():
            lines = {name: _grouped(line, _count(varying)) for name, line in _grouped(group, _manager).items()}
            where = f", in each of {number} workers" if noun == "device" else f", each with {number} devices"
            for names in itertools.combinations(lines, 2):
                first, second = (lines[name] for name in names)
                points = {n: (first[n][0], second[n][0]) for n in sorted(set(first) & set(second))}
                if len(points) < 2:
                    continue
                signs = {n: beats(one, other) - beats(other, one) for n, (one, other) in points.items()}
                if len(lines) <= _FEW_MANAGERS or {-1, 1} <= set(signs.values()):
                    ratios = {n: other.rate / one.rate for n, (one, other) in points.items()}
                    yield _crossing(names, signs, ratios, noun) + (where if number > 1 else "") + "."


def _count(name: str) -> Callable[[Row], int]:
    return lambda row: row.count(name)


def _manager(row: Row) -> str:
    servers = row.config.get("num_ps") or 0
    return manager_of(row.config) + (f" with {servers} ps" if servers else "")


def _crossing(names: Sequence[str], signs: Mapping[int, int], ratios: Mapping[int, float], noun: str) -> str:
    """Returns which of two managers is faster with how many workers or devices.

    Args:
        names: of the two.
        signs: for each number, 1 if the first is clearly faster, -1 if the second is, else 0; in ascending order.
        ratios: the rate of the second over that of the first.
        noun: what is counted.
    """
    measured = ", ".join(f"{ratio:.2f} with {n}" for n, ratio in ratios.items())
    measured = f" (rate over that of {names[0]}: {measured} {noun}s)"
    decided = [(n, names[sign < 0]) for n, sign in signs.items() if sign]
    ties = [str(n) for n, sign in signs.items() if not sign]
    if not decided:
        return f"{names[1]} and {names[0]} cannot be told apart{measured}"
    turns = [(after, name) for (_, before), (after, name) in itertools.pairwise(decided) if before != name]
    faster = decided[0][1]
    slower = names[names[0] == faster]
    if turns:
        sentence = f"{faster} is faster than {slower} with {decided[0][0]}"
        sentence += "".join(f"; {name} overtakes from {after} {noun}s on" for after, name in turns)
    else:
        numbers = ", ".join(str(n) for n, _ in decided)
        sentence = f"{faster} is faster than {slower} with {numbers} {noun}{'s' * (numbers != '1')}"
        sentence += ": they do not cross within what was measured"
    return sentence + (f"; with {', '.join(ties)} they cannot be told apart" if ties else "") + measured


def saturation(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns from which number of parameter servers on more of them gain nothing: a model and a sentence each."""
    groups = Siblings([row for row in rows if row.config.get("num_ps")]).groups(_PROCESSES)
    by_counts = [{row.count("num_ps"): row for row in group} for group in groups]
    return [
        (_model(group[0])[0], _saturation(dict(sorted(by_count.items()))))
        for group, by_count in zip(groups, by_counts, strict=True)
        if len(by_count) > 1
    ]


def _saturation(by_count: Mapping[int, Row]) -> str:
    """Returns the sentence on rows that differ only in the number of parameter servers, in ascending order."""
    counts = list(by_count)
    enough = next(n for n in counts if not any(beats(by_count[more], by_count[n]) for more in counts if more > n))
    first = by_count[counts[0]]
    what = f"{manager_of(first.config)}, {counted(first.count('num_workers'), 'worker')}"
    if enough == counts[-1]:
        sentence = f"{what}: {enough} ps are still faster than {counts[-2]}, so they do not saturate within what was"
        sentence += " measured"
    else:
        sentence = f"{what}: from {enough} ps on, more of them bring less than the noise"
        slower = [str(n) for n in counts if n > enough and beats(by_count[enough], by_count[n])]
        sentence += f"; with {', '.join(slower)} it is slower" if slower else ""
    rates = ", ".join(f"{row.rate:.2f}" for row in by_count.values())
    megabytes = ", ".join(ps_megabytes_per_sec(row) or "unknown" for row in by_count.values())
    return f"{sentence} (with {', '.join(map(str, counts))} ps: {rates} images/s, and {megabytes} MB/s per ps)."
