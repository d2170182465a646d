"""Predictions of one configuration on several numbers of devices, as text, JSON, a plot and a drawn step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.errors import UsageError, writing
from benchmarks.predict.prediction import LATENCY, Prediction, Subject, gains, limit, link_that_limits, predict, step
from benchmarks.predict.simulation import Timeline
from results.exchange.public_table import Figure, written
from results.text import Table, counted, first_few, rounded

_COLUMNS = 60
_ALIKE = 0.02
_TICK = 1 / 15  # share of the axis of a plot that a number of devices takes
_95_OVER_90 = 1.96 / 1.645  # widths of normal intervals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A prediction for one number of devices.

    Attributes:
        setting: the variable manager with its modifiers.
        gains: by which share the rate rises if computing, or a link, is twice as fast.
        of_managers: images/s under each manager that works there.
    """

    subject: Subject
    setting: str
    prediction: Prediction
    gains: dict[str, float]
    of_managers: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outlook:
    """The predictions of a configuration; `source` is that of the rate of one device."""

    hardware: str
    model: str
    manager: str
    precision: str
    images_per_sec_of_one: float
    source: str
    points: Sequence[Point]


def point(subject: Subject, manager: str, setting: str, others: Mapping[str, Callable[[], Subject]]) -> Point:
    """Predicts a number of devices, and compares its manager with others; those that do not work there are left out."""
    prediction = predict(subject)
    of_managers = {manager: prediction.images_per_sec}
    for name, under in others.items():
        with contextlib.suppress(UsageError):
            other = under()
            of_managers[name] = other.images / step(other).end_seconds
    return Point(
        subject=subject,
        setting=setting,
        prediction=prediction,
        gains=gains(subject, prediction.timeline),
        of_managers=of_managers,
    )


def as_text(outlook: Outlook) -> Iterator[str]:
    """Yields the lines of a table, and sentences on its last row."""
    batch = outlook.points[0].subject.batch_per_device
    yield f"{outlook.model}, batch {batch} per device, {outlook.precision}, {outlook.manager}: {outlook.hardware}"
    yield f"One device: {rounded(outlook.images_per_sec_of_one)} images/s ({outlook.source})"
    yield ""
    cells = []
    for one in outlook.points:
        found = one.prediction
        cells.append(
            [
                str(one.subject.layout.total),
                str(one.subject.layout.hosts),
                rounded(found.images_per_sec),
                f"{rounded(found.low)} to {rounded(found.high)}",
                f"{100 * found.efficiency:.0f}",
                limit(one.gains),
                _fastest(one.of_managers),
            ]
        )
    columns = ["devices", "hosts", "images/s", "90 % interval", "efficiency %", "limited by", "fastest manager"]
    yield from Table(columns, cells, columns[:5]).text()
    yield ""
    last = outlook.points[-1]
    rate, link = last.prediction.images_per_sec, link_that_limits(last.gains)
    devices = counted(last.subject.layout.total, "device")
    if link == LATENCY:
        share = f"{100 * last.gains[link]:.0f} %"
        yield f"With half the latency, {devices} would be {share} faster; fewer, larger messages help as much."
    elif link:
        yield f"With {link} twice as fast, {devices} would reach {rounded(rate * (1 + last.gains[link]))} images/s."
    else:
        yield f"No link costs {devices} more than 2 %, so a faster one would not help."
    yield (
        "The interval is from links that reach the least to links that reach the most of their data sheets. What the "
        "model leaves out: docs/prediction.md."
    )


def _fastest(of_managers: Mapping[str, float]) -> str:
    """Returns the fastest manager and its rate, and those that are about as fast."""
    best = max(of_managers.values())
    alike = [name for name, rate in of_managers.items() if rate > (1 - _ALIKE) * best]
    names = "all alike" if len(alike) == len(of_managers) > 1 else first_few(alike, ", ")
    return f"{names} ({rounded(best)})"


def as_json(outlook: Outlook) -> Iterator[str]:
    """Yields one line."""
    points = [
        {
            "devices": one.subject.layout.total,
            "hosts": one.subject.layout.hosts,
            "images_per_sec": one.prediction.images_per_sec,
            "images_per_sec_low": one.prediction.low,
            "images_per_sec_high": one.prediction.high,
            "efficiency": one.prediction.efficiency,
            "step_seconds": one.prediction.timeline.end_seconds,
            "limited_by": limit(one.gains),
            "gain_if_twice_as_fast": one.gains,
            "images_per_sec_by_manager": one.of_managers,
        }
        for one in outlook.points
    ]
    fields = {name: value for name, value in vars(outlook).items() if name != "points"}
    batch = outlook.points[0].subject.batch_per_device
    yield json.dumps({**fields, "batch_per_device": batch, "points": points})


def write_table(outlook: Outlook, path: str) -> None:
    """Writes the predictions as a public table, whose intervals are of 95 %.

    Raises:
        UsageError: the file cannot be written.
    """
    figures = (
        Figure(
            machine=outlook.hardware,
            source="predicted, not measured",
            model=outlook.model,
            devices=one.subject.layout.total,
            batch_per_device=one.subject.batch_per_device,
            images_per_sec=(rate := one.prediction.images_per_sec),
            images_per_sec_low=rate * (one.prediction.low / rate) ** _95_OVER_90,
            images_per_sec_high=rate * (one.prediction.high / rate) ** _95_OVER_90,
            variable_update=one.setting,
            precision=outlook.precision,
            data="synthetic",
            forward_only=False,
            gpu=one.subject.hardware.gpu,
        )
        for one in outlook.points
    )
    with writing(f"--table={path}"):
        Path(path).write_text(written(figures), encoding="utf-8")


def drawn_step(one: Point) -> Iterator[str]:
    """Yields the time line of a step: a line per resource, with a mark wherever it is occupied."""
    timeline = one.prediction.timeline
    devices = counted(one.subject.layout.total, "device")
    yield f"\nA step of one of {devices}, {rounded(1e3 * timeline.end_seconds)} ms; f forward, b backward, # occupied:"
    busy = timeline.busy_seconds()
    width = max(map(len, busy))
    for resource, seconds in busy.items():
        line = _marks(timeline, resource)
        yield f"{resource:{width}} |{line}| {rounded(1e3 * seconds)} ms, {seconds / timeline.end_seconds:.0%}"


def _marks(timeline: Timeline, resource: str) -> str:
    marks = [" "] * _COLUMNS
    for span in timeline.spans:
        if span.task.resource == resource and span.seconds:
            first = int(_COLUMNS * span.begin_seconds / timeline.end_seconds)
            last = int(_COLUMNS * (span.begin_seconds + span.seconds) / timeline.end_seconds)
            mark = {"forward": "f", "backward": "b"}.get(span.task.name.partition(" ")[0], "#")
            for column in range(first, max(first + 1, min(last, _COLUMNS))):
                marks[min(column, _COLUMNS - 1)] = mark
    return "".join(marks)


def plot(outlook: Outlook, path: str) -> None:
    """Writes PATH.svg and PATH.png: rates and their intervals against devices, and rates without any loss.

    Raises:
        UsageError: the files cannot be written.
    """
    from results.intervals import Interval
    from results.report import figures  # slow to import

    found = [(one.subject.layout.total, one.prediction) for one in outlook.points]
    points = [(devices, Interval(one.images_per_sec, one.low, one.high)) for devices, one in found]
    numbers = [devices for devices, _ in points]
    ideal = [devices * outlook.images_per_sec_of_one for devices in numbers]
    with writing(f"--plot={path}"), figures.styled():
        figure, (axis,) = figures.panels_of(1)
        figures.draw_line(axis, 0, points, label=f"{outlook.manager}, predicted")
        axis.plot(numbers, ideal, linestyle=":", color="#7F7F7F", label="no loss")
        axis.set(title=f"{outlook.model}, {outlook.hardware}", xlabel="devices", ylabel="images/s")
        figures.log_scale(axis, "x", "y")
        ticks = numbers[:1]
        for number in numbers[1:]:
            ticks += [number] * (number > ticks[-1] * (numbers[-1] / numbers[0]) ** _TICK)
        axis.set_xticks(ticks, list(map(str, ticks)))
        axis.legend()
        figures.save(figure, Path(path))
