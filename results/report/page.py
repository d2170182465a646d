"""The report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from results.record import Record, Status
from results.report.glossary import GLOSSARY
from results.report.headline import COLUMNS
from results.report.side_tables import SideTable
from results.summary import Row
from results.version import SUITE_VERSION

_TITLE = "CNN training benchmark"
# More rows than that are drawn when they are asked for; a page with all of 10,000 would take seconds to open.
_STATIC_ROWS = 150
_MOST_NOTES = 30
_MOST_ENVIRONMENTS = 6


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A plot that has been drawn."""

    name: str
    title: str
    reading: str
    svg: str


@dataclasses.dataclass(frozen=True)
class Page:
    """What is on the page; see `results.report.write`."""

    records: Sequence[Record]
    rows: Sequence[Row]
    notes: Sequence[str]
    drawings: Sequence[Drawing]
    sources: Sequence[str]
    tables: Sequence[SideTable]
    summary: str

    def html(self) -> str:
        """Returns the page."""
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        template = (
            importlib.resources.files("results.report").joinpath("templates", "report.html").read_text(encoding="utf-8")
        )
        drawings = [{**dataclasses.asdict(d), "svg": markupsafe.Markup(d.svg)} for d in self.drawings]
        columns = [column for column in COLUMNS if any(column.text(row) for row in self.rows)]
        return environment.from_string(template).render(
            title=_TITLE,
            summary=self.summary,
            columns=columns,
            rows=[
                {"cells": [c.text(row) for c in columns], "failed": _failed(row), "command": " ".join(command(row))}
                for row in self.rows[:_STATIC_ROWS]
            ],
            total=len(self.rows),
            statuses=sorted({str(record.status) for record in self.records}),
            notes=self.notes[:_MOST_NOTES],
            more_notes=max(0, len(self.notes) - _MOST_NOTES),
            figures=drawings,
            tables=self.tables,
            environments=list(_environments(self.records)),
            glossary=GLOSSARY,
            version=SUITE_VERSION,
            sources=", ".join(self.sources),
            data=markupsafe.Markup(_as_script_data(columns, self.rows)),
        )


def command(row: Row) -> list[str]:
    """Returns the words that run a row's first record again."""
    return ["run_bench.py", *map(shlex.quote, row.records[0].identity.command)]


def _failed(row: Row) -> bool:
    return any(record.status not in (Status.OK, Status.SKIPPED) for record in row.records)


def _as_script_data(columns: Sequence[Any], rows: Sequence[Row]) -> str:
    """Returns all rows as JSON that may stand in a script element; commands as numbers of words, for they are alike."""
    words: dict[str, int] = {}
    packed = [
        [
            [column.text(row) for column in columns],
            int(_failed(row)),
            [words.setdefault(word, len(words)) for word in command(row)],
            sorted({str(record.status) for record in row.records}),
        ]
        for row in rows
    ]
    data = {
        "names": [column.name for column in columns],
        "numbers": [column.is_number for column in columns],
        "words": list(words),
        "rows": packed,
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _environments(records: Sequence[Record]) -> Iterator[Mapping[str, Any]]:
    """Yields each machine with its software, once."""
    seen: dict[tuple[str, str], Record] = {}
    for record in records:
        seen.setdefault((record.identity.hardware_key, record.identity.software_key), record)
    for (hardware, software), record in list(seen.items())[:_MOST_ENVIRONMENTS]:
        facts = {name: _fact(value) for name, value in record.environment.items() if value not in (None, {}, [])}
        yield {
            "title": f"Hardware {hardware}, software {software}",
            "facts": [
                ("suite", f"{record.identity.suite_version}, commit {record.identity.suite_commit}"),
                *facts.items(),
            ],
        }


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_fact(item)}" for name, item in value.items())
    return ", ".join(map(_fact, value)) if isinstance(value, list) else str(value)
