"""Profiles of steps: TensorFlow's profiler, and a table of what the types of operations took."""

from __future__ import annotations

import csv
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.console import warn
from benchmarks.errors import UsageError
from benchmarks.graph.run_session import RunSession
from benchmarks.tracing import step_trace
from benchmarks.tracing.step_events import Work, by_type, events
from results.text import Table

PRINTED = 10
_NAME = "operations.csv"


def profiled_steps(run: RunSession) -> ProfiledSteps | None:
    """Returns what takes the steps of --profile_steps; None without it, or if an earlier run took them.

    Raises:
        UsageError: the training ends before them.
    """
    if not run.config.traces.profile_steps:
        return None
    first, last = run.config.traces.profile_steps
    if first > run.last_step:
        raise UsageError(f"--profile_steps={first}:{last}: the training ends after step {run.last_step}.")
    if last <= run.epochs.steps_before + 1:
        warn(f"No step is profiled: an earlier run took --profile_steps={first}:{last}.")
        return None
    run.directory.mkdir(parents=True, exist_ok=True)
    return ProfiledSteps(run, first, last)


class ProfiledSteps:
    """Takes the steps from `first` to `last` with TensorFlow's profiler, then as many for the table of operations.

    TensorFlow cannot do both in a step: one tracer excludes another. TensorBoard's plugin finds the profile in the
    run's directory, which also gets the table.
    """

    def __init__(self, run: RunSession, first: int, last: int) -> None:
        self._run, self._first, self._last = run, first, last
        self._profiles = self._is_open = False
        self._traced: list[tf.compat.v1.RunMetadata] = []

    def wants(self, step: int) -> bool:
        """Returns whether it is profiled, or traced for the table."""
        return self._first <= step <= 2 * self._last - self._first + 1

    def take(self, step: int) -> None:
        """Takes the step; the last one of them is followed by the files and the lines."""
        if step <= self._last:
            self._profile(step)
            return
        self._traced.append(tf.compat.v1.RunMetadata())
        self._run.take_unmeasured(step, [], self._traced[-1])
        if not self.wants(step + 1):
            if any(map(step_trace.lacks_kernels, self._traced)):
                warn(step_trace.NO_KERNELS)
            work = by_type([events(metadata) for metadata in self._traced])
            path = self._run.directory / _NAME
            steps = f"{self._last + 1} to {step}" if step > self._last + 1 else f"{step}"
            lines = [f"Operations of step {steps}:", *table(work[:PRINTED])]
            with self._run.log.writing("The table of operations", path):
                with path.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows([Work._fields, *work])
                lines.append(f"All {len(work)} types: {path}")
            if self._run.team.is_leader:
                self._run.display.note(*lines)

    def _profile(self, step: int) -> None:
        if not self._profiles:  # an earlier run may have taken the first ones
            tf.profiler.experimental.start(str(self._run.directory))
            self._profiles = self._is_open = True
        try:
            self._run.take_unmeasured(step, [])
        except BaseException:
            self._is_open = False
            tf.profiler.experimental.stop(save=False)
            raise
        if step == self._last:
            self._close()

    def _close(self) -> None:
        self._is_open = False
        with self._run.log.writing("The profile", self._run.directory):
            tf.profiler.experimental.stop()

    def after_run(self) -> None:
        """Writes the profile of a training that has ended among its steps."""
        if self._is_open:
            self._close()
        is_short = self._profiles and len(self._traced) < self._last - self._first + 1
        if is_short and self._run.team.is_leader:
            warn(
                f"--profile_steps: the training ended before step {2 * self._last - self._first + 1}, so steps are "
                f"missing from the profile or the table of operations in {self._run.directory}."
            )


def table(work: Sequence[Work]) -> list[str]:
    """Returns the lines of a table."""
    numbers = ("ms/step", "share", "per step")
    rows = [
        (f"{w.ms_per_step:.3f}", f"{100 * w.share:.1f} %", f"{w.per_step:g}", w.kind, w.type, w.device) for w in work
    ]
    return Table((*numbers, "kind", "operation", "device"), rows, numbers).text(rule=False)
