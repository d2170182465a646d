"""What `recommend` has found, as data that can be kept, and as text. No TensorFlow."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.sweep.estimate import in_words
from benchmarks.tune.halving import NOT_RUN

_NAMED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate of a stage.

    Attributes:
        arguments: the flags in which it differs from the others of its stage.
        images_per_sec: over all devices; None if it has no rate.
        low: 95 % interval of that; None where there are too few steps.
        high: likewise.
        steps: that the rate rests on, over `runs` runs.
        runs: likewise.
        reason: why it has no rate, or failed later.
        is_close: whether it cannot be told from the best of its stage.
        is_repeated: whether its rate is that of repeats, and not of the runs by which it was chosen among many.
    """

    arguments: list[str]
    images_per_sec: float | None = None
    low: float | None = None
    high: float | None = None
    steps: int = 0
    runs: int = 0
    reason: str = ""
    is_close: bool = False
    is_repeated: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A stage: what it was about, on how many devices, and its candidates, best first."""

    title: str
    devices: int
    rows: list[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """All that was found.

    Attributes:
        arguments: of `run`, the best; empty if nothing could be run.
        best: its row in the last table on all devices, or of one device (`untested_on`); None if there is none.
        tables: one per stage.
        notes: sentences that a reader must know.
        seconds: that the search took.
        is_complete: whether it was not interrupted.
        results: where the records of all runs are.
        untested_on: all devices, if there was no time to run the best on them; 0 if there was.
    """

    arguments: list[str]
    best: Row | None
    tables: list[Table]
    notes: list[str]
    seconds: float
    is_complete: bool
    results: str
    untested_on: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON can hold it."""
        return {"command": command(self.arguments), **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Answer:
        """Reads what `to_dict` wrote.

        Raises:
            TypeError, KeyError: it is something else.
        """
        tables = [Table(**{**table, "rows": [Row(**row) for row in table["rows"]]}) for table in fields["tables"]]
        known = {field.name: fields[field.name] for field in dataclasses.fields(cls) if field.name in fields}
        return cls(**{**known, "tables": tables, "best": Row(**fields["best"]) if fields["best"] else None})


def command(arguments: Sequence[str]) -> str:
    """Returns a run as a line that can be pasted; empty if there is none."""
    return f"python run_bench.py {shlex.join(arguments)}" if arguments else ""


def lines(answer: Answer) -> list[str]:
    """Returns the tables, best first, then the best command and how sure it is."""
    return [
        *(line for table in answer.tables for line in [*_table_lines(table), ""]),
        *_conclusion(answer),
        *answer.notes,
        f"Records of all runs: {answer.results}",
    ]


def _table_lines(table: Table) -> Iterator[str]:
    title = f"{table.title[0].upper()}{table.title[1:]}, on {table.devices} device{'s' * (table.devices > 1)}"
    if table.rows and all(row.reason.startswith(NOT_RUN) for row in table.rows):
        yield f"{title}: there was no time for any of {len(table.rows)}."
        return
    yield f"{title}:"
    cells = [["", "images/s", "95 % interval", "steps", "settings"]]
    for number, row in enumerate(table.rows, start=1):
        rate = "" if row.images_per_sec is None else f"{row.images_per_sec:.2f}"
        interval = "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}"
        place = "-" if row.reason else "~" if row.is_close else str(number)
        steps = f"{row.steps} in {row.runs} run{'s' * (row.runs > 1)}" if row.runs else ""
        cells.append([place, rate, interval, steps, " ".join(row.arguments) or "as given"])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    reasons = ["", *(row.reason for row in table.rows)]
    for line, reason in zip(cells, reasons, strict=True):
        yield "  ".join(map(str.ljust, [*line, reason], [*widths, 0])).rstrip()
    if any(row.is_close for row in table.rows):
        yield "~ cannot be told from the first"


def _conclusion(answer: Answer) -> Iterator[str]:
    best = answer.best
    if not answer.is_complete:
        yield "Interrupted; the best until then:" if best else "Interrupted before anything was measured."
    if best is None:
        yield "" if not answer.is_complete else "Nothing could be measured: the tables say why."
        return
    interval = "" if best.low is None or best.high is None else f" ({best.low:.2f} to {best.high:.2f})"
    where = " on one device" if answer.untested_on else ""
    yield f"Best: {best.images_per_sec:.2f} images/s{where}{interval}, found in {in_words(answer.seconds)}:"
    yield ""
    yield command(answer.arguments)
    yield ""
    if answer.untested_on:
        yield f"On all {answer.untested_on} devices it is untested: there was no time to run it there."
    if not best.is_repeated and not best.is_close:
        yield "It was not repeated after it was chosen: its rate is too high by selection, and so is the interval."
    if best.reason:
        yield f"It failed when it was run again: {best.reason}"
    late = sum(row.reason.startswith(NOT_RUN) for table in answer.tables for row in table.rows)
    if late and answer.is_complete:
        yield f"For {late} more there was no time: a longer --time_limit_seconds tries them."
    yield from _close_ones(answer.tables)


def _close_ones(tables: Sequence[Table]) -> Iterator[str]:
    """Yields what cannot be told from the best, by what was chosen."""
    found = {table.title: [" ".join(row.arguments) for row in table.rows if row.is_close] for table in tables}
    for title, close in found.items():
        if close:
            more = f"; and {len(close) - _NAMED} more" if len(close) > _NAMED else ""
            others = f"these {len(close)}" if len(close) > 1 else "this one"
            yield f"In {title}, the best is within the noise of {others}: {'; '.join(close[:_NAMED])}{more}."
    if any(found.values()):
        yield "A longer --time_limit_seconds may tell them apart."
