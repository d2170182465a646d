"""The public table: a CSV of published figures, one a line, which `COLUMNS` defines."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from results.environment import hardware_in_words, software_in_words
from results.intervals import Interval
from results.summary import Row, manager_of
from results.text import csv_cell, one_line


class TableError(ValueError):
    """A table cannot be read. The message has its file and line, what was wanted, and what to do."""


@dataclasses.dataclass(frozen=True)
class PublicColumn:
    """A column: its name, what it means, the type of its cells, their unit, and whether each line must have it."""

    name: str
    meaning: str
    kind: type = str
    unit: str = ""
    required: bool = False


def _column(meaning: str, kind: type = str, unit: str = "", *, required: bool = False) -> Any:
    metadata = {"meaning": meaning, "kind": kind, "unit": unit, "required": required}
    default: Any = dataclasses.MISSING if required else "" if kind is str else None
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One published rate over all devices. Where a column is not required, None and empty text mean: not stated."""

    machine: str = _column("CPUs or GPUs, their number, and where they are", required=True)
    software: str = _column("framework and benchmark, with versions")
    command: str = _column("the command that measured it")
    model: str = _column("name as in `--model`, or a published one such as ResNet-50", required=True)
    devices: int = _column("devices of all workers", int, "devices", required=True)
    batch_per_device: int | None = _column("images per device and step", int, "images")
    images_per_sec: float = _column("rate over all devices", float, "images/s", required=True)
    images_per_sec_low: float | None = _column("lower bound of its 95 % interval", float, "images/s")
    images_per_sec_high: float | None = _column("upper bound of its 95 % interval", float, "images/s")
    repeats: int | None = _column("processes that were run, of which the interval is", int, "processes")
    variable_update: str = _column("variable manager with its modifiers")
    precision: str = _column("fp32, tf32, bf16 or fp16")
    data: str = _column("synthetic, the name of a data set, or real for any data set")
    forward_only: bool | None = _column("true: inference; false: training", bool)
    xla: bool | None = _column("whether XLA compiles the model", bool)
    date: str = _column("when it was measured, as YYYY-MM-DD")
    source: str = _column("who published it, and where")
    gpu: str = _column("name of the GPUs as their driver has it, without NVIDIA")
    run_ids: str = _column("of the records of this suite that it is of, separated by blanks")

    @property
    def measured(self) -> Interval:
        """Returns images per second over all devices."""
        return Interval.of(self.images_per_sec, self.images_per_sec_low, self.images_per_sec_high)

    @property
    def where(self) -> str:
        """Returns the machine, and who measured it."""
        return f"{self.machine} ({self.source})" if self.source else self.machine

    @property
    def setting(self) -> str:
        """Returns variable manager, software, precision, data and batch, as far as they are stated."""
        batch = f"batch {self.batch_per_device or 'unknown'}"
        words = (self.variable_update, self.software, self.precision, "XLA" if self.xla else "", self.data, batch)
        return ", ".join(word for word in words if word)


COLUMNS = tuple(PublicColumn(field.name, **field.metadata) for field in dataclasses.fields(Figure))
# Also as spreadsheets in German and French save them.
_BOOLS = dict.fromkeys(("true", "wahr", "vrai", "1"), True) | dict.fromkeys(("false", "falsch", "faux", "0"), False)
# What may be decimals or thousands. Excel separates by semicolons where numbers have a decimal comma.
_GROUPS_OF_THREE = re.compile(r"-?\d{1,3}(?:[.,]\d{3})+")
_ONE_MARK = re.compile(r"\d+([.,])\d+(?:[eE][+-]?\d+)?")


def parsed(text: str, name: str) -> tuple[Figure, ...]:
    """Reads the text of a public table; other columns than its own are ignored. `name` is the file in messages.

    Raises:
        TableError: a required column is missing, or a cell is not what its column holds.
    """
    head, _, rest = text.partition("\n")
    if head.strip('"').startswith("sep="):  # Excel's own first line
        text = rest
    # A spreadsheet saves semicolons or tabs where numbers have a comma.
    separator = max((",", ";", "\t"), key=text.partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=separator, skipinitialspace=True)
    try:
        if reader.fieldnames:
            reader.fieldnames = [column.strip().lower() for column in reader.fieldnames]
        if twice := [c.name for c in COLUMNS if (reader.fieldnames or []).count(c.name) > 1]:
            raise TableError(f"{name}:1: there are several columns {', '.join(twice)}. Keep one of each name.")
        if missing := [c.name for c in COLUMNS if c.required and c.name not in (reader.fieldnames or ())]:
            if "run_id" in (reader.fieldnames or ()):
                raise TableError(f"{name} is results.csv of a report: name results.jsonl, of which it was made.")
            raise TableError(
                f"{name}:1: there is no column {', '.join(missing)}. The first line must name the columns of a public "
                f"table: {', '.join(column.name for column in COLUMNS)}."
            )
        # Spreadsheets save empty rows, too.
        lines = [(line, f"{name}:{reader.line_num}") for line in reader if any(line.values())]
    except csv.Error as error:
        raise TableError(f"{name}:{reader.line_num}: this is no CSV: {error}. Save it as comma-separated.") from error
    unclear = "" if separator == "," else _unclear(separator, (line for line, _ in lines))
    return tuple(_figure(line, place, unclear) for line, place in lines)


def _unclear(separator: str, lines: Iterable[dict[Any, Any]]) -> str:
    """Returns the marks that may be of thousands: the mark of a number without a group of three is that of decimals."""
    numbers = [one_line(line.get(c.name) or "") for line in lines for c in COLUMNS if c.kind is float]
    clear = (_ONE_MARK.fullmatch(number) for number in numbers if not _GROUPS_OF_THREE.fullmatch(number))
    decimal_marks = {match[1] for match in clear if match}
    if decimal_marks == {"."}:
        return ","
    return "." if separator == ";" or decimal_marks == {","} else ".,"


def _figure(line: dict[Any, Any], place: str, unclear: str) -> Figure:
    """Returns the figure of a line; `place` is its file and line.

    Numbers may have a decimal comma, unless commas separate the cells: then `unclear` is empty, see `_unclear`.
    """
    if None in line or None in line.values():
        more = "more" if None in line else "fewer"
        raise TableError(f"{place}: it has {more} cells than the first line. Put text with a comma in double quotes.")
    figure = Figure(**{column.name: _value(column, line.get(column.name, ""), place, unclear) for column in COLUMNS})
    low, high = figure.images_per_sec_low, figure.images_per_sec_high
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        raise TableError(
            f"{place}: images_per_sec_low is {low} and images_per_sec_high is {high}. Give the lower and the higher "
            "bound, or leave both empty."
        )
    return figure


def _value(column: PublicColumn, cell: str, place: str, unclear: str) -> Any:
    text = one_line(cell)
    if column.kind is int:
        text = text.removesuffix(".0")  # as pandas writes a column of which a cell is empty
    if unclear and column.kind is float:
        if _GROUPS_OF_THREE.fullmatch(text) and set(".,").intersection(text) <= set(unclear):
            raise TableError(
                f"{place}: column {column.name} is '{text}', which may have a mark of thousands or of decimals: write "
                "it without a mark of thousands, and with another number of decimals than three."
            )
        text = text.replace(",", ".")
    if not text:
        if column.required:
            raise TableError(f"{place}: column {column.name} is empty. It must have a value: {column.meaning}.")
        return "" if column.kind is str else None
    parse: Callable[[str], Any] = _BOOLS.__getitem__ if column.kind is bool else column.kind
    try:
        value = parse(text.lower() if column.kind is bool else text)
        if column.kind in (int, float) and not 0 < value < math.inf:
            raise ValueError
    except (KeyError, ValueError, OverflowError) as error:
        wanted = {int: "a whole number above 0", float: "a number above 0, as 1234.5", bool: "true, false or nothing"}
        raise TableError(
            f"{place}: column {column.name} is '{one_line(cell)[:80]}'. Write {wanted[column.kind]} ({column.meaning})."
        ) from error
    return value


def of_rows(rows: Iterable[Row]) -> tuple[Figure, ...]:
    """Returns a figure for each row that has a rate."""
    return tuple(_of_row(row) for row in rows if row.images_per_sec is not None)


def _of_row(row: Row) -> Figure:
    first, config, (low, high) = row.valid[0], row.config, row.measured.bounds
    texts: dict[str, Any] = {
        "machine": first.environment.get("machine") or hardware_in_words(first),
        "model": config.get("model"),
        "software": software_in_words(row.valid),
        "command": first.command_line,
        "variable_update": manager_of(config),
        "precision": config.get("precision") or "",
        "data": config.get("data_name") or "",
        "date": max(record.minute for record in row.valid)[:10],
        "gpu": row.gpu,
        "run_ids": " ".join(record.identity.run_id for record in row.valid),
    }
    return Figure(
        devices=row.devices,
        batch_per_device=row.count("batch_per_device", 0) or None,
        images_per_sec=row.rate,
        images_per_sec_low=low,
        images_per_sec_high=high,
        repeats=len(row.valid),
        forward_only=config["forward_only"] if isinstance(config.get("forward_only"), bool) else None,
        xla=None if config.get("xla") is None else config["xla"] == "jit",
        **{name: one_line(str(text)) for name, text in texts.items()},
    )


def written(figures: Iterable[Figure]) -> str:
    """Returns figures as a public table; rates have six digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({c.name: _cell(getattr(figure, c.name)) for c in COLUMNS} for figure in figures)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else csv_cell(str(value))
