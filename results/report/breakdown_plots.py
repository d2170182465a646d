"""Plots that explain rates: the parts of a step, bytes sent, the cost of input, and published figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.record import Record
from results.report import figures, published
from results.report.anomalies import title
from results.summary import DATA, MANAGER, Row, Siblings

_LONGEST_LABEL = 120
_SENT = ("read", "gradient", "weight", "activation")


def real_over_synthetic(rows: Sequence[Row]) -> Figure | None:
    """Bars: the rate on real data over the rate on synthetic data."""
    siblings = Siblings(rows)
    ratios: dict[str, float] = {}
    for row in figures.valid_training(rows):
        if row.config.get("data_name") == "synthetic" or len(ratios) == figures.MOST_BARS:
            continue
        synthetic = siblings.of(row, DATA, {"data_name": "synthetic"})
        if synthetic is not None:
            ratios[figures.wrapped(title(row))] = row.rate / synthetic.rate
    if not ratios:
        return None
    figure, axis = _panel_of_bars(list(ratios))
    axis.barh(list(ratios), list(ratios.values()), color=figures.COLOURS[2])
    axis.axvline(1.0, color=figures.INK, linewidth=0.8)
    axis.set(xlabel="real / synthetic", xlim=(0, max(1.1, *ratios.values())))
    return figure


def sent(rows: Sequence[Row]) -> Figure | None:
    """Bars: bytes sent in a step, by kind."""
    bars: dict[str, dict[str, float]] = {}
    for row in figures.valid_training(rows):
        by_kind = row.records[0].placement.get("sent_per_step") or {}
        if (by_kind.get("total_bytes") or 0) >= 1 and len(bars) < figures.MOST_BARS:
            sizes = {kind: (by_kind.get(f"{kind}_bytes") or 0) / 1e6 for kind in _SENT}
            # In a cluster, bytes are counted by link and not by kind.
            sizes["between processes"] = by_kind["total_bytes"] / 1e6 - sum(sizes.values())
            bars[figures.wrapped(title(row))] = sizes
    if not bars:
        return None
    figure, axis = _stacked_bars(bars)
    axis.set(xlabel="MB sent per step, all devices together")
    return figure


def where_time_goes(row: Row, siblings: Siblings) -> dict[str, float] | None:
    """Returns the parts of a training step's time, in seconds, from the rows beside it.

    Computing is the time of the same step under `independent`, which exchanges nothing. Exchange is the rest of the
    step on synthetic data. Input is what real data add. None if the row is not of training, or a row to compare with
    is missing: the one with synthetic data, or of several devices the one under `independent`.
    """
    if not row.valid or row.config.get("forward_only"):
        return None
    is_synthetic = row.config.get("data_name") == "synthetic"
    on_synthetic = row if is_synthetic else siblings.of(row, DATA, {"data_name": "synthetic"})
    if on_synthetic is None:
        return None
    independent = {"variable_update": "independent"}
    alone = siblings.of(on_synthetic, MANAGER, independent) if row.devices > 1 else on_synthetic
    if alone is None:
        return None
    whole, without_input, computing = (statistics.fmean(one.step_seconds) for one in (row, on_synthetic, alone))
    return {
        "computing": min(computing, without_input, whole),
        "exchange": max(0.0, min(without_input, whole) - computing),
        "input": max(0.0, whole - without_input),
    }


def time_goes(rows: Sequence[Row]) -> Figure | None:
    """Stacked bars: the shares of computing, exchange and input in a step."""
    siblings = Siblings(rows)
    bars: dict[str, dict[str, float]] = {}
    for row in figures.valid_training(rows):
        if len(bars) < figures.MOST_BARS and (row.devices > 1 or row.config.get("data_name") != "synthetic"):
            if parts := where_time_goes(row, siblings):
                bars[figures.wrapped(title(row))] = parts
    if not bars:
        return None
    whole = {label: sum(parts.values()) for label, parts in bars.items()}
    figure, axis = _stacked_bars({b: {part: 100 * s / whole[b] for part, s in bars[b].items()} for b in bars})
    for height, seconds in enumerate(whole.values()):
        axis.text(101, height, f"{1000 * seconds:.0f} ms", va="center")
    axis.set(xlabel="% of a step", xlim=(0, 112))
    return figure


def _panel_of_bars(labels: Sequence[str]) -> tuple[Figure, Axes]:
    figure, (axis,) = figures.panels_of(1, 1.2 + sum(0.3 + 0.15 * label.count("\n") for label in labels))
    return figure, axis


def _stacked_bars(bars: Mapping[str, Mapping[str, float]]) -> tuple[Figure, Axes]:
    figure, axis = _panel_of_bars(list(bars))
    frame = pd.DataFrame.from_dict(bars, orient="index")
    colours = dict(zip(frame, figures.COLOURS, strict=False))
    frame.loc[:, (frame > 1e-6).any()].plot.barh(stacked=True, width=0.8, color=colours, ax=axis)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
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
                figures.draw_line(axis, number, points, label=_shortened(line), alpha=0.7, linestyle="--")
            best = {row.devices: row.measured for row in sorted(group, key=lambda row: row.rate)}
            figures.draw_line(axis, 0, best.items(), label="yours")
            axis.set(title=name, xlabel="devices", ylabel="images/s")
            figures.log_scale(axis, "y")
            axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return figure

    reading = (
        f"Solid: your fastest run by devices. Dashed: {table.source}. Bars: 95 % intervals. The scale is logarithmic."
    )
    return figures.Plot(f"against_{table.file_name}", f"Yours beside {table.name}", reading, draw)


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]} ..."


def reductions(records: Sequence[Record]) -> figures.Plot:
    """Returns the plot of bus bandwidth against the size of a message, from records of `allreduce`."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        panels: dict[str, dict[str, dict[int, float]]] = {}
        for record in records:
            bandwidth, size = record.derived.bus_bandwidth_gb_per_sec, record.measurement.message_bytes
            if bandwidth is None or size is None or not str(record.config.get("message"))[:1].isdigit():
                continue  # the gradients of a model are many tensors, not one message
            panel = f"{record.config.get('num_devices')} {record.config.get('device')} devices"
            spec = str((record.config.get("modifiers") or {}).get("all_reduce_spec"))
            panels.setdefault(panel, {}).setdefault(spec, {})[size] = bandwidth
        if not panels:
            return None
        panels = dict(list(panels.items())[: figures.MOST_PANELS])
        figure, axes = figures.panels_of(len(panels))
        for axis, (panel, specs) in zip(axes, panels.items(), strict=True):
            for number, (spec, by_size) in enumerate(list(specs.items())[: figures.MOST_LINES]):
                sizes = sorted(by_size)
                axis.errorbar(sizes, [by_size[size] for size in sizes], label=spec, **figures.look(number))
            axis.set(title=panel, xlabel="bytes", ylabel="busbw, GB/s")
            figures.log_scale(axis, "x", "y")
            axis.legend()
        return figure

    reading = "Bus bandwidth: what each device's link carries at least. Both scales are logarithmic."
    return figures.Plot("reductions_plot", "Reductions by size", reading, draw)
