"""What GPUs can do at most, from their data sheets (`results/data/peaks.csv`)."""

from __future__ import annotations

import csv
import functools
import importlib.resources


@functools.cache
def _table() -> tuple[tuple[str, str, float], ...]:
    text = importlib.resources.files("results").joinpath("data", "peaks.csv").read_text(encoding="utf-8")
    return tuple((row["gpu"], row["precision"], float(row["tflops"])) for row in csv.DictReader(text.splitlines()))


def peak_tflops(gpu: str, precision: str) -> float | None:
    """Returns the peak of a GPU, by its driver's name, in 1e12 operations per second; None if it is not listed."""
    return next((tflops for name, kind, tflops in _table() if name in gpu and kind == precision), None)
