"""What is known of a run so far. It is filled as the run goes on, so an interrupted run loses nothing."""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.telemetry import Telemetry
from benchmarks.measure.timing import Phase
from benchmarks.measure.worker_reports import WorkerReport, together
from results.measurement import Measurement

# What this process did before its own run began, and what is no part of that.
_left_out_seconds: list[float] = []


@dataclasses.dataclass
class RunLog:
    """Filled by `benchmarks.run.session`, read by `benchmarks.run.runner`. Units as in `results.record.Measurement`.

    `apart` says whether this is a worker of a cluster that waits for no other; `steps_per_turn`, how many steps it took
    at a time where it measured in turn with another run.
    """

    images_per_step: int
    towers: int
    apart: bool = False
    startup_phases_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    startup_seconds: float | None = None
    telemetry: Telemetry | None = None
    first: Phase = dataclasses.field(default_factory=Phase)
    warmup: Phase = dataclasses.field(default_factory=Phase)
    measured: Phase = dataclasses.field(default_factory=Phase)
    replica_drift: float | None = None
    data_set: str | None = None
    skipped_records: int | None = None
    fp32_losses: Sequence[float] = ()
    peak_host_memory_bytes: int | None = None
    input_stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    placement: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    opened_at: float = 0.0
    steps_per_turn: int | None = None
    weights_are_finite: bool = True
    reports: Sequence[Mapping[str, Any]] = ()

    def started(self, phase: str) -> float:
        """Notes that a phase of the start-up has ended, and returns how old the process is."""
        age = process_age_seconds()
        self.startup_phases_seconds[phase] = age - sum(self.startup_phases_seconds.values())
        return age

    def report(self) -> WorkerReport:
        """Returns what this worker observed, for the others."""
        return WorkerReport(
            measurement=self.own(),
            ends=[at - self.opened_at for at in self.measured.ended_at],
            apart=self.apart,
            staleness=[step.staleness for step in self.measured.tower_steps],
            compute_seconds=self.measured.observed.get("compute_seconds", []),
            placement=self.placement,
            weights_are_finite=self.weights_are_finite,
        )

    def measurement(self) -> Measurement:
        """Returns what was observed until now: by this process, or when all have reported, by all together."""
        if len(self.reports) < 2:
            return self.own()
        return together([WorkerReport.from_message(message) for message in self.reports])

    def own(self) -> Measurement:
        """Returns what this process observed until now."""
        return Measurement(
            images_per_step=self.images_per_step,
            startup_seconds=self.startup_seconds,
            startup_phases_seconds=self.startup_phases_seconds,
            first_step_seconds=self.first.step_seconds[0] if self.first.step_seconds else None,
            warmup_step_seconds=self.warmup.step_seconds,
            step_seconds=self.measured.step_seconds,
            losses=self.measured.losses,
            warmup_losses=[*self.first.losses, *self.warmup.losses],
            peak_host_memory_bytes=self.peak_host_memory_bytes or largest_resident_bytes(),
            replica_drift=self.replica_drift,
            tower_step_seconds=self._tower_step_seconds(),
            staleness_counts=self._staleness_counts(),
            skipped_records=self.skipped_records,
            input_stages=self.input_stages,
            top_1_accuracies=self.measured.observed.get("top_1_accuracies", []),
            top_5_accuracies=self.measured.observed.get("top_5_accuracies", []),
            loss_scales=self.measured.observed.get("loss_scales", []),
            skipped_updates=self.measured.observed.get("skipped_updates", []),
            fp32_losses=self.fp32_losses,
            input_wait_seconds=self.measured.observed.get("input_wait_seconds", []),
            telemetry=[seen] if (seen := self.telemetry and self.telemetry.summary()) else [],
        )

    def _tower_step_seconds(self) -> list[list[float]]:
        """Returns the measured steps of each tower that goes its own way."""
        steps = self.measured.tower_steps
        if not steps:
            return []
        return [[step.seconds for step in steps if step.tower == tower] for tower in range(self.towers)]

    def _staleness_counts(self) -> list[int]:
        """Returns how many measured tower steps were 0, 1, 2 ... updates old."""
        found = Counter(step.staleness for step in self.measured.tower_steps)
        return [found[staleness] for staleness in range(1 + max(found, default=-1))]


def largest_resident_bytes() -> int:
    """Returns the largest resident set of this program until now.

    getrusage(2) would count that of the process which started it, too, until it became this program.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    words = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    return 1024 * (int(words[1]) if words else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def leave_out(seconds: float) -> None:
    """Leaves out so many seconds of this process' age from now on, in which it only looked for what to run."""
    _left_out_seconds.append(seconds)


def process_age_seconds() -> float:
    """Returns how long ago this process was started, from Linux' own count of clock ticks since boot.

    What was left out (`leave_out`) does not count.

    (psutil's creation time is off by up to a second, since it counts from a boot time in whole seconds.)
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    started_seconds = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), after pid and name
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds - sum(_left_out_seconds)
