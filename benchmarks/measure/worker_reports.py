"""Combines what the workers of a cluster measured, in a time window common to all. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from results.measurement import RUN_NUMBERS, STEP_NUMBERS, Measurement


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What one worker measured, as its fields are sent to the others. All times are in seconds.

    Attributes:
        measurement: its own.
        ends: end of each measured step, counted from the moment when all workers were ready to measure.
        asynchronous: whether workers wait for no other.
        staleness: of each measured step of asynchronous workers with common weights; otherwise empty.
        compute_seconds: of each measured step, from its start until the worker had its gradients.
        placement: as this worker sees it.
        weights_are_finite: at the end of the run.
    """

    measurement: Measurement
    ends: Sequence[float]
    asynchronous: bool
    staleness: Sequence[int]
    compute_seconds: Sequence[float]
    placement: Mapping[str, Any]
    weights_are_finite: bool = True

    def to_message(self) -> dict[str, Any]:
        """Returns the report for the other workers."""
        return {**vars(self), "measurement": msgspec.structs.asdict(self.measurement)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorkerReport:
        """Reads what `to_message` returns."""
        return cls(**{**message, "measurement": Measurement(**message["measurement"])})


def together(reports: Sequence[WorkerReport]) -> Measurement:
    """Returns the measurement of all workers together, in the order of the workers.

    If workers step together, a global step ends when the last worker has ended it. If they are asynchronous, every
    `len(reports)` completed steps make a global step, whichever workers took them; steps that ended before all workers
    were ready, or after the first worker had taken its last step, do not count. Until then, a step in progress counts
    by the share of its time: otherwise ten steps of unequal workers would seem 3 to 8 % slower than they are.
    """
    every = [report.measurement for report in reports]
    latest = max(every, key=lambda m: m.startup_seconds or 0.0)
    of_run: dict[str, Any] = {}
    for name, rule in RUN_NUMBERS.items():
        known = _known([getattr(m, name) for m in every])
        of_run[name] = (max(known) if rule == "max" else sum(known)) if known else None
    return msgspec.structs.replace(
        every[0],
        images_per_step=sum(m.images_per_step or 0 for m in every),
        startup_seconds=latest.startup_seconds,
        startup_phases_seconds=latest.startup_phases_seconds,
        warmup_losses=_means([m.warmup_losses for m in every]),
        unmeasured_losses=_means([m.unmeasured_losses for m in every]),
        worker_step_seconds=[list(m.step_seconds) for m in every],
        worker_compute_seconds=[list(report.compute_seconds) for report in reports],
        tower_compute_seconds=[list(seconds) for m in every for seconds in m.tower_compute_seconds],
        telemetry=[process for m in every for process in m.telemetry],
        **of_run,
        **(_asynchronous(reports) if reports[0].asynchronous else _in_step(reports)),
    )


def _in_step(reports: Sequence[WorkerReport]) -> dict[str, Any]:
    """Returns the global steps in which every worker took part."""
    ends = [max(of_one_step) for of_one_step in zip(*(report.ends for report in reports), strict=False)]
    found: dict[str, Any] = {
        "step_seconds": [end - begin for begin, end in itertools.pairwise([0.0, *ends])],
        "losses": _means([report.measurement.losses for report in reports]),
    }
    for name, rule in STEP_NUMBERS.items():
        of_workers = [getattr(report.measurement, name) for report in reports]
        if rule == "mean":
            found[name] = _known(_means(of_workers))
        elif rule == "max":
            found[name] = [max(of_one_step) for of_one_step in zip(*of_workers, strict=False)]
    return found


def _asynchronous(reports: Sequence[WorkerReport]) -> dict[str, Any]:
    """Returns the global steps that workers completed while all of them measured."""
    import numpy as np

    closed = min((report.ends[-1] for report in reports if report.ends), default=0.0)
    completed = sorted(
        (end, worker, number)
        for worker, report in enumerate(reports)
        for number, end in enumerate(report.ends)
        if 0.0 < end <= closed
    )
    size = len(reports)
    groups = [completed[begin : begin + size] for begin in range(0, len(completed) - size + 1, size)]
    at = [0.0, *(end for end, _, _ in completed)]
    own = [[0.0, *(end for end in report.ends if end > 0.0)] for report in reports]
    taken = np.sum([np.interp(at, ends, range(len(ends))) for ends in own], axis=0)
    ends = np.interp(size * np.arange(len(groups) + 1), taken, at).tolist()

    def means(name: str) -> list[float | None]:
        of_workers = [getattr(report.measurement, name) for report in reports]
        parts = [[of_workers[worker][n] if of_workers[worker] else None for _, worker, n in group] for group in groups]
        return [_mean(values) for values in parts]

    seconds: list[list[float]] = [[] for _ in reports]
    stale: Counter[int] = Counter()
    for _, worker, number in itertools.chain.from_iterable(groups):
        seconds[worker].append(reports[worker].measurement.step_seconds[number])
        stale.update(reports[worker].staleness[number : number + 1])
    return {
        "step_seconds": [end - begin for begin, end in itertools.pairwise(ends)],
        "losses": means("losses"),
        **{name: _known(means(name)) for name, rule in STEP_NUMBERS.items() if rule in ("mean", "max")},
        "tower_step_seconds": seconds,
        "staleness_counts": [stale[updates] for updates in range(1 + max(stale, default=-1))],
    }


def _known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if len(known) == len(values) else None


def _means(of_workers: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [_mean(values) for values in zip(*of_workers, strict=False)]
