"""Writes a report: a page, a Markdown file, a CSV, and each plot as SVG and PNG."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from results.environment import hardware_in_words
from results.masking import without_secrets
from results.record import Record, Status
from results.report import headline
from results.report.contents import TITLE, Report
from results.report.figures import COLOURS, MOST_BARS, MOST_LINES, MOST_PANELS, Plot, drawn, is_broad
from results.report.plots import PLOTS, against, reductions
from results.store import as_csv, replace
from results.summary import Row, grouped
from results.text import CODE, Table
from results.version import SUITE_VERSION

_OF_ALL_PLOTS = (
    f"Plots have at most {MOST_PANELS} panels, {MOST_LINES} lines a panel, and {MOST_BARS} bars. "
    "Error bars are 95 % intervals."
)
# More rows are drawn on demand: a page with 10,000 rows would take seconds to open.
_STATIC_ROWS = 150
# A browser would break it after its dashes.
_FLAG = re.compile(r"(?<![\w-])--\w[\w=.:,/-]{1,40}(?![\w=.:,/-])")
_MOST_NOTES = 30
_MOST_ENVIRONMENTS = 6


def write(report: Report, sources: Sequence[str], output: Path) -> None:
    """Writes `report.html`, `report.md`, `results.csv` and a folder of plots; creates the directory `output`.

    `sources` are where the records come from.

    Raises:
        OSError: the directory cannot be written.
    """
    (output / "plots").mkdir(parents=True, exist_ok=True)
    replace(output / "results.csv", as_csv(report.records))  # of many records it is large, so while there is memory
    plots = [*PLOTS, reductions(report.records), *map(against, report.others)]
    drawings = list(drawn(plots, report.rows, output / "plots"))
    pictures = [(plot.title, f"plots/{plot.name}.svg", plot.reading) for plot, _ in drawings]
    replace(output / "report.html", html(report, drawings, sources))
    replace(output / "report.md", report.markdown(pictures, _OF_ALL_PLOTS))


def html(report: Report, drawings: Sequence[tuple[Plot, str]], sources: Sequence[str]) -> str:
    """Returns the page of a report; `drawings` are plots as SVG, `sources` are of the records."""
    templates = importlib.resources.files("results.report").joinpath("templates")
    rows, table = report.rows, headline.table(report.rows)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["code"] = _with_code
    script = templates.joinpath("report.js").read_text(encoding="utf-8").replace("{{ colours }}", json.dumps(COLOURS))
    return environment.from_string(templates.joinpath("report.html").read_text(encoding="utf-8")).render(
        zip=zip,
        title=TITLE,
        report=report,
        results=table,
        rows=[
            {"cells": cells, "failed": _failed(row), "command": row.records[0].command_line, "label": row.title}
            for row, cells in list(zip(rows, table.rows, strict=True))[:_STATIC_ROWS]
        ],
        total=len(rows),
        statuses=sorted({str(record.status) for record in report.records}),
        notes=report.notes[:_MOST_NOTES],
        more_notes=max(0, len(report.notes) - _MOST_NOTES),
        of_all_plots=_OF_ALL_PLOTS,
        figures=[(plot, markupsafe.Markup(svg), is_broad(svg)) for plot, svg in drawings],
        tables=report.tables,
        environments=list(_environments(report.records)),
        version=SUITE_VERSION,
        sources=", ".join(sources),
        data=markupsafe.Markup(_as_script_data(table, rows)),
        vega=markupsafe.Markup(_chart_library()),
        script=markupsafe.Markup(script),
    )


def _with_code(text: str) -> markupsafe.Markup:
    """Returns text as HTML, in which what is between backticks is code, and flags stay on one line."""
    html = CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text)))
    return markupsafe.Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', html))


@functools.cache
def _chart_library() -> str:
    """Returns the library that draws the page's chart, as a script that needs no network.

    To make it takes 2 s. It is not kept in a file, which others might change.
    """
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def _failed(row: Row) -> bool:
    return any(record.status not in (Status.OK, Status.SKIPPED) for record in row.records)


def _as_script_data(table: Table, rows: Sequence[Row]) -> str:
    """Returns all rows as JSON for a script element; commands are lists of word numbers, since they are similar."""
    words: dict[str, int] = {}
    settings = {column.name for column in headline.settings(rows)[0]}
    data = {
        "names": table.columns,
        "settings": [name in settings for name in table.columns],
        "numbers": [name in table.numbers for name in table.columns],
        "rows": [
            {
                "cells": cells,
                "failed": _failed(row),
                "command": [words.setdefault(word, len(words)) for word in row.records[0].command_line.split(" ")],
                "statuses": sorted({record.status for record in row.records}),
                "rate": row.images_per_sec and [n and float(f"{n:.6g}") for n in (row.rate, *row.measured.bounds)],
            }
            for row, cells in zip(rows, table.rows, strict=True)
        ],
    }
    data["words"] = list(words)
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _environments(records: Sequence[Record]) -> Iterator[Mapping[str, Any]]:
    """Yields the facts of each machine with its software, once."""
    machines = grouped(records, lambda record: (record.identity.hardware_key, record.identity.software_key))
    for (hardware, software), (record, *_) in list(machines.items())[:_MOST_ENVIRONMENTS]:
        suite = f"{record.identity.suite_version}, commit {record.identity.suite_commit}"
        facts = {name: _fact(value) for name, value in record.environment.items() if value not in (None, {}, [])}
        yield {
            "title": f"{hardware_in_words(record)} (hardware {hardware}, software {software})",
            "facts": [("suite", suite), *facts.items()],
        }


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(without_secrets([f"{name}={_fact(item)}" for name, item in value.items()]))
    return ", ".join(map(_fact, value)) if isinstance(value, list) else str(value)
