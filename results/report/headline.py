"""The headline table, with a row per configuration."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from results.report.anomalies import title
from results.summary import Row, manager_of, processes_of
from results.text import Table
from results.utilisation import of_measured_peak


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: `is_number` sorts and aligns it as numbers; `cell` reads its text from a row, empty if unknown.

    The table in the terminal has only the `brief` columns.
    """

    name: str
    is_number: bool
    cell: Callable[[Row], str]
    brief: bool = False


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None, digits: int) -> str:
    return _number(share and 100 * share, digits)


def _config(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.config.get(name) or "")


def _model(row: Row) -> str:
    return _config("model")(row) + (" inference" if row.config.get("forward_only") else "")


def _median(row: Row, name: str) -> float | None:
    values = [value for record in row.valid if (value := getattr(record.derived, name)) is not None]
    return statistics.median(values) if values else None


def _mfu_of_measured_peak(row: Row) -> float | None:
    shares = [share for record in row.valid if (share := of_measured_peak(record)) is not None]
    return statistics.median(shares) if shares else None


def _sent_megabytes(row: Row, name: str) -> float | None:
    sent = (row.records[0].placement.get("sent_per_step") or {}).get(name)
    return None if sent is None else sent / 1e6


def ps_megabytes_per_sec(row: Row) -> str:
    """Returns what the busiest parameter server sends and receives, in MB/s; empty if that is unknown."""
    busiest, seconds = _sent_megabytes(row, "busiest_ps_bytes"), row.step_seconds
    return _number(busiest * len(seconds) / sum(seconds), 0) if busiest and seconds else ""


def speed_up(row: Row) -> str:
    """Returns the speed-up with its interval; empty without a base."""
    return row.speed_up.text() if row.speed_up else ""


def _status(row: Row) -> str:
    return row.status + (f" ({len(row.valid)} of {len(row.records)})" if len(row.records) > 1 else "")


COLUMNS = (
    Column("model", False, _model, brief=True),
    Column("variable manager", False, lambda row: manager_of(row.config), brief=True),
    Column("processes", False, lambda row: processes_of(row.config), brief=True),
    Column("devices", True, lambda row: str(row.devices), brief=True),
    Column("device", False, _config("device")),
    Column("batch per device", True, _config("batch_per_device"), brief=True),
    Column("precision", False, _config("precision")),
    Column("data", False, _config("data_name")),
    Column("images/s", True, lambda row: f"{row.rate:.2f}" if row.images_per_sec else "", brief=True),
    Column("95 % interval", True, lambda row: row.images_per_sec.range() if row.images_per_sec else "", brief=True),
    Column("per device", True, lambda row: _number(row.per_device, 2), brief=True),
    Column("speed-up", True, speed_up, brief=True),
    Column("efficiency %", True, lambda row: _percent(row.efficiency, 0)),
    Column("TFLOP/s", True, lambda row: _number(row.tflops, 3)),
    Column("MFU %", True, lambda row: _percent(row.mfu, 1)),
    Column("MFU of measured peak %", True, lambda row: _percent(_mfu_of_measured_peak(row), 1)),
    Column("step p50 ms", True, lambda row: _number(_median(row, "step_ms_p50"), 1)),
    Column("step p99 ms", True, lambda row: _number(_median(row, "step_ms_p99"), 1)),
    Column("sent MB", True, lambda row: _number(_sent_megabytes(row, "total_bytes"), 1)),
    Column("MB/s per ps", True, ps_megabytes_per_sec, brief=True),
    Column("also", False, lambda row: row.also, brief=True),
    Column("status", False, _status, brief=True),
    Column("reason", False, lambda row: row.reason),
)


def table(rows: Sequence[Row], *, brief: bool = False) -> Table:
    """Returns the columns that have a value in some row; `brief` leaves out those that the terminal has no room for."""
    columns = [column for column in COLUMNS if column.brief or not brief]
    columns = [column for column in columns if any(map(column.cell, rows))]
    return Table(
        [column.name for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
        [column.name for column in columns if column.is_number],
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """Returns the brief columns as lines of text, and then the reasons of runs that are not valid."""
    return [*table(rows, brief=True).text(), *reasons(rows)] if rows else ["There are no runs."]


def reasons(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each row with a run that is not valid."""
    return [f"{title(row)}: {row.status}. {row.reason}" for row in rows if row.reason]
