"""Turns records into files to look at: a page, a Markdown file, a CSV, and each plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results.record import Record, Status
from results.report import headline
from results.report.anomalies import anomalies, title, warnings_of
from results.report.breakdown_plots import against, reductions
from results.report.figures import as_svg, drawn, save
from results.report.page import Drawing, Page
from results.report.plots import PLOTS
from results.report.side_tables import SideTable, side_tables
from results.store import as_csv, replace
from results.summary import Row, summarize


def write(records: Sequence[Record], sources: Sequence[str], output: Path, *, against_table: str | None) -> list[str]:
    """Writes `report.html`, `report.md`, `results.csv` and a folder of plots.

    Args:
        records: what to report.
        sources: where they come from, in words.
        output: a directory, which is made if needed.
        against_table: a key of `results.report.published.SOURCES`, or None.

    Returns:
        What looks odd, in sentences.

    Raises:
        OSError: the directory cannot be written.
    """
    rows = summarize(records)
    notes = [*anomalies(rows), *warnings_of(records)]
    plots = output / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    drawings = []
    more = [reductions(records), *([against(against_table)] if against_table else [])]
    for plot, figure in drawn([*PLOTS, *more], rows):
        save(figure, plots / plot.name)
        drawings.append(Drawing(plot.name, plot.title, plot.reading, as_svg(figure)))
    tables = side_tables(records, rows, against_table)
    page = Page(
        records=records,
        rows=rows,
        notes=notes,
        drawings=drawings,
        sources=sources,
        tables=tables,
        summary=summary(records, rows),
    )
    replace(output / "report.html", page.html())
    replace(output / "report.md", "\n".join(_markdown(records, rows, notes, drawings, tables)) + "\n")
    replace(output / "results.csv", as_csv(records))
    return notes


def summary(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Returns in a sentence what was run and what came of it."""
    valid = sum(record.status is Status.OK for record in records)
    machines = len({record.identity.hardware_key for record in records})
    text = (
        f"{len(records)} records of {len(rows)} configurations on {machines} machine{'s' * (machines != 1)}; "
        f"{valid} valid, {len(records) - valid} not."
    )
    best = max((row for row in rows if row.images_per_sec is not None), key=lambda row: row.rate, default=None)
    return text if best is None else f"{text} Fastest: {title(best)} with {best.rate:.2f} images/s."


def _markdown(
    records: Sequence[Record],
    rows: Sequence[Row],
    notes: Sequence[str],
    drawings: Sequence[Drawing],
    tables: Sequence[SideTable],
) -> list[str]:
    lines = ["# CNN training benchmark", "", summary(records, rows), "", "## Results", "", *headline.markdown(rows), ""]
    if notes:
        lines += ["## Worth a look", "", *(f"- {headline.markdown_text(note)}" for note in notes), ""]
    for drawing in drawings:
        lines += [f"## {drawing.title}", "", f"![{drawing.title}](plots/{drawing.name}.svg)", "", drawing.reading, ""]
    for table in tables:
        lines += table.markdown()
    return lines
