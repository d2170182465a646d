"""Which settings are the fastest, as far as runs can be told apart; where one overtakes another, or gains no more.

Only settings that train the same are ranked with each other (see `ranking_groups`).
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence

from results.gate import rounds
from results.intervals import is_faster
from results.record import differing, flags_of_command
from results.report.headline import ps_megabytes_per_sec
from results.summary import MANAGER, SCALED, Row, Siblings, grouped, manager_of
from results.text import counted, first_few, rounded

# Of more managers, only pairs of which one overtakes the other are listed.
_FEW_MANAGERS = 3
_PROCESSES = ("num_ps", "num_hosts")
# Fields of the configuration in which rows that do the same work are equal, besides the model and the kind of data.
_WORK = ("num_classes", "model_digest", "eval_only", "data_set")
# What the other modifiers and managers than those that apply the mean gradient of a step in that step do.
_STALE = {
    "asynchronous": "asynchronous updates",
    "staged_vars": "weights of the step before",
    "relaxed_consistency": "gradients of the step before",
}
# Fields of the configuration that change the arithmetic of training, besides those of the variable manager.
_ARITHMETIC = (
    "precision",
    "optimizer",
    "gradient_clip",
    "gradient_clip_norm",
    "weight_decay",
    "weight_decay_on",
    "label_smoothing",
)


@dataclasses.dataclass(frozen=True)
class RankingGroup:
    """Rows that may be ranked: they do the same work with the same arithmetic.

    `differs` says how they train differently from the first group of the same `model`, whose it is empty.
    """

    model: str
    rows: Sequence[Row]
    differs: str = ""


@dataclasses.dataclass(frozen=True)
class Winner:
    """The fastest of several settings of a model: its flags, and those of the settings within its noise, if any.

    `differs`: how it trains differently (see `RankingGroup`).
    """

    model: str
    devices: int | None  # None: any number
    flags: str
    best: Row
    within_noise: Sequence[str]
    differs: str = ""


def ranking_groups(rows: Sequence[Row]) -> list[RankingGroup]:
    """Returns the valid rows in groups that may be ranked.

    The groups of a model follow each other. Its first one has no reference loops, and applies in every step the mean
    gradient of that step, if any does; of several such groups it is in fp32, and of several of these it has the most
    rows. The batch size, the learning rate, and how images are read are settings that a group may mix.
    """
    groups = []
    for of_model in _valid_by_work(rows):
        alike = grouped(of_model, lambda row: tuple(_arithmetic(row).items()))
        by_arithmetic = sorted(alike.values(), key=_how_unusual)
        usual = _arithmetic(by_arithmetic[0][0])
        model = _model(of_model[0])
        groups += [RankingGroup(model, group, _difference(_arithmetic(group[0]), usual)) for group in by_arithmetic]
    return groups


def _valid_by_work(rows: Sequence[Row]) -> list[list[Row]]:
    return [*grouped([row for row in rows if row.images_per_sec is not None], _work).values()]


def _how_unusual(group: Sequence[Row]) -> tuple[bool, int, bool, int]:
    return bool(group[0].loop), len(_exchange(group[0])), group[0].config.get("precision") != "fp32", -len(group)


def _arithmetic(row: Row) -> dict[str, str]:
    names = ("precision",) if row.config.get("forward_only") else _ARITHMETIC
    of_manager = {"loop": row.loop, "exchange": ", ".join(_exchange(row))}
    values = {name: row.config.get(name) for name in names}
    return {name: "off" if value is None else str(value) for name, value in values.items()} | of_manager


def _exchange(row: Row) -> list[str]:
    """Returns in what a row differs from training that applies, in every step, the mean gradient of that step."""
    if row.config.get("forward_only"):
        return []
    modifiers = row.config.get("modifiers")
    given = modifiers if isinstance(modifiers, Mapping) else {}
    several = row.devices > 1
    words = [text for name, text in _STALE.items() if given.get(name) and (several or name != "asynchronous")]
    if given.get("compact_gradient_transfer"):
        words.append(f"gradients sent in {given.get('compact_gradient_dtype')}")
    if several and given.get("local_sgd_steps"):
        words.append(f"weights averaged every {given['local_sgd_steps']} steps")
    if several and row.config.get("variable_update") == "independent":
        words.append("gradients not exchanged")
    return words


def _difference(arithmetic: Mapping[str, str], usual: Mapping[str, str]) -> str:
    unlike = differing(arithmetic, usual)
    in_words = [unlike.pop(name, ("", "")) for name in ("loop", "exchange")]
    words = [mine or f"without {theirs}" for mine, theirs in in_words if mine or theirs]
    return first_few([*words, *(f"{name} {value} instead of {other}" for name, (value, other) in unlike.items())])


def beats(one: Row, other: Row) -> bool:
    """Returns whether one is clearly faster, by its interval or by pairs of repeats."""
    return is_faster(one.among_processes, other.among_processes, paired_rates(one, other))


def paired_rates(one: Row, other: Row) -> list[tuple[float, ...]]:
    """Returns the rates of both by repeat; empty unless all repeats are valid, and those of both ran in turn.

    If one ran first and the other later, a drift of the machine would make all pairs differ alike.
    """
    pairs = rounds.pairs(one.records, other.records) or []
    return list(zip(*pairs, strict=True)) if len(pairs) == len(one.records) == len(other.records) else []


def notes_on_turns(rows: Sequence[Row]) -> list[str]:
    """Returns a note if the fastest of some rivals and one that it beats were repeated one after the other."""
    pairs = []
    for group in ranking_groups(rows):
        for rivals in grouped(group.rows, lambda row: row.devices).values():
            best = max(rivals, key=lambda row: row.rate)
            for row in rivals:
                first, second = sorted([record.ended for record in each.valid] for each in (best, row))
                if min(len(first), len(second)) > 1 and max(first) < min(second) and beats(best, row):
                    pairs.append(f"{best.title} and {row.title}")
    drift = "All repeats of one ended before those of the other, so a drift of the machine would look like a difference"
    return [f"{drift}: {first_few(pairs)}. `sweep --repeats` and `ab` alternate."] if pairs else []


def winners(rows: Sequence[Row]) -> list[Winner]:
    """Returns the fastest settings of each group (see `ranking_groups`), for each number of devices and for any.

    A setting without a rival is returned only if it trains differently from others of its model.
    """
    winning = []
    flags = {id(row): words for of_model in _valid_by_work(rows) for row, words in _differing_flags(of_model)}
    for group in ranking_groups(rows):
        by_devices: dict[int | None, list[Row]] = {**grouped(group.rows, lambda row: row.devices)}
        for devices, rivals in (by_devices | ({None: [*group.rows]} if len(by_devices) > 1 else {})).items():
            if len(rivals) > 1 or group.differs:
                best = max(rivals, key=lambda row: row.rate)
                ties = [flags[id(row)] for row in rivals if row is not best and not beats(best, row)]
                winning.append(Winner(group.model, devices, flags[id(best)], best, ties, group.differs))
    return winning


def _work(row: Row) -> tuple[str, ...]:
    """Returns what is computed on which images, and where."""
    identity = row.records[0].identity
    fields = [str(row.config.get(name)) for name in _WORK]
    return _model(row), *fields, identity.hardware_key, identity.software_key


def _model(row: Row) -> str:
    """Returns the model, its data, and in what else the row differs from rows that do other work or do it elsewhere."""
    data, fields = row.config.get("data_name"), (*_WORK, "machine", "TensorFlow", "steps")
    apart = [f"{name} {row.distinct[name]}" for name in fields if row.distinct.get(name)]
    return ", ".join([row.model, *([] if data in (None, "synthetic") else [str(data)]), *apart])


def _differing_flags(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Returns each row with the flags of its command that not all have, or with its title if there are none."""
    words = list(map(_flags, rows))
    common = set.intersection(*map(set, words))
    return [
        (row, " ".join(word for word in flags if word not in common) or row.title)
        for row, flags in zip(rows, words, strict=True)
    ]


def _flags(row: Row) -> list[str]:
    """Returns the flags of a row's command, without those that cannot change the rate."""
    first = row.records[0]
    flags = ["=".join(flag) for flag in flags_of_command(first.identity.command) if flag[0].startswith("-")]
    left_out = {f"--{name}" for name in first.config_not_in_key}
    return [flag for flag in flags if flag.partition("=")[0] not in left_out]


def crossings(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns for pairs of variable managers on several numbers of workers or devices which one is faster where.

    Each is a setting and a sentence.
    """
    training = [row for row in rows if not row.config.get("forward_only")]
    groups = Siblings(training).groups(SCALED + MANAGER)
    return [(group[0].setting(SCALED), sentence) for group in groups for sentence in _crossings_of(group)]


def _crossings_of(alike: Sequence[Row]) -> Iterator[str]:
    """Yields sentences on rows that differ only in the manager and in the numbers of workers, servers and devices."""
    devices, workers = (operator.methodcaller("count", name) for name in ("num_devices", "num_workers"))
    for fixed, varying, noun in ((devices, workers, "worker"), (workers, devices, "device")):
        for number, group in grouped(alike, fixed).items():
            lines = {name: grouped(line, varying) for name, line in grouped(group, _manager).items()}
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


def _manager(row: Row) -> str:
    servers = row.config.get("num_ps") or 0
    return manager_of(row.config) + (f" with {servers} ps" if servers else "")


def _crossing(names: Sequence[str], signs: Mapping[int, int], ratios: Mapping[int, float], noun: str) -> str:
    """Returns which of two managers is faster with how many workers or devices, by ascending numbers of them.

    A sign is 1 if the first is clearly faster, -1 if the second is, else 0; a ratio is the rate of the second over
    that of the first.
    """
    measured = ", ".join(f"{rounded(ratio)} with {n}" for n, ratio in ratios.items())
    measured = f" (rate over that of {names[0]}: {measured} {noun}s)"
    decided = [(n, names[sign < 0]) for n, sign in signs.items() if sign]
    ties = [str(n) for n, sign in signs.items() if not sign]
    if not decided:
        return f"{names[1]} and {names[0]} cannot be told apart{measured}"
    turns = [(after, name) for (_, before), (after, name) in itertools.pairwise(decided) if before != name]
    first, faster = decided[0]
    sentence = f"{faster} is faster than {names[names[0] == faster]} with "
    if turns:
        sentence += f"{first}" + "".join(f"; {name} overtakes from {after} {noun}s on" for after, name in turns)
    else:
        numbers = ", ".join(str(n) for n, _ in decided)
        sentence += f"{numbers} {noun}{'s' * (numbers != '1')}: they do not cross within what was measured"
    return sentence + (f"; with {', '.join(ties)} they cannot be told apart" if ties else "") + measured


def saturation(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Returns from which number of parameter servers on more of them gain nothing: a setting and a sentence each."""
    served = [row for row in rows if row.config.get("num_ps")]
    by_counts = [{row.count("num_ps"): row for row in group} for group in Siblings(served).groups(_PROCESSES)]
    alike = [found for found in by_counts if len(found) > 1]
    return [(next(iter(found.values())).setting(SCALED), _saturation(found)) for found in alike]


def _saturation(by_count: Mapping[int, Row]) -> str:
    """Returns the sentence on rows that differ only in the number of parameter servers."""
    counts = sorted(by_count)
    enough = next(n for n in counts if not any(beats(by_count[more], by_count[n]) for more in counts if more > n))
    first = by_count[counts[0]]
    what = f"{manager_of(first.config)}, {counted(first.count('num_workers'), 'worker')}"
    if enough == counts[-1]:
        sentence = f"{what}: {enough} ps are still faster than {counts[-2]}, so they do not saturate within what was "
        sentence += "measured"
    else:
        sentence = f"{what}: from {enough} ps on, more of them bring less than the noise"
        slower = [str(n) for n in counts if n > enough and beats(by_count[enough], by_count[n])]
        sentence += f"; with {', '.join(slower)} it is slower" if slower else ""
    rates = ", ".join(by_count[n].measured.rounded() for n in counts)
    megabytes = ", ".join(ps_megabytes_per_sec(by_count[n]) or "unknown" for n in counts)
    return f"{sentence} (with {', '.join(map(str, counts))} ps: {rates} images/s, and {megabytes} MB/s per ps)."
