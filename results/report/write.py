"""Writes a report: a page, a Markdown file, a CSV, and each plot as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from results.report import page
from results.report.breakdown_plots import against, real_over_synthetic, reductions, sent, time_goes
from results.report.contents import Report
from results.report.figures import Plot, drawn
from results.report.scaling_plots import batches, efficiency, managers, predicted, scaling, steps
from results.store import as_csv, replace

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
    report: Report,
    sources: Sequence[str],
    output: Path,
    one_by_one: Callable[[Sequence[Plot]], Iterable[Plot]] = iter,
) -> None:
    """Writes `report.html`, `report.md`, `results.csv` and a folder of plots.

    Args:
        report: its contents.
        sources: where the records come from.
        output: a directory, which is created if it is missing.
        one_by_one: passes the plots on, to show progress.

    Raises:
        OSError: the directory cannot be written.
    """
    (output / "plots").mkdir(parents=True, exist_ok=True)
    plots = [*PLOTS, reductions(report.records), *map(against, report.against)]
    drawings = list(drawn(one_by_one(plots), report.rows, output / "plots"))
    pictures = [(plot.title, f"plots/{plot.name}.svg", plot.reading) for plot, _ in drawings]
    replace(output / "report.html", page.html(report, drawings, sources))
    replace(output / "report.md", report.markdown(pictures))
    replace(output / "results.csv", as_csv(report.records))
