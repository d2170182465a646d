"""Plots that explain rates: the parts of a step, bytes sent, the cost of input, and published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.intervals import is_faster
from results.record import Kind, Record
from results.report import figures, published
from results.summary import DATA, MANAGER, Row, Siblings, machine_names, manager_of
from results.text import in_bytes, rounded

_LONGEST_LABEL = 120
_SENT = ("read", "gradient", "weight", "activation")


def real_over_synthetic(rows: Sequence[Row]) -> Figure | None:
    """Bars: the rate on real data over the rate on synthetic data."""
    siblings = Siblings(rows)
    shown = [
        (row, row.among_processes.over(synthetic.among_processes))
        for row in figures.valid_training(rows)
        if row.config.get("data_name") != "synthetic"
        and (synthetic := siblings.of(row, DATA, {"data_name": "synthetic"})) is not None
    ]
    return figures.bars_beside(shown[: figures.MOST_BARS], 1.0, "real / synthetic", "-")


def sent(rows: Sequence[Row]) -> Figure | None:
    """Bars: bytes sent in a step, by kind."""
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


def _stacked_bars(bars: Sequence[tuple[Row, Mapping[str, float]]]) -> tuple[Figure, Axes]:
    labels = figures.distinct_labels([row for row, _ in bars])
    figure, axis = figures.panel_of_bars(labels)
    frame = pd.DataFrame([parts for _, parts in bars], index=labels)
    colours = dict(zip(frame, figures.COLOURS, strict=False))
    frame.loc[:, (frame > 1e-6).any()].plot.barh(stacked=True, width=0.8, color=colours, ax=axis, legend=False)
    figure.legend(loc="outside upper center", ncols=3)
    return figure, axis


def against(table: published.FigureTable) -> figures.Plot:
    """Returns the plot of the user's rates and a table's figures against devices."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        by_model = figures.grouped(figures.valid_training(rows), lambda row: row.config.get("model"))
        panels = {name: group for name, group in by_model.items() if published.lines_of(table, name)}
        if not panels:
            return None
        figure, axes = figures.panels_of(len(panels), 4.2)
        for axis, (name, group) in zip(axes, panels.items(), strict=True):
            lines = list(published.lines_of(table, name).items())[: figures.MOST_LINES - 1]
            for number, (line, theirs) in enumerate(lines, start=1):
                points = [(figure.devices, figure.measured) for figure in theirs]
                label = line if len(line) <= _LONGEST_LABEL else f"{line[:_LONGEST_LABEL]} ..."
                figures.draw_line(axis, number, points, label=label, alpha=0.7, linestyle="--")
            best = {row.devices: row.measured for row in sorted(group, key=lambda row: row.rate)}
            figures.draw_line(axis, 0, best.items(), label="yours")
            axis.set(title=name, xlabel="devices", ylabel="images/s")
            figures.log_scale(axis, "y")
            axis.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return figure

    reading = f"Solid: your fastest run by devices. Dashed: {table.source}. The scale is logarithmic."
    return figures.Plot(f"against_{table.file_name}", f"Yours beside {table.name}", reading, draw)


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
