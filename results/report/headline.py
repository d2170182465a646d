"""The headline table: its columns, and the table as text and Markdown; one line per configuration."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from results.report.anomalies import title
from results.summary import Row, manager_of


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: with the unit.
        is_number: whether it is sorted and aligned as one.
        text: reads it off a row; what is unknown is empty.
        brief: whether it is shown where there is little room.
    """

    name: str
    is_number: bool
    text: Callable[[Row], str]
    brief: bool = False


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _config(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.config.get(name) or "")


def _model(row: Row) -> str:
    return _config("model")(row) + (" inference" if row.config.get("forward_only") else "")


def _milliseconds(which: str) -> Callable[[Row], str]:
    return lambda row: _number(_median(row, which), 1)


def _mfu_of_measured_peak(row: Row) -> str:
    share = _median(row, "mfu_of_measured_peak")
    return _number(None if share is None else 100 * share, 1)


def _median(row: Row, which: str) -> float | None:
    """Returns the median over the valid repeats of something derived, of those that know it."""
    values = [value for record in row.valid if (value := getattr(record.derived, which)) is not None]
    return statistics.median(values) if values else None


def _interval(row: Row) -> str:
    return "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"


def _efficiency(row: Row) -> str:
    return _number(None if row.efficiency is None else 100 * row.efficiency, 0)


def _sent_megabytes(row: Row) -> str:
    sent = (row.records[0].placement.get("sent_per_step") or {}).get("total_bytes")
    return "" if sent is None else f"{sent / 1e6:.1f}"


def _processes(row: Row) -> str:
    """Returns what a cluster consists of; empty for a single process."""
    workers, servers = row.config.get("num_workers") or 1, row.config.get("num_ps") or 0
    if not row.config.get("cluster"):
        return ""
    return (f"{servers} ps, " if servers else "") + f"{workers} worker{'s' * (workers > 1)}"


def _ps_megabytes_per_sec(row: Row) -> str:
    busiest = (row.records[0].placement.get("sent_per_step") or {}).get("busiest_ps_bytes")
    seconds = [seconds for record in row.valid for seconds in record.measurement.step_seconds]
    return _number(busiest * len(seconds) / sum(seconds) / 1e6, 0) if busiest and seconds else ""


def _status(row: Row) -> str:
    return row.status + (f" ({len(row.valid)} of {len(row.records)})" if len(row.records) > 1 else "")


COLUMNS = (
    Column("model", False, _model, brief=True),
    Column("variable manager", False, lambda row: manager_of(row.config), brief=True),
    Column("processes", False, _processes, brief=True),
    Column("devices", True, lambda row: str(row.devices), brief=True),
    Column("device", False, _config("device")),
    Column("batch per device", True, _config("batch_per_device"), brief=True),
    Column("precision", False, _config("precision")),
    Column("data", False, _config("data_name")),
    Column("images/s", True, lambda row: _number(row.images_per_sec, 2), brief=True),
    Column("95 % interval", True, _interval, brief=True),
    Column("per device", True, lambda row: _number(row.per_device, 2), brief=True),
    Column("speed-up", True, lambda row: _number(row.speed_up, 2), brief=True),
    Column("efficiency %", True, _efficiency),
    Column("TFLOP/s", True, lambda row: _number(row.tflops, 3)),
    Column("MFU %", True, lambda row: _number(None if row.mfu is None else 100 * row.mfu, 1)),
    Column("MFU of measured peak %", True, _mfu_of_measured_peak),
    Column("step p50 ms", True, _milliseconds("step_ms_p50")),
    Column("step p99 ms", True, _milliseconds("step_ms_p99")),
    Column("sent MB", True, _sent_megabytes),
    Column("MB/s per ps", True, _ps_megabytes_per_sec, brief=True),
    Column("also", False, lambda row: row.also, brief=True),
    Column("status", False, _status, brief=True),
    Column("reason", False, lambda row: row.reason),
)


def lines(rows: Sequence[Row]) -> list[str]:
    """Returns the brief columns as lines of text, and below them why runs did not count."""
    if not rows:
        return ["There are no runs."]
    columns = [column for column in COLUMNS if column.brief and any(column.text(row) for row in rows)]
    table = [[column.name for column in columns], *([column.text(row) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
    text.insert(1, "  ".join("-" * width for width in widths))
    return text + [f"{title(row)}: {row.status}. {row.reason}" for row in rows if row.reason]


def markdown(rows: Sequence[Row]) -> list[str]:
    """Returns all columns in which some row has something as a Markdown table."""
    columns = [column for column in COLUMNS if any(column.text(row) for row in rows)]
    head = [column.name for column in columns]
    rule = ["---:" if column.is_number else "---" for column in columns]
    body = [[column.text(row) for column in columns] for row in rows]
    return [markdown_line(line) for line in (head, rule, *body)]


def markdown_line(cells: Sequence[str]) -> str:
    """Returns a line of a Markdown table; what is in the cells stays text."""
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"


def markdown_text(text: str) -> str:
    """Returns text on one line that Markdown takes for text."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
