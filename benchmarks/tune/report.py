"""The answer of `recommend`: as data for JSON and the cache, and as text. No TensorFlow."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.console import in_words
from benchmarks.tune.halving import NOT_RUN, Row
from results import text
from results.text import counted

_TIE_RULE = (
    "The default of a stage is replaced only by what is clearly faster: by intervals that do not overlap, or by a "
    "paired test of runs that were repeated in turn. A longer --time_limit_seconds may separate more."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A stage: its title, the number of devices, and its candidates, best first."""

    title: str
    devices: int
    rows: list[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a search.

    Attributes:
        arguments: the flags of the best run; empty if no run succeeded.
        best: the row of the best candidate, measured on one device if `untested_on`; None if there is none.
        tables: one per stage.
        notes: sentences about the choice.
        seconds: duration of the search.
        is_complete: whether it was not interrupted.
        results: path of the records of all runs.
        untested_on: the number of devices if there was no time to run the best settings on all of them; else 0.
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
        """Returns the answer as a JSON object, with the command of the best run."""
        return {"command": command(self.arguments), **dataclasses.asdict(self)}


def command(arguments: Sequence[str]) -> str:
    """Returns the command line of a run; empty if there are no arguments."""
    return f"python run_bench.py {shlex.join(arguments)}" if arguments else ""


def lines(answer: Answer) -> list[str]:
    """Returns the tables, the best command, and how certain it is."""
    return [
        *(line for table in answer.tables for line in [*_table_lines(table), ""]),
        *_conclusion(answer),
        *answer.notes,
        f"Records of all runs: {answer.results}",
    ]


def _table_lines(table: Table) -> Iterator[str]:
    title = f"{table.title[0].upper()}{table.title[1:]}, on {counted(table.devices, 'device')}"
    if table.rows and all(row.reason.startswith(NOT_RUN) for row in table.rows):
        yield f"{title}: there was no time for any of {len(table.rows)} candidates."
        return
    yield f"{title}:"
    cells = []
    for number, row in enumerate(table.rows, start=1):
        rank = ">" if row.is_taken else "-" if row.reason else "~" if row.is_close else str(number)
        rate = "" if row.images_per_sec is None else f"{row.images_per_sec:.2f}"
        interval = row.measured.range() if rate else ""
        steps = f"{row.steps} in {counted(row.runs, 'run')}" if row.runs else ""
        cells.append([rank, rate, interval, steps, " ".join(row.arguments) or "as given", row.reason])
    columns = ("", "images/s", "95 % interval", "steps", "settings", "")
    yield from text.Table(columns, cells, ("images/s",)).text(rule=False)
    if any(row.is_taken for row in table.rows):
        yield "> taken" + ("; ~ within its noise" if any(row.is_close for row in table.rows) else "")


def _conclusion(answer: Answer) -> Iterator[str]:
    best = answer.best
    if not answer.is_complete:
        yield "Interrupted; the best so far:" if best else "Interrupted before anything was measured."
    if best is None:
        yield "" if not answer.is_complete else "Nothing could be measured: the tables give the reasons."
        return
    interval = f" ({span})" if (span := best.measured.range()) else ""
    where = " on one device" if answer.untested_on else ""
    yield f"Best: {best.images_per_sec:.2f} images/s{where}{interval}, found in {in_words(answer.seconds)}:"
    yield from ("", command(answer.arguments), "")
    if answer.untested_on:
        yield f"It was not tested on all {answer.untested_on} devices: there was no time."
    if not best.is_repeated:
        yield "It was not repeated after it was selected, so its rate and interval are biased upwards by the selection."
    if best.reason:
        yield f"A later run of it failed: {best.reason}"
    late = sum(row.reason.startswith(NOT_RUN) for table in answer.tables for row in table.rows)
    if late and answer.is_complete:
        yield f"There was no time for {late} more candidates: a longer --time_limit_seconds tries them."
    for table in answer.tables:
        close = [" ".join(row.arguments) or "as given" for row in table.rows if row.is_close]
        taken = [" ".join(row.arguments) or "as given" for row in table.rows if row.is_taken]
        if close and taken:
            yield f"In {table.title}, {taken[0]} cannot be told apart from: {text.first_few(close)}."
    if any(row.is_close for table in answer.tables for row in table.rows):
        yield _TIE_RULE
