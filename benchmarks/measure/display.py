"""What a person sees of a run: lines compatible with tf_cnn_benchmarks on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.console import progress, say
from benchmarks.measure.next_setting import to_try
from benchmarks.measure.result_text import accuracy_line, result_lines
from benchmarks.measure.timing import Phase
from results import step_statistics
from results.measurement import Measurement
from results.record import Record
from results.text import fact_lines

_RULE = "-" * 64
FIRST_STEP = "first step"


def step_line(
    step: int, step_seconds: Sequence[float], images_per_step: int, loss: float, accuracies: Sequence[float] = ()
) -> str:
    """Returns a line in tf_cnn_benchmarks' format, which scripts parse.

    It has the rate so far, its standard error and jitter, and the last step's loss and accuracies.
    """
    rate = step_statistics.rate(step_seconds, images_per_step)
    uncertainty = step_statistics.rate_uncertainty(step_seconds, images_per_step)
    jitter = step_statistics.rate_jitter(step_seconds, images_per_step)
    numbers = "".join(f"\t{number:.3f}" for number in (loss, *accuracies))
    return f"{step}\timages/sec: {rate:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f}){numbers}"


def _numbers(phase: Phase) -> list[float]:
    """Returns the loss of the last step, and its accuracies if they are computed."""
    accuracies = (phase.observed.get(name) for name in ("top_1_accuracies", "top_5_accuracies"))
    return [phase.losses[-1], *(values[-1] for values in accuracies if values)]


class Display:
    """Follows a run; every call is outside the timed part. This one prints the record as JSON, and nothing else.

    Both show progress on stderr. What is measured is drawn between steps, and only on a terminal.

    Args:
        images_per_step: of the steps that `after_step` counts.
    """

    def __init__(self, images_per_step: int = 0) -> None:
        self._images = images_per_step
        self._measures = False

    def only_of(self, task: str, *, rate_too: bool) -> None:
        """The losses that are shown, and with `rate_too` the rates, are those of one worker of several."""

    def add_penalty(self, penalty: Callable[[], float]) -> None:
        """What `penalty` returns before a step belongs to the loss that is printed of it."""

    def start(self, facts: Mapping[str, str]) -> None:
        """Shows what is about to run."""

    def note(self, line: str) -> None:
        """A line on the run, such as where it continues."""

    def phase(self, name: str, steps: int | None) -> None:
        """A phase begins; None: it has no steps. In the first step XLA compiles, so it may take long."""
        self._measures = name == "measuring"
        progress.begin(name, steps if name != FIRST_STEP else None, measured=bool(steps) and name != FIRST_STEP)

    def after_step(self, phase: Phase) -> None:
        """A step has ended."""
        progress.advance(note=f"{self._images / phase.step_seconds[-1]:.1f} images/sec")

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """An evaluation has ended."""

    def stop(self) -> None:
        """No more steps follow."""
        progress.end()

    def finish(self, record: Record) -> None:
        """The run has ended with this record. Prints it on one line of stdout."""
        say(record.to_json())

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """The run has ended; this process measured only its part, and the leader has the whole."""

    def stored(self, record: Record, location: str) -> None:
        """The record is on disk."""

    def sent(self, location: str) -> None:
        """A tracker has the record."""


class TextDisplay(Display):
    """Prints the run's settings, the first step and every `display_every`th, and the result.

    Until the result, a reader that has paused is not waited for: other tasks of a cluster would wait meanwhile.

    Args:
        display_every: number of steps from one line to the next.
        images_per_step: of the steps that `after_step` counts.
        accuracies: whether lines have them.
        loss_type: the name of the loss in the heading.
        hardware: what computes, in words.
    """

    def __init__(
        self,
        *,
        display_every: int,
        images_per_step: int,
        accuracies: bool = False,
        loss_type: str = "base_loss",
        hardware: str = "",
    ) -> None:
        super().__init__(images_per_step)
        self._hardware = hardware
        self._accuracies, self._loss_type = accuracies, loss_type
        self._every = display_every
        self._penalty: Callable[[], float] = lambda: 0.0
        self._penalty_of_next_step = 0.0
        self._started = False
        # What the columns of rate and loss are of, if that is not the whole run.
        self._rate_of = self._loss_of = ""

    def only_of(self, task: str, *, rate_too: bool) -> None:
        """The heading names the worker."""
        self._loss_of = f" of {task}"
        self._rate_of = self._loss_of if rate_too else ""

    def add_penalty(self, penalty: Callable[[], float]) -> None:
        """Computes it once, since TensorFlow prepares what it has not run before; then before each printed step."""
        self._penalty, self._penalty_of_next_step = penalty, penalty()

    def start(self, facts: Mapping[str, str]) -> None:
        """Prints the facts, those of the devices with the hardware."""
        self._started = True
        named = {"Devices": f"{facts['Devices']}: {self._hardware}"} if self._hardware and "Devices" in facts else {}
        for line in fact_lines({**facts, **named}):
            say(line, wait=False)
        say("=" * len(_RULE), wait=False)

    def note(self, line: str) -> None:
        """Prints the line."""
        say(line, wait=False)

    def phase(self, name: str, steps: int | None) -> None:
        """Prints the heading of the steps when measuring begins."""
        super().phase(name, steps)
        if self._measures:
            accuracies = "\ttop_1_accuracy\ttop_5_accuracy" if self._accuracies else ""
            say(f"Step\tImg/sec{self._rate_of}\t{self._loss_type}{self._loss_of}{accuracies}", wait=False)
            self._penalty_of_next_step = self._penalty()

    def after_step(self, phase: Phase) -> None:
        """Prints the line of every `display_every`th step."""
        steps = len(phase.step_seconds)
        super().after_step(phase)
        if self._measures and (steps == 1 or steps % self._every == 0):
            loss, *accuracies = _numbers(phase)
            loss += self._penalty_of_next_step
            say(step_line(steps, phase.step_seconds, self._images, loss, accuracies), wait=False)
        if self._measures and (steps + 1) % self._every == 0:
            self._penalty_of_next_step = self._penalty()

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """Prints its accuracy in tf_cnn_benchmarks' format, which scripts parse."""
        say(accuracy_line(result), wait=False)

    def finish(self, record: Record) -> None:
        """Prints the headline, which scripts parse, and what belongs to it, if there is a rate; then how it ended."""
        if (rate := record.derived.images_per_sec) is not None:
            for line in (_RULE, f"total images/sec: {rate:.2f}", _RULE, *result_lines(record)):
                say(line)
        if self._started:
            say(f"status:         {record.status}")  # an error, with its reason, is printed on stderr

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """Prints this process' own rate."""
        seconds = measurement.step_seconds
        own = step_statistics.rate(seconds, measurement.images_per_step or 0)
        say(_RULE)
        say(f"{task}: {own:.2f} images/sec in {len(seconds)} steps; {leader} has the total and keeps the record")

    def stored(self, record: Record, location: str) -> None:
        """Prints where the record is, and what to try next, if something is obvious."""
        if self._started:
            say(f"record:         {location}")
            if better := to_try(record):
                say(f"try:            {better}")

    def sent(self, location: str) -> None:
        """Prints which tracker has the record, and where."""
        if self._started:
            say(f"sent to:        {location}")
