"""The headline table, with a row per configuration: what differs between rows, and what was measured."""

from __future__ import annotations

import dataclasses
import re
import statistics
import sys
from collections.abc import Callable, Sequence

from results.summary import Row, manager_of, processes_of
from results.text import Table, counted, rounded

# More fields in which rows differ share a column, so that the rates are on the screen.
_MOST_DISTINCT = 4


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the headline table.

    Attributes:
        name: with the unit, if it has one.
        is_number: sorted as numbers, and aligned to the right.
        cell: returns its text for a row; empty if unknown.
        of: whether it tells something about a row; if about none, the column is left out.
        brief: whether a terminal has room for it.
    """

    name: str
    is_number: bool
    cell: Callable[[Row], str]
    of: Callable[[Row], bool] = lambda row: True
    brief: bool = False


def _config(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.config.get(name) or "")


def _rounded(number: float | None, factor: float = 1) -> str:
    return "" if number is None else rounded(factor * number)


def _median(row: Row, name: str) -> float | None:
    values = [value for record in row.valid if (value := getattr(record.derived, name)) is not None]
    return statistics.median(values) if values else None


def _sent_megabytes(row: Row, name: str) -> float | None:
    sent = (row.placement.get("sent_per_step") or {}).get(name)
    return None if sent is None else sent / 1e6


def ps_megabytes_per_sec(row: Row) -> str:
    """Returns what the busiest parameter server sends and receives, in MB/s; empty if that is unknown."""
    busiest = _sent_megabytes(row, "busiest_ps_bytes")
    return rounded(busiest / row.step_seconds.value) if busiest and row.images_per_sec else ""


def speed_up(row: Row) -> str:
    """Returns the speed-up with its interval; empty without a base."""
    return row.speed_up.text() if row.speed_up else ""


def _per_device(row: Row) -> str:
    return row.measured.scaled(1 / row.devices).rounded() if row.images_per_sec else ""


def _efficiency(row: Row) -> str:
    return row.speed_up.scaled(100 / row.devices).rounded() if row.speed_up else ""


def _status(row: Row) -> str:
    return row.status + (f" ({len(row.valid)} of {len(row.records)})" if len(row.records) > 1 else "")


SETTINGS = (
    Column("model", False, lambda row: _config("model")(row) and row.model),
    Column("variable manager", False, lambda row: manager_of(row.config)),
    Column("processes", False, lambda row: processes_of(row.config)),
    Column("devices", True, lambda row: str(row.devices)),
    Column("device", False, _config("device")),
    Column("batch per device", True, _config("batch_per_device")),
    Column("precision", False, _config("precision")),
    Column("data", False, _config("data_name")),
)
MEASURED = (
    Column("images/s", True, lambda row: row.measured.rounded() if row.images_per_sec else "", brief=True),
    Column("95 % interval", True, lambda row: row.measured.range() if row.images_per_sec else "", brief=True),
    Column("speed-up", True, speed_up, lambda row: row.devices > 1, brief=True),
    Column("status", False, _status, brief=True),
    Column("per device", True, _per_device, lambda row: row.devices > 1, brief=True),
    Column("efficiency %", True, _efficiency, lambda row: row.devices > 1),
    Column("TFLOP/s", True, lambda row: row.measured.scaled(row.tflops / row.rate).rounded() if row.tflops else ""),
    Column("MFU %", True, lambda row: _rounded(row.mfu, 100)),
    Column("MFU of measured peak %", True, lambda row: _rounded(_median(row, "mfu_of_measured_peak"), 100)),
    Column("step p50 ms", True, lambda row: _rounded(_median(row, "step_ms_p50"))),
    Column("step p99 ms", True, lambda row: _rounded(_median(row, "step_ms_p99"))),
    Column("sent MB", True, lambda row: _rounded(_sent_megabytes(row, "total_bytes"))),
    Column("MB/s per ps", True, ps_megabytes_per_sec, brief=True),
)


def settings(rows: Sequence[Row], most_distinct: int = _MOST_DISTINCT) -> tuple[list[Column], list[str]]:
    """Returns the columns of settings that differ between rows, and those that do not as words such as `data real`.

    Of more than `most_distinct` other fields, one column has all.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.distinct))
    if len(names) > most_distinct:
        distinct = [Column("also", False, _also)]
    else:
        distinct = [_distinct(name, rows) for name in names]
    differing, common = [], []
    for column in (*SETTINGS, *distinct):
        values = set(map(column.cell, rows))
        if len(values) > 1:
            differing.append(column)
        elif values - {""}:
            common.append(f"{column.name} {values.pop()}")
    return differing, common


def _also(row: Row) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.distinct.items() if value)


def _distinct(name: str, rows: Sequence[Row]) -> Column:
    values = list(filter(None, (row.distinct.get(name) for row in rows)))
    is_number = all(re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", value) for value in values)
    return Column(name, is_number, lambda row: row.distinct.get(name, ""))


def in_all(rows: Sequence[Row]) -> str:
    """Returns a sentence on the settings that all rows have; empty if there are none."""
    common = settings(rows)[1]
    return f"{'All rows' if len(rows) > 1 else 'The run'}: {', '.join(common)}." if common else ""


def labels(rows: Sequence[Row]) -> list[str]:
    """Returns a label of each row, of what distinguishes it from the others."""
    columns, words = settings(rows, most_distinct=sys.maxsize)[0], [""] * len(rows)
    for column in columns:
        cells = [_as_label(column, row) for row in rows]
        words = [", ".join(filter(None, both)) for both in zip(words, cells, strict=True)]
        if len(set(words)) == len(rows):
            return words
    return [row.title for row in rows]


def _as_label(column: Column, row: Row) -> str:
    """Returns a setting of a row in words; empty if the column is not about it."""
    cell, name = column.cell(row), column.name.removesuffix(" per device")
    if name == "devices":
        return counted(int(cell), "device")
    if name == "processes":
        return f"a cluster of {cell}" if cell else "one process"
    if not cell and column in SETTINGS:
        return f"unknown {name}"
    if not cell:
        return f"no {name}" if name in row.distinct else ""
    says_nothing_alone = column.is_number or column not in SETTINGS
    return f"{name} {cell}" if says_nothing_alone else cell


def table(rows: Sequence[Row], *, brief: bool = False) -> Table:
    """Returns the settings that differ, and what was measured; `brief`: as far as a terminal has room for it."""
    measured = [column for column in MEASURED if column.brief or not brief]
    told = [column for column in measured if any(column.of(row) and column.cell(row) for row in rows)]
    columns = settings(rows)[0]
    if columns and columns[-1].name == "also":  # it is long: rates and their intervals come before it
        told.insert(len(told) if brief else 2, columns.pop())
    columns += told
    return Table(
        [column.name for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
        [column.name for column in columns if column.is_number],
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """Returns common settings and the brief columns as lines of text, then the reasons of runs that are not valid."""
    if not rows:
        return ["There are no runs."]
    return [in_all(rows), *table(rows, brief=True).text(), *reasons(rows)]


def reasons(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each row with a run that is not valid."""
    return [f"{row.title}: {row.status}. {row.reason}" for row in rows if row.reason]
