"""Plots of the rate against devices, batches and managers, and of single steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.report import anomalies, figures, headline, scalability
from results.report.ranking import ranking_groups
from results.report.scalability import Curve
from results.report.scaling_law import Fit
from results.summary import Row, grouped, manager_of, processes_of

# Step times of runs that differ by less are drawn to one scale.
_SAME_SCALE = 5


def scaling(rows: Sequence[Row]) -> Figure | None:
    """Curves of at least two numbers of devices or workers; the law is fitted from three on."""
    return of_curves(list(scalability.curves(figures.valid_training(rows), least=2)), fewest_fitted=3)


def of_curves(curves: Sequence[Curve], fewest_fitted: int = 2) -> Figure | None:
    """Rate and efficiency against devices or workers: a pair of panels for what has the same title and noun.

    Where at least `fewest_fitted` numbers can be fitted, the curve is the law.
    """
    shown = list(grouped(curves, lambda curve: (curve.panel, curve.noun)).items())[: figures.MOST_PANELS]
    if not shown:
        return None
    figure, axes = figures.panels_of(2 * len(shown))
    for ((title, noun), group), rates, shares in zip(shown, axes[::2], axes[1::2], strict=True):
        lines = group[: figures.MOST_LINES]
        fits = [curve.fit if len(curve.fitted) >= fewest_fitted else None for curve in lines]
        predicted = [number for curve, fit in zip(lines, fits, strict=True) if fit for number in curve.predicted]
        numbers = sorted({*predicted, *(number for curve in lines for number in curve.rows)})
        for place, (curve, fit) in enumerate(zip(lines, fits, strict=True)):
            _curve(rates, shares, curve, fit, place)
        steepest = max((c.rows[1].rate if 1 in c.rows else c.fit.rate(1).value if c.fit else 0.0) for c in group)
        for axis, last in ((rates, [steepest, steepest * numbers[-1]]), (shares, [100, 100])) if steepest else ():
            axis.plot([1, numbers[-1]], last, linestyle=":", color="#7F7F7F", label="ideal")
        figures.log_scale(rates, "x", "y")
        figures.log_scale(shares, "x")
        shares.set_ylim(bottom=0)
        for axis, what in ((rates, "images/s"), (shares, "efficiency %")):
            axis.set_xticks(numbers, [str(number) for number in numbers])
            axis.set_xticks([], minor=True)
            axis.set(title=figures.wrapped(f"{what}: {title}"), xlabel=f"{noun}s", ylabel=what)
        # Efficiencies leave room below them.
        shares.legend(*rates.get_legend_handles_labels(), loc="lower left")
    return figure


def _curve(rates: Axes, shares: Axes, curve: Curve, fit: Fit | None, place: int) -> None:
    """Draws one curve in both panels: bars and band are 95 % intervals, and what is predicted is dashed."""
    colour, linestyle = figures.look(place)["color"], "none" if fit else "-"
    name = f"{curve.label}, sharing hardware" if curve.shared else curve.label
    measured = [(number, curve.rate(number)) for number in curve.rows]
    figures.draw_line(rates, place, measured, linestyle=linestyle, label=figures.wrapped(name))
    gains = [(number, gain.scaled(100 / number)) for number in curve.rows if (gain := curve.speed_up(number))]
    if gains:
        figures.draw_line(shares, place, gains, linestyle=linestyle)
    if fit is None:
        return
    within, beyond = (
        np.geomspace(first, last, 50) for first, last in ((curve.fitted[0], fit.most), (fit.most, curve.predicted[-1]))
    )
    for axis, of, factor in ((rates, fit.rate, 1), (shares, fit.efficiency, 100)):
        for numbers, linestyle in ((within, "-"), (beyond, "--")):
            line = [of(number).scaled(factor) for number in numbers]
            axis.plot(numbers, [rate.value for rate in line], linestyle=linestyle, color=colour, linewidth=1.4)
            low, high = [rate.low for rate in line], [rate.high for rate in line]
            axis.fill_between(numbers, low, high, color=colour, alpha=0.15, linewidth=0)


def _with_processes(row: Row) -> str:
    return ", ".join(filter(None, (manager_of(row.config), processes_of(row.config))))


def managers(rows: Sequence[Row]) -> Figure | None:
    """Bars: images per second of each variable manager, a panel per model, at the largest number of devices."""
    panels = {}
    for name, group in figures.grouped(figures.valid_training(rows), figures.model_and_batch).items():
        by_devices = grouped(group, lambda row: row.devices)
        most = max(by_devices)
        largest = sorted(by_devices[most], key=lambda row: row.rate)
        if len(largest) > 1:
            panels[f"{name}, {most} devices"] = largest[-figures.MOST_BARS :]
    if not panels:
        return None
    figure, axes = figures.panels_of(len(panels))
    other = {row.records[0].identity.run_id for group in ranking_groups(rows) if group.differs for row in group.rows}
    for axis, (name, group) in zip(axes, panels.items(), strict=True):
        colours = [figures.COLOURS[1 if row.records[0].identity.run_id in other else 0] for row in group]
        labels = [figures.wrapped_beside(_with_processes(row)) for row in group]
        figures.draw_bars(axis, labels, [row.measured for row in group], colours=colours)
        axis.set(title=figures.wrapped(name), xlabel="images/s")
    return figure


def batches(rows: Sequence[Row]) -> Figure | None:
    """Rate against the batch per device: a line per setting."""

    def label(row: Row) -> str:
        return figures.wrapped(anomalies.title(row, with_batch=False))

    training = [row for row in figures.valid_training(rows) if isinstance(row.config.get("batch_per_device"), int)]
    lines = figures.grouped(training, label, figures.MOST_LINES, lambda row: row.config.get("batch_per_device"))
    if not lines:
        return None
    figure, (axis,) = figures.panels_of(1, 3.6 + 0.18 * "\n".join(lines).count("\n"))
    for number, (name, line) in enumerate(lines.items()):
        figures.draw_line(axis, number, [(row.config["batch_per_device"], row.measured) for row in line], label=name)
    figures.log_scale(axis, "x")
    axis.set(xlabel="batch per device", ylabel="images/s")
    shown = [(row.config["batch_per_device"], row.measured) for line in lines.values() for row in line]
    axis.set_xticks(*zip(*((batch, str(batch)) for batch in sorted({batch for batch, _ in shown})), strict=True))
    axis.set_xticks([], minor=True)
    figures.end_axis(axis, "y", shown)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


def steps(rows: Sequence[Row]) -> Figure | None:
    """Step times of the latest runs, with the warm-up shaded, and a histogram of the measured steps."""
    runs = [(row, record) for row in rows for record in row.valid if record.measurement.step_seconds]
    runs = sorted(runs, key=lambda run: run[1].ended)[-figures.MOST_TRACES :]
    if not runs:
        return None
    labels = dict(zip(map(id, rows), headline.labels(rows), strict=True))
    figure = Figure(figsize=(9.2, 2.0 * len(runs)), layout="constrained")
    axes = figure.subplots(len(runs), 2, squeeze=False, width_ratios=(3, 1))
    slowest = [1000 * max(record.measurement.step_seconds) for _, record in runs]
    for (trace, histogram), (row, record), longest in zip(axes, runs, slowest, strict=True):
        measurement = record.measurement
        first = [] if measurement.first_step_seconds is None else [measurement.first_step_seconds]
        before = [1000 * seconds for seconds in (*first, *measurement.warmup_step_seconds)]
        measured = [1000 * seconds for seconds in measurement.step_seconds]
        trace.plot(range(1, len(before) + len(measured) + 1), before + measured, color=figures.COLOURS[0], linewidth=1)
        if before:
            trace.axvspan(0.5, len(before) + 0.5, color="#7F7F7F", alpha=0.25, linewidth=0)
        alike = max(slowest) if max(slowest) < _SAME_SCALE * min(slowest) else longest
        trace.set(ylabel="ms a step", ylim=(0, 1.2 * alike))  # the first step may be higher
        repeat = f", repeat {row.records.index(record) + 1}" if len(row.records) > 1 else ""
        trace.set_title(f"{labels[id(row)]}{repeat}", fontsize=9, loc="left")
        histogram.hist(measured, bins=min(30, max(5, len(measured) // 4)), color=figures.COLOURS[0])
        histogram.set(ylabel="steps")
    axes[-1][0].set_xlabel("step")
    axes[-1][1].set_xlabel("ms a step")
    return figure
