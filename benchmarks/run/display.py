"""What a person sees of a run: lines compatible with tf_cnn_benchmarks on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.console import progress, say
from benchmarks.measure.timing import Phase
from benchmarks.run.result_text import result_lines
from results import statistics
from results.measurement import Measurement
from results.record import Record

_RULE = "-" * 64
FIRST_STEP = "first step"


def step_line(
    step: int, step_seconds: Sequence[float], images_per_step: int, loss: float, accuracies: Sequence[float] = ()
) -> str:
    """Returns a line in tf_cnn_benchmarks' format, which scripts parse.

    It has the rate so far, its standard error and jitter, and the last step's loss and accuracies.
    """
    rate = statistics.rate(step_seconds, images_per_step)
    uncertainty = statistics.rate_uncertainty(step_seconds, images_per_step)
    jitter = statistics.rate_jitter(step_seconds, images_per_step)
    numbers = "".join(f"\t{number:.3f}" for number in (loss, *accuracies))
    return f"{step}\timages/sec: {rate:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f}){numbers}"


def total_line(images_per_sec: float) -> str:
    """Returns the headline in tf_cnn_benchmarks' format, which scripts parse."""
    return f"total images/sec: {images_per_sec:.2f}"


class Display:
    """Follows a run; every call is outside the timed part. This one prints the record as JSON, and nothing else.

    Both show progress on stderr. What is measured is drawn between steps, and only on a terminal.

    Args:
        images_per_step: of the steps that `after_step` counts.
    """

    def __init__(self, images_per_step: int = 0) -> None:
        self._images = images_per_step

    def start(self, facts: Mapping[str, str]) -> None:
        """Shows what is about to run."""

    def phase(self, name: str, steps: int | None) -> None:
        """A phase begins; None: it has no steps. In the first step XLA compiles, so it may take long."""
        progress.begin(name, steps if name != FIRST_STEP else None, measured=bool(steps) and name != FIRST_STEP)

    def after_step(self, phase: Phase) -> None:
        """A step has ended."""
        progress.advance(note=f"{self._images / phase.step_seconds[-1]:.1f} images/sec")

    def stop(self) -> None:
        """No more steps follow."""
        progress.end()

    def finish(self, record: Record) -> None:
        """The run has ended with this record. Prints it on one line of stdout."""
        say(record.to_json())

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """The run has ended; this process measured only its part, and the leader has the whole."""

    def stored(self, location: str) -> None:
        """The record is on disk."""


class TextDisplay(Display):
    """Prints the run's settings, the first step and every `display_every`th, and the result.

    Until the result, a reader that has paused is not waited for: other tasks of a cluster would wait meanwhile.
    """

    def __init__(self, *, display_every: int, images_per_step: int, accuracies: bool = False) -> None:
        super().__init__(images_per_step)
        self._accuracies = accuracies
        self._every = display_every
        self._started = self._prints_steps = False

    def start(self, facts: Mapping[str, str]) -> None:
        """Prints the facts."""
        self._started = True
        width = max(map(len, facts), default=0) + 1
        for name, value in facts.items():
            say(f"{name + ':':{width}} {value}", wait=False)
        say("=" * len(_RULE), wait=False)

    def phase(self, name: str, steps: int | None) -> None:
        """Prints the heading of the steps when measuring begins."""
        self._prints_steps = name == "measuring"
        if self._prints_steps:
            heading = "Step\tImg/sec\tloss" + ("\ttop_1_accuracy\ttop_5_accuracy" if self._accuracies else "")
            say(heading, wait=False)
        super().phase(name, steps)

    def after_step(self, phase: Phase) -> None:
        """Prints the line of every `display_every`th step."""
        steps = len(phase.step_seconds)
        super().after_step(phase)
        if self._prints_steps and (steps == 1 or steps % self._every == 0):
            shown = ("top_1_accuracies", "top_5_accuracies")
            accuracies = [phase.observed[name][-1] for name in shown if name in phase.observed]
            say(step_line(steps, phase.step_seconds, self._images, phase.losses[-1], accuracies), wait=False)

    def finish(self, record: Record) -> None:
        """Prints the headline and what belongs to it, if the run has a rate; then how it ended."""
        if record.derived.images_per_sec is not None:
            for line in (_RULE, total_line(record.derived.images_per_sec), _RULE, *result_lines(record)):
                say(line)
        if self._started:
            say(f"status:         {record.status}{' - ' + record.reason if record.reason else ''}")

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """Prints this process' own rate."""
        seconds = measurement.step_seconds
        own = statistics.rate(seconds, measurement.images_per_step or 0)
        say(_RULE)
        say(f"{task}: {own:.2f} images/sec in {len(seconds)} steps; {leader} has the total and keeps the record")

    def stored(self, location: str) -> None:
        """Prints where the record is."""
        if self._started:
            say(f"record:         {location}")
