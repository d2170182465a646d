"""Rows that differ in one respect alone: what a row is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results.record import Kind, Record, Status
from results.summary import MANAGER, Row, likeness, summarize

DATA = ("data_name", "pipelined_input", "input", "data_set")
PRECISION = ("precision",)


class Siblings:
    """Finds rows by what they have in common.

    Args:
        rows: all there are.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = [row for row in rows if row.images_per_sec is not None]
        self._by: dict[tuple[str, ...], dict[str, list[Row]]] = {}

    def of(self, row: Row, differing_in: tuple[str, ...], wanted: Mapping[str, Any]) -> Row | None:
        """Returns the first valid row that is like `row` but in some fields; those in `wanted` are as given."""
        if differing_in not in self._by:
            index = self._by[differing_in] = {}
            for other in self._rows:
                index.setdefault(likeness(other, differing_in), []).append(other)
        for other in self._by[differing_in].get(likeness(row, differing_in), []):
            if all(other.config.get(name) == value for name, value in wanted.items()):
                return other
        return None


def step_seconds(row: Row) -> float | None:
    """Returns the mean time of a step over all valid repeats."""
    times = [seconds for record in row.valid for seconds in record.measurement.step_seconds]
    return sum(times) / len(times) if times else None


def where_time_goes(row: Row, siblings: Siblings) -> dict[str, float] | None:
    """Returns what a training step's time is made of, in seconds, as far as siblings tell.

    Computing is what the same step takes under `independent`, which exchanges nothing; exchange is the rest of the step
    on synthetic data; input is what real data add. None if the row is not a training step of several devices with such
    a sibling, or of real data with a synthetic one.
    """
    whole = step_seconds(row)
    if whole is None or row.config.get("forward_only"):
        return None
    synthetic = row
    if row.config.get("data_name") != "synthetic":
        found = siblings.of(row, DATA, {"data_name": "synthetic"})
        if found is None:
            return None
        synthetic = found
    without_input = step_seconds(synthetic) or whole
    alone = siblings.of(synthetic, MANAGER, {"variable_update": "independent"}) if row.devices > 1 else synthetic
    if alone is None:
        return None
    computing = step_seconds(alone) or whole
    return {
        "computing": min(computing, without_input, whole),
        "exchange": max(0.0, min(without_input, whole) - computing),
        "input": max(0.0, whole - without_input),
    }


_OF_A_SYNTHETIC_RUN = b'"data_name":"synthetic"'


def synthetic_ratio(record: Record, results: Path) -> float | None:
    """Returns the record's rate over that of its synthetic siblings; None if there is none, or no rate.

    Args:
        record: of a run.
        results: a file of records. Only those of synthetic runs are looked at.
    """
    rate = record.derived.images_per_sec
    if rate is None or record.kind is not Kind.RUN or record.status is not Status.OK or not results.exists():
        return None
    if record.config.get("data_name") == "synthetic":
        return None
    others = []
    with results.open("rb") as lines:
        for line in lines:
            if _OF_A_SYNTHETIC_RUN in line:
                try:
                    others.append(Record.from_json(line))
                except ValueError:
                    continue  # `report` warns of such lines
    rows = summarize([record, *others])
    found = Siblings(rows).of(rows[0], DATA, {"data_name": "synthetic"})
    return None if found is None else rate / found.rate
