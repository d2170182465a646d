"""What a person sees of a run: the peer-compatible lines on stdout, progress on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.console import TerminalProgress, say
from benchmarks.measure.timing import Phase
from benchmarks.microbench.roofline import mfu_lines
from benchmarks.run.result_text import resource_lines, startup_line, step_lines
from results import statistics
from results.measurement import Measurement
from results.record import Record

ACCURACIES = ("top_1_accuracies", "top_5_accuracies")
_RULE = "-" * 64


def step_line(
    step: int, step_seconds: Sequence[float], images_per_step: int, loss: float, accuracies: Sequence[float] = ()
) -> str:
    """Returns a line in tf_cnn_benchmarks' format: rate so far, its standard error and jitter, and the last loss.

    Accuracies of the last step follow, if they are asked for.
    """
    return "%i\timages/sec: %.1f +/- %.1f (jitter = %.1f)\t%.3f" % (  # noqa: UP031 - scripts parse this format
        step,
        statistics.rate(step_seconds, images_per_step),
        statistics.rate_uncertainty(step_seconds, images_per_step),
        statistics.rate_jitter(step_seconds, images_per_step),
        loss,
    ) + "".join("\t%.3f" % accuracy for accuracy in accuracies)  # noqa: UP031 - as above


def total_line(images_per_sec: float) -> str:
    """Returns the headline in tf_cnn_benchmarks' format."""
    return "total images/sec: %.2f" % images_per_sec  # noqa: UP031 - scripts parse this format


def _asynchronous_lines(measurement: Measurement) -> list[str]:
    """Returns how stale gradients were, and each tower's share of the steps, where towers went their own way."""
    counts, towers = measurement.staleness_counts, measurement.tower_step_seconds
    if not counts:
        return []
    steps = sum(counts)
    who = "worker" if measurement.worker_step_seconds else "tower"
    stale = ", ".join(f"{count / steps:.0%} {staleness}" for staleness, count in enumerate(counts) if count)
    shares = ", ".join(f"{len(seconds) / steps:.0%}" for seconds in towers)
    return [f"staleness:      {stale} updates behind", f"{who} steps:   {' ' * (who == 'tower')}{shares} per {who}"]


def _cluster_lines(record: Record) -> list[str]:
    """Returns each worker's own rate, the slowest, and what went over the network, of a run of several processes."""
    lines, derived = [], record.derived
    steps = record.measurement.worker_step_seconds
    if len(steps) > 1:
        images = (record.measurement.images_per_step or 0) // len(steps)
        rates = ", ".join(f"{statistics.rate(seconds, images):.2f}" for seconds in steps if seconds)
        lines.append(f"workers:        {rates} images/sec")
    if derived.straggler_ratio is not None:
        what = "a step" if record.measurement.tower_step_seconds else "its gradients"
        lines.append(
            f"slowest:        worker {derived.slowest_worker} takes {derived.straggler_ratio:.2f} x as long to {what} "
            "as the others"
        )
    sent = record.placement.get("sent_per_step") or {}
    if record.config.get("cluster") and sent.get("total_bytes"):
        words = f"network:        {sent['total_bytes'] / 1e6:.1f} MB between processes per step"
        if sent.get("busiest_ps_bytes") and derived.step_ms_p50:
            mean_seconds = sum(record.measurement.step_seconds) / len(record.measurement.step_seconds)
            words += f", {sent['busiest_ps_bytes'] / mean_seconds / 1e6:.0f} MB/s at the busiest parameter server"
        lines.append(words)
    return lines


def _input_lines(record: Record) -> list[str]:
    """Returns what the input cost, where images were read, and how many were classified rightly."""
    derived, measurement, lines = record.derived, record.measurement, []
    if derived.input_wait_share is not None:
        lines.append(f"input:          {derived.input_wait_share:.1%} of the time was spent waiting for images")
    if derived.synthetic_ratio is not None:
        lines.append(f"real/synthetic: {derived.synthetic_ratio:.3f}")
    if measurement.top_1_accuracies:
        top_1, top_5 = measurement.top_1_accuracies[-1], measurement.top_5_accuracies[-1]
        lines.append(f"accuracy:       {top_1:.3f} top 1, {top_5:.3f} top 5, of the last step's images")
    return lines


class Display(Protocol):
    """Follows a run. Every call is outside the timed part."""

    def start(self, facts: Mapping[str, str]) -> None:
        """Says what is about to run."""

    def phase(self, name: str, steps: int | None) -> None:
        """A phase begins; it has that many steps, or None if that is not known."""

    def after_step(self, phase: Phase) -> None:
        """A step has ended."""

    def stop(self) -> None:
        """No more steps will come, for whatever reason."""

    def finish(self, record: Record) -> None:
        """The run has ended: here is what came of it."""

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """The run has ended, and this process was one of many: here is what it measured; the leader has the rest."""

    def stored(self, where: str) -> None:
        """The record is on disk."""


class JsonDisplay:
    """Prints the record as one line of JSON on stdout, nothing else."""

    def start(self, facts: Mapping[str, str]) -> None:
        """Prints nothing."""

    def phase(self, name: str, steps: int | None) -> None:
        """Prints nothing."""

    def after_step(self, phase: Phase) -> None:
        """Prints nothing."""

    def stop(self) -> None:
        """Prints nothing."""

    def finish(self, record: Record) -> None:
        """Prints the record."""
        say(record.to_json())

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """Prints nothing."""

    def stored(self, where: str) -> None:
        """Prints nothing."""


class TextDisplay:
    """Prints what is run, a line every few steps, and the result.

    Args:
        display_every: steps between lines; the first is always shown.
        images_per_step: over all devices.
        terminal: whether to show progress on stderr between the lines.
        accuracies: whether steps have accuracies.
    """

    def __init__(self, *, display_every: int, images_per_step: int, terminal: bool, accuracies: bool = False) -> None:
        self._accuracies = accuracies
        self._every = display_every
        self._images = images_per_step
        self._progress = TerminalProgress() if terminal else None
        self._started = self._prints_steps = False

    def start(self, facts: Mapping[str, str]) -> None:
        """Prints the facts, one per line."""
        self._started = True
        width = max(map(len, facts), default=0) + 1
        for name, value in facts.items():
            say(f"{name + ':':{width}} {value}")
        say("=" * len(_RULE))

    def phase(self, name: str, steps: int | None) -> None:
        """Prints the heading of the steps when measuring begins."""
        self._prints_steps = name == "measuring"
        if self._prints_steps:
            self._print("Step\tImg/sec\tloss" + ("\ttop_1_accuracy\ttop_5_accuracy" if self._accuracies else ""))
        if self._progress:
            self._progress.begin(name, steps)

    def after_step(self, phase: Phase) -> None:
        """Prints a line if it is time for one."""
        steps = len(phase.step_seconds)
        if self._progress:
            self._progress.show(steps, self._images / phase.step_seconds[-1])
        if self._prints_steps and (steps == 1 or steps % self._every == 0):
            accuracies = [phase.observed[name][-1] for name in ACCURACIES if name in phase.observed]
            self._print(step_line(steps, phase.step_seconds, self._images, phase.losses[-1], accuracies))

    def stop(self) -> None:
        """Takes the progress off the terminal."""
        if self._progress:
            self._progress.clear()

    def finish(self, record: Record) -> None:
        """Prints the headline and what it rests on, if the run may state one; then how it ended."""
        derived = record.derived
        if derived.images_per_sec is not None:
            for line in (_RULE, total_line(derived.images_per_sec), _RULE):
                say(line)
            if derived.images_per_sec_low is not None:
                low, high = derived.images_per_sec_low, derived.images_per_sec_high
                say(f"95 % interval:  {low:.2f} to {high:.2f} images/sec")
            say(f"per device:     {derived.images_per_sec_per_device:.2f} images/sec")
            for line in [
                *step_lines(record),
                *_cluster_lines(record),
                *_asynchronous_lines(record.measurement),
                *_input_lines(record),
                *mfu_lines(record),
                *resource_lines(record),
                startup_line(record.measurement),
            ]:
                say(line)
        if self._started:
            say(f"status:         {record.status}{' - ' + record.reason if record.reason else ''}")

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """Prints this process' own rate."""
        seconds = measurement.step_seconds
        own = statistics.rate(seconds, measurement.images_per_step or 0)
        say(_RULE)
        say(f"{task}: {own:.2f} images/sec in {len(seconds)} steps; {leader} has the total and keeps the record")

    def stored(self, where: str) -> None:
        """Prints where the record is."""
        if self._started:
            say(f"record:         {where}")

    def _print(self, line: str) -> None:
        self.stop()
        say(line)
