"""Plots of the rate against devices, batches and managers, and of single steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.record import Record
from results.report.figures import (
    COLOURS,
    INK,
    MOST_BARS,
    MOST_LINES,
    MOST_PANELS,
    MOST_TRACES,
    error_bars,
    grouped,
    look,
    model_and_batch,
    panels_of,
    valid_training,
    wrapped,
)
from results.summary import Row, manager_of


def scaling(rows: Sequence[Row]) -> Figure | None:
    """Rate against devices: a panel per model, a line per variable manager, and the ideal line."""
    panels = {
        name: group
        for name, group in grouped(valid_training(rows), model_and_batch, MOST_PANELS).items()
        if len({row.devices for row in group}) > 1
    }
    if not panels:
        return None
    figure, axes = panels_of(len(panels))
    for axis, (name, group) in zip(axes, panels.items(), strict=True):
        by_manager = grouped(group, lambda row: manager_of(row.config), MOST_LINES)
        for number, (manager, line) in enumerate(by_manager.items()):
            line.sort(key=lambda row: row.devices)
            devices, rates = [row.devices for row in line], [row.rate for row in line]
            axis.errorbar(devices, rates, yerr=error_bars(line), label=manager, **look(number))
        one = max((row.rate for row in group if row.devices == 1), default=0.0)
        most = max(row.devices for row in group)
        if one:
            axis.plot([1, most], [one, one * most], linestyle=":", color="#7F7F7F", label="ideal")
        axis.set(title=wrapped(name), xlabel="devices", ylabel="images/s", ylim=(0, None))
        axis.set_ylim(0, 1.15 * max(one * most, *(row.rate for row in group)))
        axis.set_xticks(sorted({row.devices for row in group}))
        axis.legend()
    return figure


def efficiency(rows: Sequence[Row]) -> Figure | None:
    """Heat map: model and batch by variable manager and devices."""
    many = [row for row in valid_training(rows) if row.efficiency is not None and row.devices > 1]
    across = list(dict.fromkeys((manager_of(row.config), row.devices) for row in many))[:MOST_BARS]
    down = list(dict.fromkeys(map(model_and_batch, many)))[:MOST_BARS]
    if not many:
        return None
    values = [[float("nan")] * len(across) for _ in down]
    for row in many:
        column, label = (manager_of(row.config), row.devices), model_and_batch(row)
        if column in across and label in down:
            values[down.index(label)][across.index(column)] = row.efficiency or float("nan")
    labels = [wrapped(label) for label in down]
    figure = Figure(
        figsize=(3.5 + 0.55 * len(across), 1.9 + sum(0.4 + 0.15 * label.count("\n") for label in labels)),
        layout="constrained",
    )
    axis = figure.subplots()
    image = axis.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (y, line), x in itertools.product(enumerate(values), range(len(across))):
        if line[x] == line[x]:
            axis.text(x, y, f"{line[x]:.0%}", ha="center", va="center", color="white" if line[x] < 0.5 else "black")
    axis.set_xticks(range(len(across)), [f"{name}, {n}" for name, n in across], rotation=35, ha="right")
    axis.set_yticks(range(len(down)), labels)
    axis.grid(visible=False)
    figure.colorbar(image, label="efficiency")
    return figure


def managers(rows: Sequence[Row]) -> Figure | None:
    """Bars: images per second of each variable manager, a panel per model, at the largest number of devices."""
    panels = grouped(valid_training(rows), model_and_batch, MOST_PANELS)
    most = {name: max(row.devices for row in group) for name, group in panels.items()}
    panels = {name: [row for row in group if row.devices == most[name]] for name, group in panels.items()}
    panels = {name: group for name, group in panels.items() if len(group) > 1}
    if not panels:
        return None
    figure, axes = panels_of(len(panels))
    for axis, (name, group) in zip(axes, panels.items(), strict=True):
        group = sorted(group, key=lambda row: row.rate)[-MOST_BARS:]
        axis.barh(
            [manager_of(row.config) for row in group],
            [row.rate for row in group],
            xerr=error_bars(group),
            color=COLOURS[0],
            ecolor=INK,
            capsize=2,
        )
        axis.set(title=wrapped(f"{name}, {most[name]} devices"), xlabel="images/s")
        axis.set_xlim(0, 1.2 * max(row.rate for row in group))
    return figure


def batches(rows: Sequence[Row]) -> Figure | None:
    """Rate against the batch per device."""

    def label(row: Row) -> str:
        config = row.config
        words = (config.get("model"), manager_of(config), row.devices, config.get("precision"), row.also)
        return ", ".join(str(word) for word in words if word != "")

    lines = {
        name: line
        for name, line in grouped(valid_training(rows), label, MOST_LINES).items()
        if len({row.config.get("batch_per_device") for row in line}) > 1
    }
    if not lines:
        return None
    figure, (axis,) = panels_of(1, 3.6)
    for number, (name, line) in enumerate(lines.items()):
        line.sort(key=lambda row: row.config["batch_per_device"])
        sizes = [row.config["batch_per_device"] for row in line]
        axis.errorbar(sizes, [row.rate for row in line], yerr=error_bars(line), label=name, **look(number))
    axis.set(xlabel="batch per device", ylabel="images/s", xscale="log", ylim=(0, None))
    axis.legend()
    return figure


def steps(rows: Sequence[Row]) -> Figure | None:
    """Step times of the latest runs, with the warm-up shaded, and a histogram of the measured steps."""
    records = [record for row in rows for record in row.valid if record.measurement.step_seconds]
    records = sorted(records, key=lambda record: record.identity.time_utc)[-MOST_TRACES:]
    if not records:
        return None
    figure = Figure(figsize=(9.2, 2.0 * len(records)), layout="constrained")
    axes = figure.subplots(len(records), 2, squeeze=False, width_ratios=(3, 1))
    for (trace, spread), record in zip(axes, records, strict=True):
        _draw_steps(trace, spread, record)
    axes[-1][0].set_xlabel("step")
    axes[-1][1].set_xlabel("ms")
    return figure


def _draw_steps(trace: Axes, spread: Axes, record: Record) -> None:
    measurement = record.measurement
    first = [] if measurement.first_step_seconds is None else [measurement.first_step_seconds]
    before = [1000 * seconds for seconds in (*first, *measurement.warmup_step_seconds)]
    measured = [1000 * seconds for seconds in measurement.step_seconds]
    trace.plot(range(1, len(before) + len(measured) + 1), before + measured, color=COLOURS[0], linewidth=1)
    if before:
        trace.axvspan(0.5, len(before) + 0.5, color="#7F7F7F", alpha=0.25, linewidth=0)
    trace.set_ylim(0, 1.6 * max(measured))  # the first step may be higher
    config = record.config
    what = (
        f"{config.get('model')}, {manager_of(config)}, {config.get('num_devices')} x {config.get('batch_per_device')}"
    )
    trace.set_title(what, fontsize=8, loc="left")
    trace.set_ylabel("ms")
    spread.hist(measured, bins=min(30, max(5, len(measured) // 4)), color=COLOURS[0])
