"""The report as one HTML page that needs no network and no other file."""

from __future__ import annotations

import functools
import importlib.resources
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2
import markupsafe

from results.intervals import Interval
from results.masking import without_secrets
from results.record import Record, Status, recorded_command
from results.report.anomalies import title as label
from results.report.figures import COLOURS, Plot
from results.report.glossary import GLOSSARY
from results.report.headline import Column, filled_columns
from results.report.side_tables import SideTable
from results.summary import Row
from results.version import SUITE_VERSION

# More rows are drawn on demand: a page with 10,000 rows would take seconds to open.
_STATIC_ROWS = 150
_MOST_NOTES = 30
_MOST_ENVIRONMENTS = 6


def html(
    records: Sequence[Record],
    rows: Sequence[Row],
    *,
    title: str,
    summary: str,
    notes: Sequence[str],
    drawings: Sequence[tuple[Plot, str]],
    tables: Sequence[SideTable],
    sources: Sequence[str],
) -> str:
    """Returns the page of records and their rows.

    `drawings` are plots as SVG, `sources` are of the records.
    """
    templates = importlib.resources.files("results.report").joinpath("templates")
    columns = filled_columns(rows)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    script = templates.joinpath("report.js").read_text(encoding="utf-8").replace("{{ colours }}", json.dumps(COLOURS))
    return environment.from_string(templates.joinpath("report.html").read_text(encoding="utf-8")).render(
        title=title,
        summary=summary,
        columns=columns,
        rows=[
            {
                "cells": [c.cell(row) for c in columns],
                "failed": _failed(row),
                "command": " ".join(command(row)),
                "label": label(row),
            }
            for row in rows[:_STATIC_ROWS]
        ],
        total=len(rows),
        statuses=sorted({str(record.status) for record in records}),
        notes=notes[:_MOST_NOTES],
        more_notes=max(0, len(notes) - _MOST_NOTES),
        figures=[(plot, markupsafe.Markup(svg)) for plot, svg in drawings],
        tables=tables,
        environments=list(_environments(records)),
        glossary=GLOSSARY,
        version=SUITE_VERSION,
        sources=", ".join(sources),
        data=markupsafe.Markup(_as_script_data(columns, rows)),
        vega=markupsafe.Markup(_chart_library()),
        script=markupsafe.Markup(script),
    )


@functools.cache
@functools.cache
def _chart_library() -> str:
    """Returns the library that draws the page's chart, as a script that needs no network.

    To make it takes 2 s. It is not kept in a file, which others might change.
    """
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def command(row: Row) -> list[str]:
    """Returns the words of the command that repeats a row's first record."""
    return ["run_bench.py", *map(shlex.quote, recorded_command(row.records[0].identity.command))]


def _failed(row: Row) -> bool:
    return any(record.status not in (Status.OK, Status.SKIPPED) for record in row.records)


def _as_script_data(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Returns all rows as JSON for a script element; commands are lists of word numbers, since they are similar."""
    words: dict[str, int] = {}
    packed = [
        [
            [column.cell(row) for column in columns],
            int(_failed(row)),
            [words.setdefault(word, len(words)) for word in command(row)],
            sorted({str(record.status) for record in row.records}),
            _of_chart(row.images_per_sec),
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


def _of_chart(rate: Interval | None) -> list[float | None]:
    """Returns a rate and its bounds with six digits, which is all that the chart shows; the table has two decimals."""
    known = (None, None, None) if rate is None else (rate.value, *rate.bounds)
    return [None if value is None else float(f"{value:.6g}") for value in known]


def _environments(records: Sequence[Record]) -> Iterator[Mapping[str, Any]]:
    """Yields the facts of each machine with its software, once."""
    seen: dict[tuple[str, str], Record] = {}
    for record in records:
        seen.setdefault((record.identity.hardware_key, record.identity.software_key), record)
    for (hardware, software), record in list(seen.items())[:_MOST_ENVIRONMENTS]:
        suite = f"{record.identity.suite_version}, commit {record.identity.suite_commit}"
        facts = {name: _fact(value) for name, value in record.environment.items() if value not in (None, {}, [])}
        yield {"title": f"Hardware {hardware}, software {software}", "facts": [("suite", suite), *facts.items()]}


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(without_secrets([f"{name}={_fact(item)}" for name, item in value.items()]))
    return ", ".join(map(_fact, value)) if isinstance(value, list) else str(value)
