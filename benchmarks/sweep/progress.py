"""What the user sees of a sweep: the grid before it, and the progress on stderr. No TensorFlow."""

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
    """Returns the grid as lines: each combination with its estimated time, or why it cannot run."""
    common = set.intersection(*(set(cell.arguments) for cell in cells)) if len(cells) > 1 else set()
    lines = [f"All: {' '.join(word for word in cells[0].arguments if word in common)}"] if common else []
    for number, (cell, seconds) in enumerate(zip(cells, estimates, strict=True), start=1):
        if cell.config is None:
            what = f"cannot run: {cell.why_not}"
        elif cell.same_as_before:
            what = "same as an earlier one"
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
    """Returns a cell in few words; as flags, if it has no configuration."""
    return " ".join(cell.arguments) if cell.config is None else in_few_words(cell.config.to_dict())


def in_few_words(config: Mapping[str, Any]) -> str:
    """Returns a record's configuration in few words."""
    devices, batch = config.get("num_devices"), config.get("batch_per_device")
    return f"{config.get('model')}, {manager_of(config)}, {devices} x {batch}"


class SweepDisplay:
    """Shows the runs on stderr: on a terminal a bar with the time that is left, otherwise a line per run.

    Args:
        estimates: seconds of each run; the time left is scaled by how long the finished runs really took.
    """

    def __init__(self, estimates: Sequence[float]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._estimates = estimates
        self._begun = time.monotonic()
        self._count = 0
        self._what = ""
        self._is_terminal = sys.stderr.isatty()
        # Redrawn between runs only: a measurement must not share its cores with a bar.
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]} left", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("", total=sum(estimates), left="")

    def __enter__(self) -> SweepDisplay:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal:
            self._bar.stop()

    def begin(self, cell: Cell) -> None:
        """Shows that the next run begins."""
        self._what = what_is_run(cell)
        self._bar.update(self._task, description=self._what, left=self._left(), refresh=True)

    def end(self, record: Record) -> None:
        """Shows the result of the run."""
        rate = record.derived.images_per_sec
        result = f"{rate:.2f} images/sec" if rate is not None else f"{record.status}: {record.reason}"
        line = f"[{self._count + 1}/{len(self._estimates)}] {self._what}: {result}"
        self._count += 1
        if self._is_terminal:
            self._bar.console.print(line, highlight=False, soft_wrap=True, markup=False)
        else:
            warn(f"{line}   ({self._left()} left)")
        self._bar.update(self._task, advance=self._estimates[self._count - 1], left=self._left(), refresh=True)

    def _left(self) -> str:
        done, left = sum(self._estimates[: self._count]), sum(self._estimates[self._count :])
        elapsed = time.monotonic() - self._begun
        return in_words(left * (elapsed / done if done else 1.0))
