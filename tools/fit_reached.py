"""Fits the shares of `results/data/reached.csv` to published rates of several devices: `python -m tools.fit_reached`.

For each share, in turn, the value of a coarse grid is taken with which the mean absolute error is least, until none
changes: of all testbeds of the guide, and without each of them. An error above 35 % counts as 35 %, since a few rates
are limited by what the model does not have. The ends, which make intervals, are not fitted. It takes minutes.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.devices.start_tensorflow import start
from benchmarks.predict import judge
from benchmarks.predict.hosts import Reached, reached
from benchmarks.predict.prediction import Subject, step
from benchmarks.process.tensorflow_setup import Runtime
from results.environment import published_table
from results.intervals import LEAST_SPREAD

GRID = {
    "pcie": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "nccl_1": (0.1, 0.15, 0.2, 0.25, 0.3, 0.4),
    "network": (0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
    "memory": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4),
    "board": (0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 1.0),
    "spread": (0.0, 0.005, 0.01, 0.015, LEAST_SPREAD),  # as much as equal processes differ elsewhere in the suite
}
# Where the rates do not tell, as those of the network without the testbed that has several hosts.
START = dataclasses.replace(reached(), pcie=0.7, nccl_1=0.25, network=0.4, memory=0.2, board=0.96, spread=0.01)
_LARGEST = 0.3  # of the logarithm


# A testbed, a rate that was published of it, in images/s, and what predicts that.
Case = tuple[str, float, Subject]


def fit(cases: Sequence[Case]) -> Reached:
    """Returns the shares with which the mean absolute error is least."""

    def error(published: float, subject: Subject, shares: Reached) -> float:
        rate = subject.images / step(subject, shares).end_seconds
        return min(_LARGEST, abs(math.log(rate / published)))

    @functools.cache
    def mean_error(shares: Reached) -> float:
        return sum(error(published, subject, shares) for _, published, subject in cases) / len(cases)

    best = START
    while True:
        before = best
        for name, values in GRID.items():
            candidates = [best, *(dataclasses.replace(best, **{name: value}) for value in values)]
            best = min(candidates, key=mean_error)
        if best == before:
            return best


def cases() -> list[Case]:
    """Returns the rates of the guide's testbeds."""
    return [(bed, rate.figure.images_per_sec, subject) for rate, bed, subject in judge.subjects() if bed]


def main() -> None:
    """Writes the table."""
    start(Runtime())
    found = cases()
    beds = sorted({bed for bed, *_ in found})
    columns = {"usual": fit(found)}
    columns |= {f"without_{bed}": fit([case for case in found if case[0] != bed]) for bed in beds}
    rows = [
        {**row, **{column: f"{getattr(shares, row['name']):g}" for column, shares in columns.items()}}
        for row in published_table("reached")
    ]
    with (Path(__file__).parent.parent / "results" / "data" / "reached.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
