"""The rate of each configuration, session by session, and where its level changed, as text, JSON and a plot.

It decides nothing. Levels are found by PELT (Killick, Fearnhead and Eckley 2012): the cuts that are best for the sum of
squares on logarithms, at a price per cut. Binary segmentation is as good for one step, but finds a drop and the
recovery from it together in 33 % of 30 sessions, where PELT finds both in 93 %.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from results.environment import hardware_in_words
from results.gate import rounds
from results.gate.decision import in_words
from results.gate.rounds import Session, sessions
from results.record import Identity, Record
from results.step_statistics import MAD_TO_SIGMA
from results.text import Table, as_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = ("date (UTC)", "suite", "TensorFlow", "runs", "images/s", "change %", "")
_NUMBERS = ("runs", "images/s", "change %")
_MOST_DATES = 8
# Each panel shows at least this share below and above the median, so that noise does not look like a change.
_LEAST_SHOWN = 0.05
# A level that held for fewer sessions is an outlier.
SHORTEST_LEVEL = 3
# A session that is farther from the median of its neighbourhood, in standard deviations of the noise, is an outlier.
_OUTLIER = 6.0
# The price of a cut, in variances of the noise: 10 up to 28 sessions, then growing as chances to be wrong do.
_PRICE, _PRICE_PER_LOG = 10.0, 3.0


@dataclasses.dataclass(frozen=True)
class History:
    """The sessions of one configuration on equal hardware, at least one, in the order of time."""

    title: str
    hardware: str
    sessions: Sequence[Session]

    @property
    def identity(self) -> Identity:
        """Returns the keys of the configuration and the hardware, as of the first run."""
        return self.sessions[0].records[0].identity

    @property
    def rates(self) -> list[float]:
        """Returns images per second of each session."""
        return [session.images_per_sec for session in self.sessions]

    @functools.cached_property
    def points(self) -> list[int]:
        """Returns the indices of the sessions with which the rate's level changes."""
        return change_points(self.rates)

    @property
    def changes(self) -> list[float | None]:
        """Returns for each session its rate over that of the one before, less 1."""
        return [None, *(after / before - 1 for before, after in itertools.pairwise(self.rates))]

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """Returns first session, session after the last, and median images per second of each level."""
        ends = [0, *self.points, len(self.sessions)]
        return [(begin, end, statistics.median(self.rates[begin:end])) for begin, end in itertools.pairwise(ends)]


def change_points(rates: Sequence[float]) -> list[int]:
    """Returns the indices of the sessions with which a new level begins, in order of time.

    The noise is estimated from differences between neighbours, which a step touches once. Before that, the median of
    their neighbourhood replaces outliers: one of them would make all noise look larger, and hide every step.
    """
    if len(rates) < 2 * SHORTEST_LEVEL:
        return []
    import ruptures  # with scipy.stats, which takes its time

    logs = _without_outliers(np.log(np.asarray(rates, dtype=float)))
    variance = float(np.mean(np.diff(logs) ** 2)) / 2
    if variance == 0:
        return []
    price = max(_PRICE, _PRICE_PER_LOG * math.log(len(logs))) * variance
    cuts = ruptures.Pelt(model="l2", min_size=SHORTEST_LEVEL, jump=1).fit(logs).predict(pen=price)
    return [int(cut) for cut in cuts[:-1]]


def _without_outliers(logs: np.ndarray) -> np.ndarray:
    """Returns log rates in which outliers have the median of the sessions that the shortest level may share with them.

    A level of so many sessions stays as it is. The noise is that of most differences between neighbours.
    """
    noise = MAD_TO_SIGMA * np.median(np.abs(np.diff(logs))) / math.sqrt(2)
    reach = SHORTEST_LEVEL - 1
    medians = [np.median(logs[max(0, at - reach) : at + reach + 1]) for at in range(len(logs))]
    return np.where(np.abs(logs - medians) > _OUTLIER * noise, medians, logs)


def histories(records: Iterable[Record]) -> list[History]:
    """Returns the history of each configuration and hardware that has a valid run."""
    return [
        History(group.title, hardware_in_words(group.records[0]), members)
        for group in rounds.group(records).values()
        if (members := sessions(group.records))
    ]


def as_text(histories: Sequence[History]) -> list[str]:
    """Returns a heading and a table for each configuration; where a new level begins, the row shows both levels."""
    lines = []
    for history in histories:
        lines += [f"{history.title} on {history.hardware}", *Table(_COLUMNS, _rows(history), _NUMBERS).text(), ""]
    return lines[:-1]


def as_json(histories: Sequence[History]) -> str:
    """Returns a list with an object for each configuration."""
    return json.dumps([_fields(history) for history in histories], indent=2)


def draw(histories: Sequence[History], path: Path) -> int:
    """Draws the configurations with the most sessions, at most MOST_PANELS, and returns how many.

    The suffix of the path selects the format, such as .png or .svg.

    Raises:
        OSError: the file cannot be written.
    """
    from results.report.figures import MOST_PANELS, panels_of, styled  # slow to import

    longest = sorted(histories, key=lambda history: -len(history.sessions))[:MOST_PANELS]
    shown = [history for history in histories if history in longest]
    with styled():
        figure, axes = panels_of(len(shown))
        for axis, history in zip(axes, shown, strict=True):
            _panel(axis, history)
        figure.savefig(path, dpi=120, facecolor="white")
    return len(shown)


def _rows(history: History) -> list[list[str]]:
    marks = {
        after[0]: f"<- {in_words(after[2] / before[2] - 1)} from here: {as_rate(before[2])} to {as_rate(after[2])}"
        for before, after in itertools.pairwise(history.levels)
    }
    return [
        [
            session.date,
            session.commit,
            session.tensorflow_version,
            str(len(session.records)),
            as_rate(session.images_per_sec),
            "" if change is None else f"{100 * change:+.1f}",
            marks.get(index, ""),
        ]
        for index, (session, change) in enumerate(zip(history.sessions, history.changes, strict=True))
    ]


def _fields(history: History) -> dict[str, Any]:
    level = [rate for begin, end, rate in history.levels for _ in range(begin, end)]
    return {
        "title": history.title,
        "hardware": history.hardware,
        "config_key": history.identity.config_key,
        "hardware_key": history.identity.hardware_key,
        "sessions": [
            {
                "time_utc": session.records[0].identity.time_utc,
                "suite_commit": session.records[0].identity.suite_commit,
                "tensorflow_version": session.tensorflow_version or None,
                "runs": len(session.records),
                "images_per_sec": session.images_per_sec,
                "change": change,
                "is_change_point": index in history.points,
                "level_images_per_sec": level[index],
            }
            for index, (session, change) in enumerate(zip(history.sessions, history.changes, strict=True))
        ],
    }


def _panel(axis: Axes, history: History) -> None:
    """Draws rounds as faint dots, sessions as a line, levels as bars, and the change at a new level as text."""
    from results.report.figures import COLOURS, INK, look, wrapped

    dots = [
        (index, rate)
        for index, session in enumerate(history.sessions)
        for record in session.records
        if (rate := record.rate)
    ]
    axis.plot(*zip(*dots, strict=True), linestyle="", marker=".", markersize=3, color=COLOURS[7], alpha=0.6)
    style = {name: value for name, value in look(0).items() if name != "capsize"}
    axis.plot(range(len(history.rates)), history.rates, **style)
    levels = history.levels if history.points else []
    for begin, end, rate in levels:
        axis.hlines(rate, begin - 0.5, end - 0.5, color=COLOURS[1], linewidth=2)
    of_panel = axis.get_xaxis_transform()
    for before, after in itertools.pairwise(levels):
        place, words = after[0] - 0.5, f" {in_words(after[2] / before[2] - 1)} "
        axis.axvline(place, color=COLOURS[1], linewidth=1, linestyle=":")
        y, side = (0, "bottom") if after[2] > before[2] else (1, "top")  # where the line does not go on
        axis.text(place, y, words, transform=of_panel, va=side, rotation="vertical", color=INK, fontsize=8)
    axis.set_title(f"{wrapped(history.title, 64)}\n{wrapped(history.hardware, 64)}", fontsize=8)
    axis.set_ylabel("images/s")
    low, high = axis.get_ylim()
    middle = statistics.median(history.rates)
    axis.set_ylim(min(low, (1 - _LEAST_SHOWN) * middle), max(high, (1 + _LEAST_SHOWN) * middle))
    every = -(-len(history.sessions) // _MOST_DATES)
    axis.set_xticks(
        range(0, len(history.sessions), every),
        [session.date[:10] for session in history.sessions[::every]],
        rotation=30,
        ha="right",
    )
