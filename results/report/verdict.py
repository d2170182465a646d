"""What results show, in a sentence for each model: which setting is faster and by how much, or that none is."""

from __future__ import annotations

from collections.abc import Sequence

from results.intervals import Interval, of_repeats
from results.report import headline, ranking
from results.report.anomalies import note_on_repeats
from results.report.ranking import RankingGroup, beats, paired_rates
from results.summary import Row, grouped, manager_of
from results.text import counted

_MOST_SENTENCES = 3
_IN_ENGLISH = ("no ", "a cluster ", "one process ", "with ")  # other sentences begin with the name of a setting


def verdict(rows: Sequence[Row]) -> str:
    """Returns what rows show, as far as they train the same (see `ranking.ranking_groups`)."""
    rated = [row for row in rows if row.images_per_sec is not None]
    if not rated:
        return "No run has a valid rate."
    if len(rated) == 1:
        (row,) = rated
        once = "one run" if len(row.valid) == 1 else f"{len(row.valid)} runs of one setting"
        return f"{row.title}: {row.measured.text()} images/s; {once}: nothing to compare."
    groups = ranking.ranking_groups(rows)
    models = {group.model for group in groups}
    said = [sentence for group in groups if not group.differs if (sentence := _of_group(group, len(models) > 1))]
    if not said:
        return _apart(groups) or "Nothing to rank: no two settings do the same work on equal hardware and software."
    more = f" And {len(said) - _MOST_SENTENCES} more below." if len(said) > _MOST_SENTENCES else ""
    once = f" ({once})" if (once := note_on_repeats(rated)) else ""
    return " ".join(said[:_MOST_SENTENCES]) + more + once


def _of_group(group: RankingGroup, is_one_model_of_several: bool) -> str:
    """Returns sentences on the rivals with the most devices, and on what more devices without rivals gain."""
    by_devices = grouped(group.rows, lambda row: row.devices)
    of_model = [group.model] if is_one_model_of_several else []
    compared = max((devices for devices, rivals in by_devices.items() if len(rivals) > 1), default=0)
    said = []
    if compared:
        on = [counted(compared, "device")] if len(by_devices) > 1 else []
        said.append(_sentence([*of_model, *on], _compared(sorted(by_devices[compared], key=lambda row: -row.rate))))
    row = by_devices[max(by_devices)][0]
    if row.devices > max(1, compared) and row.speed_up:
        whose = f"with {manager_of(row.config)}, " if compared else ""
        said.append(_sentence(of_model, f"{whose}{row.devices} devices are {row.speed_up.text()} x as fast as one"))
    return " ".join(said)


def _sentence(where: Sequence[str], found: str) -> str:
    sentence = f"{', '.join(where)}: {found}." if where else f"{found}."
    return sentence[:1].upper() + sentence[1:] if found.startswith(_IN_ENGLISH) and not where else sentence


def _compared(rivals: Sequence[Row]) -> str:
    """Returns what at least two rows, the fastest first, show about each other."""
    names, kind = headline.labels(rivals), f"{len(rivals)} settings"
    is_close = [True, *(not beats(rivals[0], row) for row in rivals[1:])]
    close = [name for name, is_one in zip(names, is_close, strict=True) if is_one]
    if len(close) == 1:
        percent = _advantage(*rivals[:2])
        next_of = f", the next of {kind}" if len(rivals) > 2 else ""
        return f"{names[0]} is {percent.rounded()} % faster than {names[1]}{next_of} ({percent.range()} %)"
    if len(close) == len(rivals) > 2:
        return f"no difference shown between the {kind}"
    whose = " and ".join(close) if len(close) == 2 else f"the fastest {len(close)}"
    of = "" if len(close) == len(rivals) else f" of {kind}" if len(close) > 2 else f", the fastest of {kind}"
    return f"no difference shown between {whose}{of}"


def _apart(groups: Sequence[RankingGroup]) -> str:
    """Returns how much the rates of groups that train differently differ from the first of their model."""
    usual, said = groups[0], []
    for group in groups[1:]:
        best = max(group.rows, key=lambda row: (row.devices, row.rate))
        rival = max((row for row in usual.rows if row.devices == best.devices), key=lambda row: row.rate, default=None)
        if group.model == usual.model and group.differs and rival is not None:
            said.append(f"{best.among_processes.over(rival.among_processes).text()} x with {group.differs}")
    said.sort(key=lambda words: words.count(" instead of "))  # what differs in one respect comes first
    return f"Nothing to rank: no two settings train the same. The rate is {'; '.join(said[:2])}." if said else ""


def _advantage(one: Row, other: Row) -> Interval:
    """Returns by how many percent a row is faster than another that it beats; by pairs if only pairs show it."""
    ratio = one.among_processes.over(other.among_processes)
    if ratio.low <= 1:
        ratio = of_repeats([mine / theirs for mine, theirs in zip(*paired_rates(one, other), strict=True)])
    return Interval(*(100 * (bound - 1) for bound in (ratio.value, ratio.low, ratio.high)))
