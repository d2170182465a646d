"""Writes a report: a page, a Markdown file, a CSV, and each plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from results.record import Record, Status
from results.report import headline, page, published
from results.report.anomalies import anomalies, title, warnings_of
from results.report.breakdown_plots import against, real_over_synthetic, reductions, sent, time_goes
from results.report.figures import Plot, drawn
from results.report.scaling_plots import batches, efficiency, managers, scaling, steps
from results.report.side_tables import side_tables
from results.store import as_csv, replace
from results.summary import Row, summarize
from results.text import counted, markdown

_TITLE = "CNN training benchmark"
PLOTS = (
    Plot("scaling", "Scaling", "Dotted: one device times the number of devices. Bars: 95 % intervals.", scaling),
    Plot("efficiency", "Efficiency", "Speed-up over one device, divided by the number of devices.", efficiency),
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
    against_table: str | None,
    one_by_one: Callable[[Sequence[Plot]], Iterable[Plot]] = iter,
) -> tuple[list[Row], list[str]]:
    """Writes `report.html`, `report.md`, `results.csv` and a folder of plots.

    `sources` says where the records come from; the directory `output` is created if it is missing; `against_table` is a
    key of `results.report.published.SOURCES`. `one_by_one` passes the plots on, to show progress.

    Returns:
        The rows of the report; anomalies and warnings.

    Raises:
        OSError: the directory cannot be written.
    """
    rows = summarize(records)
    unmatched = published.why_none(rows, against_table) if against_table else None
    notes = [*([unmatched] if unmatched else []), *anomalies(rows), *warnings_of(records)]
    (output / "plots").mkdir(parents=True, exist_ok=True)
    plots = [*PLOTS, reductions(records), *([against(against_table)] if against_table else [])]
    drawings = []
    for plot, svg in drawn(one_by_one(plots), rows, output / "plots"):
        if svg is None:
            notes.append(f"The plot '{plot.title}' is missing: a record holds a number that cannot be drawn.")
        else:
            drawings.append((plot, svg))
    tables = side_tables(records, rows, against_table)
    sentence = summary(records, rows)
    html = page.html(
        records, rows, title=_TITLE, summary=sentence, notes=notes, drawings=drawings, tables=tables, sources=sources
    )
    lines = [f"# {_TITLE}", "", sentence, "", "## Results", "", *headline.markdown_rows(rows), ""]
    if notes:
        lines += ["## Anomalies and warnings", "", *(f"- {markdown(note)}" for note in notes), ""]
    for plot, _ in drawings:
        lines += [f"## {plot.title}", "", f"![{plot.title}](plots/{plot.name}.svg)", "", plot.reading, ""]
    for table in tables:
        lines += table.markdown()
    replace(output / "report.html", html)
    replace(output / "report.md", "\n".join(lines) + "\n")
    replace(output / "results.csv", as_csv(records))
    return rows, notes


def summary(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Returns the numbers of records and the fastest row, in words."""
    valid = sum(record.status is Status.OK for record in records)
    machines = len({record.identity.hardware_key for record in records})
    text = (
        f"{len(records)} records of {len(rows)} configurations on {counted(machines, 'machine')}; {valid} valid, "
        f"{len(records) - valid} not."
    )
    best = max((row for row in rows if row.images_per_sec is not None), key=lambda row: row.rate, default=None)
    return text if best is None else f"{text} Fastest: {title(best)} with {best.rate:.2f} images/s."
