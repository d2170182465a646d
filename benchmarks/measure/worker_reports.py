"""From what each worker measured to what all of them did, in a window that is common to all. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from results.measurement import Measurement


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """What one worker measured, as it goes over the wire. All times in seconds.

    Attributes:
        measurement: its own.
        ends: when each measured step ended, since this worker learnt that all were ready to measure.
        apart: whether workers go their own way.
        staleness: of each measured step, where they do so and update common weights; else empty.
        compute_seconds: of each measured step, from its begin until the worker had its gradients.
        placement: what is where, as this worker sees it.
        weights_are_finite: whether they were, in the end.
    """

    measurement: Measurement
    ends: Sequence[float]
    apart: bool
    staleness: Sequence[int]
    compute_seconds: Sequence[float]
    placement: Mapping[str, Any]
    weights_are_finite: bool = True

    def to_message(self) -> dict[str, Any]:
        """Returns the report as JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> WorkerReport:
        """Reads what `to_message` wrote."""
        return cls(**{**message, "measurement": Measurement(**message["measurement"])})


def together(reports: Sequence[WorkerReport]) -> Measurement:
    """Returns what all workers did together, in the order of the workers.

    Where they step together, a global step ends when the last worker has ended it. Where they go their own way, as many
    steps as there are workers make a global step, whichever workers took them; what was done before all were ready, or
    after the first worker had taken its last step, is not counted.
    """
    steps = _apart(reports) if reports[0].apart else _in_step(reports)
    first = reports[0].measurement
    every = [report.measurement for report in reports]
    latest = max(every, key=lambda m: m.startup_seconds or 0.0)
    return dataclasses.replace(
        first,
        images_per_step=sum(m.images_per_step or 0 for m in every),
        startup_seconds=latest.startup_seconds,
        startup_phases_seconds=latest.startup_phases_seconds,
        first_step_seconds=_largest([m.first_step_seconds for m in every]),
        warmup_losses=_means([m.warmup_losses for m in every]),
        peak_host_memory_bytes=round(_largest([m.peak_host_memory_bytes for m in every]) or 0),
        replica_drift=_largest([m.replica_drift for m in every]),
        skipped_records=round(sum(skipped)) if (skipped := _known([m.skipped_records for m in every])) else None,
        worker_step_seconds=[list(m.step_seconds) for m in every],
        worker_compute_seconds=[list(report.compute_seconds) for report in reports],
        telemetry=[seen for m in every for seen in m.telemetry],
        **steps,
    )


def _in_step(reports: Sequence[WorkerReport]) -> dict[str, Any]:
    """Returns the global steps that each worker has taken part in."""
    ends = [max(of_one_step) for of_one_step in zip(*(report.ends for report in reports), strict=False)]
    return {
        "step_seconds": [end - begin for begin, end in itertools.pairwise([0.0, *ends])],
        "losses": _means([report.measurement.losses for report in reports]),
        "top_1_accuracies": _known(_means([report.measurement.top_1_accuracies for report in reports])),
        "top_5_accuracies": _known(_means([report.measurement.top_5_accuracies for report in reports])),
        "input_wait_seconds": [max(of_one_step) for of_one_step in zip(*_waits(reports), strict=False)],
    }


def _waits(reports: Sequence[WorkerReport]) -> list[Sequence[float]]:
    return [report.measurement.input_wait_seconds for report in reports]


def _apart(reports: Sequence[WorkerReport]) -> dict[str, Any]:
    """Returns the global steps that workers completed while all of them measured."""
    closed = min((report.ends[-1] for report in reports if report.ends), default=0.0)
    completed = sorted(
        (end, worker, number)
        for worker, report in enumerate(reports)
        for number, end in enumerate(report.ends)
        if 0.0 < end <= closed
    )
    groups = _full_groups(completed, len(reports))
    ends = [group[-1][0] for group in groups]

    def means(name: str) -> list[float | None]:
        """Returns the mean over each global step's parts of something that was observed in every step."""
        found = []
        for group in groups:
            every = [getattr(reports[worker].measurement, name) for _, worker, _ in group]
            values = _known([seen[number] for seen, (_, _, number) in zip(every, group, strict=True) if seen])
            found.append(statistics.fmean(values) if len(values) == len(group) else None)
        return found

    counted = completed[: len(ends) * len(reports)]
    seconds: list[list[float]] = [[] for _ in reports]
    stale: Counter[int] = Counter()
    for _, worker, number in counted:
        seconds[worker].append(reports[worker].measurement.step_seconds[number])
        stale.update(reports[worker].staleness[number : number + 1])
    return {
        "step_seconds": [end - begin for begin, end in itertools.pairwise([0.0, *ends])],
        "losses": means("losses"),
        "top_1_accuracies": _known(means("top_1_accuracies")),
        "top_5_accuracies": _known(means("top_5_accuracies")),
        "input_wait_seconds": _known(means("input_wait_seconds")),
        "tower_step_seconds": seconds,
        "staleness_counts": [stale[updates] for updates in range(1 + max(stale, default=-1))],
    }


def _full_groups(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items) - size + 1, size)]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _largest(values: Sequence[float | None]) -> float | None:
    return max(_known(values), default=None)


def _means(of_workers: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Returns the mean over the workers of each entry; None where one is unknown."""
    means = []
    for values in zip(*of_workers, strict=False):
        known = _known(values)
        means.append(statistics.fmean(known) if len(known) == len(values) else None)
    return means
