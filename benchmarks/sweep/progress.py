"""What the user sees of a sweep: the grid before it, and the progress on stderr. No TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.console import in_words, progress, warn
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
    """Shows the runs on stderr: a line for each that has ended; on a terminal also the one that runs.

    Nothing is drawn while a run measures: it must not share its cores with a bar.

    Args:
        estimates: seconds of each run; the time left is scaled by how long the finished runs really took.
        clock: seconds, monotonic.
    """

    def __init__(self, estimates: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._estimates, self._clock, self._begun = estimates, clock, clock()
        self._count = 0
        self._what = ""

    def begin(self, cell: Cell) -> None:
        """Shows that the next run begins."""
        self._what = what_is_run(cell)
        progress.begin(f"[{self._count + 1}/{len(self._estimates)}] {self._what}, {self._left()} left", measured=True)

    def end(self, record: Record) -> None:
        """Shows the result of the run."""
        progress.end()
        self._count += 1
        rate = record.derived.images_per_sec
        result = f"{rate:.2f} images/sec" if rate is not None else f"{record.status}: {record.reason}"
        warn(f"[{self._count}/{len(self._estimates)}] {self._what}: {result}   ({self._left()} left)")

    def _left(self) -> str:
        done, left = sum(self._estimates[: self._count]), sum(self._estimates[self._count :])
        return in_words(left * ((self._clock() - self._begun) / done if done else 1.0))
