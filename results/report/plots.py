"""The plots: rates by devices, batches and managers, what explains them, published figures, and reductions."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.environment import machine_names
from results.intervals import Interval, is_faster
from results.record import Kind, Record
from results.report import figures, headline, published, scalability
from results.report.ranking import ranking_groups
from results.report.scalability import Curve
from results.report.scaling_law import Fit
from results.summary import DATA, MANAGER, Row, Siblings, grouped, manager_of, processes_of
from results.text import counted, in_bytes, rounded

# Step times of runs, and rates, that differ by less are drawn to one linear scale.
_SAME_SCALE, _LINEAR = 5, 30
_FEW_LINES = 4
_SENT = ("read", "gradient", "weight", "activation")


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
        pairs = zip(lines, fits, strict=True)
        gains = [gain for place, pair in enumerate(pairs) for gain in _curve(rates, shares, *pair, place)]
        steepest = max((c.rows[1].rate if 1 in c.rows else c.fit.rate(1).value if c.fit else 0.0) for c in group)
        for axis, last in ((rates, [steepest, steepest * numbers[-1]]), (shares, [100, 100])) if steepest else ():
            axis.plot([1, numbers[-1]], last, linestyle=":", color="#7F7F7F", label="ideal")
        figures.log_scale(rates, "x", "y")
        figures.log_scale(shares, "x")
        figures.end_axis(shares, "y", gains, least=100)
        for axis, what in ((rates, "images/s"), (shares, "efficiency %")):
            axis.set_xticks(numbers, [str(number) for number in numbers])
            axis.set_xticks([], minor=True)
            axis.set(title=figures.wrapped(f"{what}: {title}"), xlabel=f"{noun}s", ylabel=what)
        size = 10 if len(lines) <= _FEW_LINES else 7  # a larger legend would cover them
        shares.legend(*rates.get_legend_handles_labels(), loc="best", fontsize=size)
    return figure


def _curve(rates: Axes, shares: Axes, curve: Curve, fit: Fit | None, place: int) -> list[tuple[int, Interval]]:
    """Draws one curve in both panels: bars and band are 95 % intervals, and what is predicted is dashed.

    Returns the measured efficiencies by number, in percent.
    """
    colour, linestyle = figures.look(place)["color"], "none" if fit else "-"
    name = f"{curve.label}, sharing hardware" if curve.shared else curve.label
    measured = [(number, curve.rate(number)) for number in curve.rows]
    figures.draw_line(rates, place, measured, linestyle=linestyle, label=figures.wrapped(name))
    gains = [(number, gain.scaled(100 / number)) for number in curve.rows if (gain := curve.speed_up(number))]
    if gains:
        figures.draw_line(shares, place, gains, linestyle=linestyle)
    if fit is None:
        return gains
    within, beyond = (
        np.geomspace(first, last, 50) for first, last in ((curve.fitted[0], fit.most), (fit.most, curve.predicted[-1]))
    )
    for axis, of, factor in ((rates, fit.rate, 1), (shares, fit.efficiency, 100)):
        for numbers, linestyle in ((within, "-"), (beyond, "--")):
            line = [of(number).scaled(factor) for number in numbers]
            axis.plot(numbers, [rate.value for rate in line], linestyle=linestyle, color=colour, linewidth=1.4)
            low, high = [rate.low for rate in line], [rate.high for rate in line]
            axis.fill_between(numbers, low, high, color=colour, alpha=0.15, linewidth=0)
    return gains


def managers(rows: Sequence[Row]) -> Figure | None:
    """Bars: images per second of each variable manager, a panel per model, at the largest number of devices."""
    panels = {}
    for name, group in figures.grouped(figures.valid_training(rows), Row.setting).items():
        by_devices = grouped(group, lambda row: row.devices)
        most = max(by_devices)
        largest = sorted(by_devices[most], key=lambda row: row.rate)
        if len(largest) > 1:
            panels[f"{name}, {counted(most, 'device')}"] = largest[-figures.MOST_BARS :]
    if not panels:
        return None
    figure, axes = figures.panels_of(len(panels))
    for axis, (name, group) in zip(axes, panels.items(), strict=True):
        other = [row for alike in ranking_groups(group) if alike.differs for row in alike.rows]
        colours = [figures.COLOURS[any(row is one for one in other)] for row in group]
        words = [filter(None, (manager_of(row.config), processes_of(row.config))) for row in group]
        labels = [figures.wrapped(", ".join(each), figures.BAR_LETTERS) for each in words]
        figures.draw_bars(axis, labels, [row.measured for row in group], colours)
        axis.set_title(figures.wrapped(name), x=1, ha="right")  # its labels have taken room from the panel
        axis.set(xlabel="images/s")
    return figure


def batches(rows: Sequence[Row]) -> Figure | None:
    """Rate against the batch per device: a line per setting."""

    def label(row: Row) -> str:
        return figures.wrapped(", ".join([row.what, *row.differences()]))

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
    values = [rate.value for _, rate in shown]
    if max(values) < _LINEAR * min(values):
        figures.end_axis(axis, "y", shown)
    else:
        axis.set_ylim(min(values) / 2, 2 * max(values))  # an interval of two repeats may reach to 1 % of its rate
        figures.log_scale(axis, "y")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


def where_time_goes(row: Row, siblings: Siblings) -> dict[str, float] | None:
    """Returns the parts of a training step that is clearly longer than its computing, in seconds.

    Computing is the time of the same step under `independent`, which exchanges nothing. Exchange is the rest of the
    step on synthetic data. Input is what real data add. None if a row to compare with is missing: the one with
    synthetic data, or of several devices the one under `independent`, which a reference loop does not have.
    """
    is_synthetic = row.config.get("data_name") == "synthetic"
    on_synthetic = row if is_synthetic else siblings.of(row, DATA, {"data_name": "synthetic"})
    alone = on_synthetic
    if on_synthetic and row.devices > 1:
        alone = None if row.loop else siblings.of(on_synthetic, MANAGER, {"variable_update": "independent"})
    if on_synthetic is None or alone is None or not is_faster(alone.among_processes, row.among_processes):
        return None
    whole, without_input, computing = (each.step_seconds.value for each in (row, on_synthetic, alone))
    return {
        "computing": min(computing, without_input, whole),
        "exchange": max(0.0, min(without_input, whole) - computing),
        "input": max(0.0, whole - without_input),
    }


def time_goes(rows: Sequence[Row]) -> Figure | None:
    """Stacked bars: the shares of computing, exchange and input in steps that are clearly longer than computing."""
    siblings = Siblings(rows)
    timed = [(row, parts) for row in figures.valid_training(rows) if (parts := where_time_goes(row, siblings))]
    if not timed:
        return None
    bars = [(row, parts, sum(parts.values())) for row, parts in timed[: figures.MOST_BARS]]
    shares = [(row, {part: 100 * seconds / whole for part, seconds in parts.items()}) for row, parts, whole in bars]
    figure, axis = _stacked_bars(shares)
    for height, (_, _, whole) in enumerate(bars):
        axis.text(101, height, f"{rounded(1000 * whole)} ms", va="center")
    axis.set(xlabel="% of a step", xlim=(0, 116))
    return figure


def sent(rows: Sequence[Row]) -> Figure | None:
    """Stacked bars: bytes sent in a step, by kind."""
    bars: list[tuple[Row, dict[str, float]]] = []
    for row in figures.valid_training(rows):
        by_kind = row.placement.get("sent_per_step") or {}
        if (by_kind.get("total_bytes") or 0) >= 1:
            sizes = {kind: (by_kind.get(f"{kind}_bytes") or 0) / 1e6 for kind in _SENT}
            # In a cluster, bytes are counted by link and not by kind.
            sizes["between processes"] = by_kind["total_bytes"] / 1e6 - sum(sizes.values())
            bars.append((row, sizes))
    if not bars:
        return None
    figure, axis = _stacked_bars(bars[: figures.MOST_BARS])
    axis.set(xlabel="MB per step")
    return figure


def _stacked_bars(bars: Sequence[tuple[Row, Mapping[str, float]]]) -> tuple[Figure, Axes]:
    labels = figures.distinct_labels([row for row, _ in bars])
    figure, axis = figures.panel_of_bars(labels)
    frame = pd.DataFrame([parts for _, parts in bars], index=labels)
    colours = dict(zip(frame, figures.COLOURS, strict=False))
    frame.loc[:, (frame > 1e-6).any()].plot.barh(stacked=True, width=0.8, color=colours, ax=axis, legend=False)
    figure.legend(loc="outside upper center", ncols=3)
    return figure, axis


def real_over_synthetic(rows: Sequence[Row]) -> Figure | None:
    """Bars: the rate on real data over the rate on synthetic data."""
    siblings = Siblings(rows)
    shown = [
        (row, row.among_processes.over(synthetic.among_processes))
        for row in figures.valid_training(rows)
        if row.config.get("data_name") != "synthetic"
        and (synthetic := siblings.of(row, DATA, {"data_name": "synthetic"})) is not None
    ][: figures.MOST_BARS]
    if not shown:
        return None
    labels = figures.distinct_labels([row for row, _ in shown])
    figure, axis = figures.panel_of_bars(labels)
    figures.draw_bars(axis, labels, [ratio for _, ratio in shown], least=1.0)
    axis.axvline(1.0, color=figures.INK, linewidth=0.8)
    axis.set(xlabel="real / synthetic")
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
        trace.set_title(figures.wrapped(f"{labels[id(row)]}{repeat}", 84), fontsize=9, loc="left")
        histogram.hist(measured, bins=min(30, max(5, len(measured) // 4)), color=figures.COLOURS[0])
        histogram.set(ylabel="steps")
        histogram.locator_params(axis="x", nbins=3)
    axes[-1][0].set_xlabel("step")
    axes[-1][1].set_xlabel("ms a step")
    return figure


# Of every report; `against` and `reductions` below make others.
PLOTS = (
    figures.Plot(
        "scaling",
        "Scaling",
        "Points: measured. Line: the law, if three numbers fit it; dashed: predicted; band: its 95 % interval. Dotted: "
        "ideal.",
        scaling,
    ),
    figures.Plot(
        "managers",
        "Variable managers",
        "With the most devices. Orange: trains differently, so it is not ranked with the others.",
        managers,
    ),
    figures.Plot("batches", "Batch size", "Where a line is flat, a larger batch gains nothing.", batches),
    figures.Plot(
        "time",
        "Where time goes",
        "Computing: a step under `independent`. Input: what real data add. Only steps clearly longer than computing.",
        time_goes,
    ),
    figures.Plot("sent", "Bytes sent per step", "By formula, all devices together.", sent),
    figures.Plot("real_over_synthetic", "Real over synthetic", "1: input costs nothing.", real_over_synthetic),
    figures.Plot(
        "steps",
        "Step times",
        "At most the latest six runs. Warm-up is shaded; the first step may exceed the plot. Right: steps by duration.",
        steps,
    ),
)


def against(table: published.FigureTable) -> figures.Plot:
    """Returns the plot of the user's rates and a table's figures against devices."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        by_model = figures.grouped(figures.valid_training(rows), lambda row: row.config.get("model"))
        mine, shown = {row.gpu for row in rows}, {}
        for model in by_model:
            lines = list(published.lines_of(table, model).items())
            lines.sort(key=lambda line: line[1][0].gpu not in mine)  # those of the user's own GPUs first
            if lines:
                shown[model] = lines[: figures.MOST_LINES - 1]
        if not shown:
            return None
        short = functools.partial(textwrap.fill, width=44, max_lines=3, placeholder=" ...")
        labels = {name: [short(line) for line, _ in lines] for name, lines in shown.items()}
        most = max("\n".join(each).count("\n") for each in labels.values())
        figure, axes = figures.panels_of(len(shown), 3.2 + 0.17 * most)
        for axis, name in zip(axes, shown, strict=True):
            for number, (label, (_, theirs)) in enumerate(zip(labels[name], shown[name], strict=True), start=1):
                points = [(figure.devices, figure.measured) for figure in theirs]
                figures.draw_line(axis, number, points, label=label, alpha=0.7, linestyle="--")
            best = {row.devices: row.measured for row in sorted(by_model[name], key=lambda row: row.rate)}
            figures.draw_line(axis, 0, best.items(), label="yours")
            axis.set(title=name, xlabel="devices", ylabel="images/s")
            figures.log_scale(axis, "y")
            axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return figure

    reading = f"Solid: your fastest run by devices. Dashed: {table.source}. The scale is logarithmic."
    file_name = re.sub(r"\W+", "_", table.name).strip("_")[:60] or "table"
    return figures.Plot(f"against_{file_name}", f"Yours beside {table.name}", reading, draw)


def reductions(records: Sequence[Record]) -> figures.Plot:
    """Returns the plot of bus bandwidth against the size of a message, from records of `allreduce`."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        panels: dict[str, dict[str, dict[int, float]]] = {}
        measured = [record for record in records if record.kind is Kind.ALL_REDUCE]
        machines = machine_names(measured)
        for record in measured:
            bandwidth, size = record.derived.bus_bandwidth_gb_per_sec, record.measurement.message_bytes
            if bandwidth is None or size is None or not str(record.config.get("message"))[:1].isdigit():
                continue  # the gradients of a model are many tensors, not one message
            panel = f"{record.config.get('num_devices')} {record.config.get('device')} devices"
            panel += f", {machines[record.identity.hardware_key]}" if len(machines) > 1 else ""
            panels.setdefault(panel, {}).setdefault(manager_of(record.config), {})[size] = bandwidth
        if not panels:
            return None
        shown = list(panels.items())[: figures.MOST_PANELS]
        figure, axes = figures.panels_of(len(shown))
        for axis, (panel, specs) in zip(axes, shown, strict=True):
            for number, (spec, by_size) in enumerate(list(specs.items())[: figures.MOST_LINES]):
                sizes = sorted(by_size)
                axis.errorbar(sizes, [by_size[size] for size in sizes], label=spec, **figures.look(number))
            axis.set(title=figures.wrapped(panel), xlabel="size of a message", ylabel="busbw, GB/s")
            figures.log_scale(axis, "x", in_words=in_bytes)
            figures.log_scale(axis, "y")
            axis.legend()
        return figure

    reading = "Bus bandwidth: what each device's link carries at least. Both scales are logarithmic."
    return figures.Plot("reductions_plot", "Reductions by size", reading, draw)
