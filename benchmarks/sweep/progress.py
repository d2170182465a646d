"""What a person sees of a sweep: the grid before, and the progress on stderr. No TensorFlow."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from benchmarks.console import warn
from benchmarks.sweep.estimate import in_words
from benchmarks.sweep.grid import Cell
from results.record import Record
from results.summary import manager_of


def grid_lines(cells: Sequence[Cell], estimates: Sequence[float], repeats: int) -> list[str]:
    """Returns the grid as lines: what is run, what cannot be and why, and how long it may take."""
    common = set.intersection(*(set(cell.arguments) for cell in cells)) if len(cells) > 1 else set()
    lines = [f"All: {' '.join(word for word in cells[0].arguments if word in common)}"] if common else []
    for number, (cell, seconds) in enumerate(zip(cells, estimates, strict=True), start=1):
        if cell.config is None:
            what = f"cannot run: {cell.why_not}"
        elif cell.same_as_before:
            what = "the same as one before"
        else:
            what = f"about {in_words(seconds)}"
        own = " ".join(word for word in cell.arguments if word not in common)
        lines.append(f"{number:4}  {own}   {what}")
    runs = sum(cell.runs for cell in cells)
    total = repeats * sum(seconds for cell, seconds in zip(cells, estimates, strict=True) if cell.runs)
    times = "" if repeats == 1 else f" x {repeats} repeats"
    lines.append(f"{runs} of {len(cells)} combinations{times}: {runs * repeats} runs, about {in_words(total)}.\n")
    return lines


def what_is_run(cell: Cell) -> str:
    """Returns a cell in few words; as flags, if it cannot be."""
    return " ".join(cell.arguments) if cell.config is None else in_few_words(cell.config.to_dict())


def in_few_words(config: Mapping[str, Any]) -> str:
    """Returns a configuration in few words, as a record has it."""
    devices, batch = config.get("num_devices"), config.get("batch_per_device")
    return f"{config.get('model')}, {manager_of(config)}, {devices} x {batch}"


class SweepDisplay:
    """Shows on stderr what is run: a bar with the time that is left on a terminal, else a line per run.

    Args:
        estimates: seconds of each run; what is left is corrected by how long the runs before really took.
    """

    def __init__(self, estimates: Sequence[float]) -> None:
        self._estimates = estimates
        self._begun = time.monotonic()
        self._count = 0
        self._what = ""
        self._bar = _Bar(sum(estimates)) if sys.stderr.isatty() else None

    def __enter__(self) -> SweepDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, count: int, cell: Cell) -> None:
        """A run begins, the `count`th from 0."""
        self._count = count
        self._what = what_is_run(cell)
        if self._bar:
            self._bar.show(self._what, self._left())

    def end(self, record: Record) -> None:
        """It has ended so."""
        rate = record.derived.images_per_sec
        came = f"{rate:.2f} images/sec" if rate is not None else f"{record.status}: {record.reason}"
        line = f"[{self._count + 1}/{len(self._estimates)}] {self._what}: {came}"
        self._count += 1
        if self._bar:
            self._bar.log(line)
            self._bar.advance(self._estimates[self._count - 1], self._left())
        else:
            warn(f"{line}   ({in_words(self._left())} left)")

    def _left(self) -> float:
        done, left = sum(self._estimates[: self._count]), sum(self._estimates[self._count :])
        took = time.monotonic() - self._begun
        return left * (took / done if done else 1.0)


class _Bar:
    """A bar on a terminal, by the estimated time."""

    def __init__(self, total_seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]} left", markup=False),
        )
        # Drawn between runs only: what is measured must not share its cores with a bar.
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=total_seconds, left="")
        self._progress.start()

    def show(self, what: str, left_seconds: float) -> None:
        self._progress.update(self._task, description=what, left=in_words(left_seconds), refresh=True)

    def log(self, line: str) -> None:
        self._progress.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def advance(self, seconds: float, left_seconds: float) -> None:
        self._progress.update(self._task, advance=seconds, left=in_words(left_seconds), refresh=True)

    def stop(self) -> None:
        self._progress.stop()
