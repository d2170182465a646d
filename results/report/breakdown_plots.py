"""Plots of why runs were so fast: where time goes, what is sent, what input costs, and what others have published."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from results.record import Record
from results.report import published
from results.report.anomalies import title
from results.report.figures import (
    COLOURS,
    INK,
    MOST_BARS,
    MOST_LINES,
    MOST_PANELS,
    Plot,
    grouped,
    legend_above,
    look,
    panel_of_bars,
    panels_of,
    valid_training,
    wrapped,
)
from results.siblings import DATA, Siblings, where_time_goes
from results.summary import Row

_SENT = ("read", "gradient", "weight", "activation")


def real_over_synthetic(rows: Sequence[Row]) -> Figure | None:
    """Bars: the rate on real data over that on synthetic data."""
    siblings = Siblings(rows)
    ratios = {}
    for row in valid_training(rows):
        synthetic = siblings.of(row, DATA, {"data_name": "synthetic"})
        if row.config.get("data_name") != "synthetic" and synthetic is not None:
            ratios[wrapped(title(row))] = row.rate / synthetic.rate
    if not ratios:
        return None
    shown = dict(list(ratios.items())[:MOST_BARS])
    figure, axis = panel_of_bars(list(shown))
    axis.barh(list(shown), list(shown.values()), color=COLOURS[2])
    axis.axvline(1.0, color=INK, linewidth=0.8)
    axis.set(xlabel="real / synthetic", xlim=(0, max(1.1, *shown.values())))
    return figure


def sent(rows: Sequence[Row]) -> Figure | None:
    """Bars: bytes sent in a step, by kind."""
    bars: dict[str, dict[str, float]] = {}
    for row in valid_training(rows):
        by_kind = row.records[0].placement.get("sent_per_step") or {}
        if by_kind.get("total_bytes") and len(bars) < MOST_BARS:
            sizes = {kind: (by_kind.get(f"{kind}_bytes") or 0) / 1e6 for kind in _SENT}
            # In a cluster, bytes are counted by link and not by kind.
            sizes["between processes"] = by_kind["total_bytes"] / 1e6 - sum(sizes.values())
            bars[wrapped(title(row))] = sizes
    if not bars:
        return None
    figure, axis = panel_of_bars(list(bars))
    left = [0.0] * len(bars)
    for number, kind in enumerate((*_SENT, "between processes")):
        widths = [bar[kind] for bar in bars.values()]
        if any(width > 1e-6 for width in widths):
            axis.barh(list(bars), widths, left=left, color=COLOURS[number], label=kind)
        left = [base + width for base, width in zip(left, widths, strict=True)]
    axis.set(xlabel="MB sent per step, all devices together")
    legend_above(axis)
    return figure


def time_goes(rows: Sequence[Row]) -> Figure | None:
    """Stacked bars: the shares of computing, exchange and input in a step."""
    siblings = Siblings(rows)
    bars = {}
    for row in valid_training(rows):
        parts = where_time_goes(row, siblings)
        if parts and (row.devices > 1 or row.config.get("data_name") != "synthetic"):
            bars[wrapped(title(row))] = parts
    bars = dict(list(bars.items())[:MOST_BARS])
    if not bars:
        return None
    figure, axis = panel_of_bars(list(bars))
    left = [0.0] * len(bars)
    for number, part in enumerate(("computing", "exchange", "input")):
        shares = [100 * parts[part] / sum(parts.values()) for parts in bars.values()]
        if any(shares):
            axis.barh(list(bars), shares, left=left, color=COLOURS[number], label=part)
        left = [base + share for base, share in zip(left, shares, strict=True)]
    for place, parts in enumerate(bars.values()):
        axis.text(101, place, f"{1000 * sum(parts.values()):.0f} ms", va="center")
    axis.set(xlabel="% of a step", xlim=(0, 112))
    legend_above(axis)
    return figure


def against(table: str) -> Plot:
    """Returns the plot of the user's scaling beside published figures."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        panels = {
            name: group
            for name, group in grouped(valid_training(rows), lambda row: row.config.get("model"), MOST_PANELS).items()
            if published.lines_of(table, name)
        }
        if not panels:
            return None
        figure, axes = panels_of(len(panels), 4.2)
        for axis, (name, group) in zip(axes, panels.items(), strict=True):
            for number, (line, theirs) in enumerate(list(published.lines_of(table, name).items())[: MOST_LINES - 1]):
                theirs_look = {**look(number + 1), "linestyle": "--"}
                theirs_look.pop("capsize")
                axis.plot(
                    [f.devices for f in theirs],
                    [f.images_per_sec for f in theirs],
                    label=line,
                    alpha=0.7,
                    **theirs_look,
                )
            best = {row.devices: row for row in sorted(group, key=lambda row: row.rate)}
            mine = [best[devices] for devices in sorted(best)]
            axis.plot([r.devices for r in mine], [r.rate for r in mine], "o-", color=COLOURS[0], label="yours")
            axis.set(title=name, xlabel="devices", ylabel="images/s", yscale="log")
            axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return figure

    reading = (
        f"Solid: your fastest run with so many devices. Dashed: {published.SOURCES[table]}. The scale is logarithmic."
    )
    return Plot(f"against_{table}", "Published figures beside yours", reading, draw)


def reductions(records: Sequence[Record]) -> Plot:
    """Returns the plot of what `allreduce` has measured: bus bandwidth against the size of a message."""

    def draw(rows: Sequence[Row]) -> Figure | None:
        panels: dict[str, dict[str, dict[int, float]]] = {}
        for record in records:
            bandwidth, size = record.derived.bus_bandwidth_gb_per_sec, record.measurement.message_bytes
            if bandwidth is None or size is None or not str(record.config.get("message", " "))[0].isdigit():
                continue  # a model's gradients are many tensors: they do not belong on this line
            panel = f"{record.config.get('num_devices')} {record.config.get('device')} devices"
            spec = str((record.config.get("modifiers") or {}).get("all_reduce_spec"))
            panels.setdefault(panel, {}).setdefault(spec, {})[size] = bandwidth
        if not panels:
            return None
        panels = dict(list(panels.items())[:MOST_PANELS])
        figure, axes = panels_of(len(panels))
        for axis, (panel, specs) in zip(axes, panels.items(), strict=True):
            for number, (spec, by_size) in enumerate(list(specs.items())[:MOST_LINES]):
                sizes = sorted(by_size)
                mine = look(number)
                mine.pop("capsize")
                axis.plot(sizes, [by_size[size] for size in sizes], label=spec, **mine)
            axis.set(title=panel, xlabel="bytes", ylabel="busbw, GB/s", xscale="log", yscale="log")
            axis.legend()
        return figure

    reading = "Bus bandwidth: what each device's link carries at least. Both scales are logarithmic."
    return Plot("reductions_plot", "Reductions by size", reading, draw)
