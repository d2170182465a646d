"""What is known of a run so far. It is filled during the run, so an interrupted run loses nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks.console import warn, warn_of_exception
from benchmarks.errors import BenchError, UnsavedError, headline
from benchmarks.machine import linux
from benchmarks.measure.telemetry import Telemetry
from benchmarks.measure.timing import Phase
from benchmarks.measure.worker_reports import WorkerReport, together
from results import placement_tables
from results.measurement import STEP_NUMBERS, Measurement

# Time that this process spent before its own run began.
_left_out_seconds: list[float] = []


@dataclasses.dataclass
class RunLog:
    """Filled during a run; `benchmarks.run.run_record` makes the record of it. Units are those of `Measurement`.

    Attributes:
        images_per_step: images of a step of this process.
        towers: of this process.
        asynchronous: whether this is a worker of a cluster that waits for no other.
        data_set: identifies the data set that is read; None if none is.
        unmeasured, unmeasured_steps: the steps between the others that are not measured, and their numbers.
        latest: the phase of the last step.
        opened_at: when measuring began, by the clock of the steps, which stops while nothing is measured.
        steps_per_slice: steps per time slice, if the run was interleaved with another.
        reports: of all workers, once they have met.
        doubts: sentences for the record on how the tasks of a cluster differ.
        unsaved: why the last checkpoint, or another file, could not be written, by what it is.
        traced_always: whether steps are traced after the measured ones even if there is only one tower.
    """

    images_per_step: int
    towers: int
    asynchronous: bool = False
    startup_phases_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    telemetry: Telemetry | None = None
    first: Phase = dataclasses.field(default_factory=Phase)
    warmup: Phase = dataclasses.field(default_factory=Phase)
    measured: Phase = dataclasses.field(default_factory=Phase)
    unmeasured: Phase = dataclasses.field(default_factory=Phase)
    unmeasured_steps: list[int] = dataclasses.field(default_factory=list)
    latest: Phase = dataclasses.field(default_factory=Phase)
    numbers: Measurement = Measurement(images_per_step=None)
    data_set: str | None = None
    placement: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    opened_at: float = 0.0
    steps_per_slice: int | None = None
    weights_are_finite: bool = True
    reports: Sequence[WorkerReport] = ()
    traced_always: bool = False
    doubts: Sequence[str] = ()
    unsaved: dict[str, UnsavedError] = dataclasses.field(default_factory=dict)

    def started(self, phase: str) -> float:
        """Notes that a phase of the start-up has ended, and returns the age of the process."""
        age = process_age_seconds()
        self.startup_phases_seconds[phase] = age - sum(self.startup_phases_seconds.values())
        return age

    def observe(self, **numbers: Any) -> None:
        """Notes numbers of the run by the names of their fields in `Measurement`."""
        self.numbers = replace(self.numbers, **numbers)

    @contextlib.contextmanager
    def writing(self, what: str, path: str | Path) -> Iterator[None]:
        """Notes and prints that `what` could not be written to a path, where it would end the run: that stays valid."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            reason = getattr(error, "strerror", None) or headline(error)
            to_do = "Free space there, or pass another path"
            if not (isinstance(error, (OSError, BenchError)) or hasattr(error, "error_code")):  # TensorFlow's have one
                warn_of_exception()
                to_do = "If there is space for it, report this with the traceback above"
            sentence = f"{what} could not be written to {path}: {reason}. {to_do}."
            self.unsaved[what] = UnsavedError(sentence)
            warn(sentence)

    def report(self) -> WorkerReport:
        """Returns what this worker observed, for the others."""
        return WorkerReport(
            measurement=self.own(),
            ends=[at - self.opened_at for at in self.measured.ended_at],
            asynchronous=self.asynchronous,
            staleness=[step.staleness for step in self.measured.tower_steps],
            compute_seconds=self.measured.observed.get("worker_compute_seconds", []),
            placement=self.placement,
            weights_are_finite=self.weights_are_finite,
        )

    def measurement(self) -> Measurement:
        """Returns what was observed until now: by this process, or by all workers once all have reported."""
        if len(self.reports) < 2:
            return self.own()
        return together(self.reports)

    def placement_of_all(self) -> Mapping[str, Any]:
        """Returns the placement as this process sees it, or as all workers together see it once they have reported."""
        if not self.reports:
            return self.placement
        return placement_tables.merged([report.placement for report in self.reports])

    def own(self) -> Measurement:
        """Returns what this process observed until now."""
        measured, by_tower = self.measured, range(self.towers) if self.measured.tower_steps else ()
        stale = Counter(step.staleness for step in measured.tower_steps)
        observed: dict[str, Any] = {k: v for k, v in measured.observed.items() if STEP_NUMBERS[k] != "each"}
        return replace(
            self.numbers,
            images_per_step=self.images_per_step,
            startup_phases_seconds=self.startup_phases_seconds,
            first_step_seconds=self.first.step_seconds[0] if self.first.step_seconds else None,
            warmup_step_seconds=self.warmup.step_seconds,
            step_seconds=measured.step_seconds,
            losses=measured.losses,
            warmup_losses=[*self.first.losses, *self.warmup.losses],
            unmeasured_losses=self.unmeasured.losses,
            unmeasured_steps=self.unmeasured_steps,
            peak_host_memory_bytes=self.numbers.peak_host_memory_bytes or largest_resident_bytes(),
            tower_step_seconds=[[s.seconds for s in measured.tower_steps if s.tower == tower] for tower in by_tower],
            staleness_counts=[stale[updates] for updates in range(1 + max(stale, default=-1))],
            telemetry=[seen] if (seen := self.telemetry and self.telemetry.summary()) else [],
            **observed,
        )


def largest_resident_bytes() -> int:
    """Returns the largest resident set of this program until now.

    getrusage(2) would include that of the parent process between fork and exec.
    """
    peak = linux.table(Path("/proc/self/status")).get("VmHWM")
    return 1024 * (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def leave_out(seconds: float) -> None:
    """Subtracts seconds from this process' age from now on: it spent them looking for what to run."""
    _left_out_seconds.append(seconds)


def process_age_seconds() -> float:
    """Returns how long ago this process was started, by Linux' clock ticks since boot, less what `leave_out` got.

    (psutil's creation time is off by up to a second, since it counts from a boot time in whole seconds.)
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    started_seconds = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), after pid and name
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_seconds - sum(_left_out_seconds)
