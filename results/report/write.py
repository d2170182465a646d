"""Writes a report: a page, a Markdown file, a CSV, and each plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from results.record import Record
from results.report import markdown_page, page, published
from results.report.anomalies import anomalies, warnings_of
from results.report.breakdown_plots import against, real_over_synthetic, reductions, sent, time_goes
from results.report.figures import Plot, drawn
from results.report.scaling_plots import batches, efficiency, managers, predicted, scaling, steps
from results.report.side_tables import side_tables
from results.store import as_csv, replace
from results.summary import Row, summarize

PLOTS = (
    Plot("scaling", "Scaling", "Dotted: one device times the number of devices. Bars: 95 % intervals.", scaling),
    Plot("efficiency", "Efficiency", "Speed-up over one device, divided by the number of devices.", efficiency),
    Plot("predicted", "How far it scales", "Dashed: predicted from three points or more. Band: 95 %.", predicted),
    Plot("managers", "Variable managers", "With the largest number of devices; bars are 95 % intervals.", managers),
    Plot("batches", "Batch size", "Where a line is flat, a larger batch gains nothing.", batches),
    Plot("time", "Where time goes", "Computing: a step under `independent`. Input: what real data add.", time_goes),
    Plot("sent", "Bytes sent per step", "By formula, all devices together.", sent),
    Plot("real_over_synthetic", "Real over synthetic", "1 means that input costs nothing.", real_over_synthetic),
    Plot("steps", "Step times", "The latest runs. Warm-up is shaded; the first step may exceed the plot.", steps),
)


def write(
    records: Sequence[Record],
    sources: Sequence[str],
    output: Path,
    *,
    against_tables: Sequence[published.Table] = (),
    one_by_one: Callable[[Sequence[Plot]], Iterable[Plot]] = iter,
) -> tuple[list[Row], list[str]]:
    """Writes `report.html`, `report.md`, `results.csv` and a folder of plots.

    `sources` says where the records come from; the directory `output` is created if it is missing;
    `against_tables` are compared with. `one_by_one` passes the plots on, to show progress.

    Returns:
        The rows of the report; anomalies and warnings.

    Raises:
        OSError: the directory cannot be written.
    """
    rows = summarize(records)
    unmatched = [why for table in against_tables if (why := published.why_none(rows, table))]
    problems = [problem for table in against_tables for problem in table.problems]
    notes = [*unmatched, *problems, *anomalies(rows), *warnings_of(records)]
    (output / "plots").mkdir(parents=True, exist_ok=True)
    plots = [*PLOTS, reductions(records), *map(against, against_tables)]
    drawings = list(drawn(one_by_one(plots), rows, output / "plots"))
    tables = side_tables(records, rows, against_tables)
    sentence = markdown_page.summary(records, rows)
    html = page.html(
        records,
        rows,
        title=markdown_page.TITLE,
        summary=sentence,
        notes=notes,
        drawings=drawings,
        tables=tables,
        sources=sources,
    )
    pictures = [(plot.title, f"plots/{plot.name}.svg", plot.reading) for plot, _ in drawings]
    text = markdown_page.text(rows, summary=sentence, notes=notes, pictures=pictures, tables=tables)
    replace(output / "report.html", html)
    replace(output / "report.md", text)
    replace(output / "results.csv", as_csv(records))
    return rows, notes
