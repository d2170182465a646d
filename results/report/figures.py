"""Shared by all plots: style, saving, and the grouping of rows into panels and lines."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullFormatter

from results import summary
from results.intervals import Interval
from results.report import headline
from results.summary import Row

# Okabe and Ito's colours, which people with any colour vision can distinguish, by contrast.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F")
MARKERS = "osD^vPX*"
# Placeholder that `save` replaces by the text colour of the page.
INK = "#010203"
MOST_PANELS, MOST_LINES, MOST_BARS, MOST_TRACES = 6, 8, 24, 6
# Of a line of a label that stands beside its bar.
BAR_LETTERS = 30
# A panel that stands alone is legible on a phone; two beside each other take the width of a page.
_PANEL_INCHES, _HALF_INCHES = 5.6, 4.6
# An interval that reaches farther than so many times the largest number is cut, and its bound is written.
_FARTHEST = 4
# From one end of a logarithmic axis to the other: with few its ticks are those of a linear one, with many the decades.
_FEW_TIMES, _MANY_TIMES = 5, {"x": 50, "y": 1000}
# Over matplotlib's defaults: a matplotlibrc may ask for LaTeX, or for what hides the lines.
STYLE = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.framealpha": 0.0,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "cnn-train-bench",
    "text.parse_math": False,  # a dollar in a record's text begins no formula
    **{name: INK for name in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")},
}


@dataclasses.dataclass(frozen=True)
class Plot:
    """A plot: its file name, its title, how to read it, and the function that draws it (None: nothing to show)."""

    name: str
    title: str
    reading: str
    draw: Callable[[Sequence[Row]], Figure | None]


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draws in the style of all plots, whatever a matplotlibrc asks for.

    A letter that matplotlib's font lacks, such as a Chinese one, is a box in a PNG, without a warning for each.
    """
    with matplotlib.style.context(STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def as_svg(figure: Figure) -> str:
    """Returns a figure as SVG without a background."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})  # equal records make equal files
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def save(figure: Figure, path: Path) -> str:
    """Writes PATH.svg and PATH.png, dark on white, and returns the SVG for a page, in the colour of its text."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # it is laid out now, which takes as long as to draw it
    svg = as_svg(figure)
    on_white = svg.replace(">", '><rect width="100%" height="100%" fill="white"/>', 1)
    path.with_suffix(".svg").write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{on_white}', encoding="utf-8")
    figure.savefig(path.with_suffix(".png"), facecolor="white", dpi=120)
    return svg.replace(INK, "currentColor")


def is_broad(svg: str) -> bool:
    """Returns whether a plot is wider than half a page."""
    return float(svg.partition('width="')[2].partition("pt")[0]) > 1.01 * 72 * _PANEL_INCHES


def drawn(plots: Iterable[Plot], rows: Sequence[Row], folder: Path) -> Iterator[tuple[Plot, str]]:
    """Saves the plots that have something to show in a folder, and yields each with its SVG.

    Raises:
        OSError: a file cannot be written.
    """
    with styled():
        for plot in plots:
            if (figure := plot.draw(rows)) is not None:
                yield plot, save(figure, folder / plot.name)


def panels_of(count: int, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` panels, two per line."""
    columns = min(2, count)
    lines = -(-count // columns)
    width = _PANEL_INCHES if count == 1 else _HALF_INCHES * columns
    figure = Figure(figsize=(width, height * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def valid_training(rows: Sequence[Row]) -> list[Row]:
    """Returns the training rows with a rate."""
    return [row for row in rows if row.images_per_sec is not None and not row.config.get("forward_only")]


def grouped(
    rows: Sequence[Row], key: Callable[[Row], Any], most: int = MOST_PANELS, varying: Callable[[Row], Any] | None = None
) -> dict[Any, list[Row]]:
    """Returns the largest groups of rows with equal `key` and different values of `varying`, in order of appearance."""
    groups = summary.grouped(rows, key)
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:most]
    shown = {name: group for name, group in groups.items() if name in largest}
    return {name: group for name, group in shown.items() if varying is None or len(set(map(varying, group))) > 1}


def panel_of_bars(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Returns a figure with a panel for horizontal bars with these labels."""
    figure, (axis,) = panels_of(1, 1.2 + sum(0.3 + 0.15 * label.count("\n") for label in labels))
    return figure, axis


def draw_bars(
    axis: Axes,
    labels: Sequence[str],
    values: Sequence[Interval],
    colours: Sequence[str] = COLOURS[:1],
    least: float = 0.0,
) -> None:
    """Draws horizontal bars with their intervals, on an axis that reaches `least` at least."""
    bars = error_bars(values)
    axis.barh(range(len(values)), [value.value for value in values], color=colours)
    for place, (value, below, above) in enumerate(zip(values, *bars, strict=True)):
        axis.errorbar(value.value, place, xerr=[[below], [above]], color=INK, capsize=2, linewidth=1.2)
    axis.set_yticks(range(len(values)), labels)
    end_axis(axis, "x", list(enumerate(values)), least)


def distinct_labels(rows: Sequence[Row]) -> list[str]:
    """Returns labels of rows that name only in what they differ, in lines short enough to leave room for the panel."""
    return [wrapped(label, BAR_LETTERS) for label in headline.labels(rows)]


def error_bars(values: Iterable[Interval]) -> list[list[float]]:
    """Returns the lengths of the intervals below and above their values; 0 where they are unknown."""
    bounded = [value.bounded for value in values]
    return [[max(0.0, b.value - b.low) for b in bounded], [max(0.0, b.high - b.value) for b in bounded]]


def draw_line(axis: Axes, number: int, points: Iterable[tuple[float, Interval]], **style: Any) -> None:
    """Draws points in ascending order, each with its interval, as the line with that number."""
    places, values = zip(*sorted(points, key=lambda point: point[0]), strict=True)
    bars = error_bars(values)
    if style.get("label", "").startswith("_"):  # such as a file of a model: a legend would leave it out
        style["label"] = f" {style['label']}"
    axis.errorbar(places, [value.value for value in values], yerr=bars, **{**look(number), **style})


def end_axis(axis: Axes, name: str, points: Sequence[tuple[float, Interval]], least: float = 0.0) -> None:
    """Ends an axis (`x` or `y`) that begins at 0 beyond all intervals, each at its place on the other axis.

    One that reaches too far is cut: an arrow with its upper bound marks that, the largest of a place.
    """
    largest = max([least, *(value.value for _, value in points)])
    far = [point for point in points if point[1].bounded.high > _FARTHEST * largest]
    end = 1.1 * max([largest, *(value.bounded.high for place, value in points if (place, value) not in far)])
    axis.set(**{f"{name}lim": (0, end)})
    for place, value in dict(sorted(far, key=lambda point: point[1].high)).items():
        at, mark, up = ((end, place), ">", 5) if name == "x" else ((place, end), "^", -4)
        axis.plot(*at, marker=mark, color=INK, markersize=6, clip_on=False, zorder=4)
        text = f"to {value.rounded(value.high)}"
        axis.annotate(text, at, (-6, up), textcoords="offset points", ha="right", va="bottom" if up > 0 else "top")


def log_scale(axis: Axes, *names: str, in_words: Callable[[float], str] = "{:.10g}".format) -> None:
    """Makes the axes `x`, `y` logarithmic, once all is drawn, with numbers that need no formula."""
    for name in names:
        axis.set(**{f"{name}scale": "log"})
        ruler, (low, high) = (axis.xaxis, axis.get_xlim()) if name == "x" else (axis.yaxis, axis.get_ylim())
        in_decades = LogLocator(subs=(1.0, 2.0, 5.0) if high < _MANY_TIMES[name] * low else (1.0,))
        ruler.set_major_locator(AutoLocator() if high < _FEW_TIMES * low else in_decades)
        ruler.set_major_formatter(FuncFormatter(lambda value, _: in_words(value)))
        ruler.set_minor_formatter(NullFormatter())


def wrapped(label: str, letters: int = 50) -> str:
    """Returns a label in lines short enough to leave room for the panel."""
    return textwrap.fill(label, letters)


def look(number: int) -> dict[str, Any]:
    """Returns the colour and the marker of a line."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4, "capsize": 2}
