"""What a person sees of a run: lines compatible with tf_cnn_benchmarks on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.console import progress, say
from benchmarks.measure.next_setting import to_try
from benchmarks.measure.result_text import accuracy_line, result_lines
from benchmarks.measure.timing import Phase
from results import step_statistics
from results.measurement import Measurement
from results.record import Record
from results.text import as_rate, fact_lines

_RULE = "-" * 64
FIRST_STEP = "first step"


def _step_line(phase: Phase, images_per_step: int, penalty: float) -> str:
    """Returns the line of the last step in tf_cnn_benchmarks' format, which scripts parse.

    It has the rate so far, its standard error and jitter, and the step's loss with the penalty, and its accuracies if
    they are computed.
    """
    rate = step_statistics.rate(phase.step_seconds, images_per_step)
    uncertainty = step_statistics.rate_uncertainty(phase.step_seconds, images_per_step)
    jitter = step_statistics.rate_jitter(phase.step_seconds, images_per_step)
    accuracies = (phase.observed.get(name) for name in ("top_1_accuracies", "top_5_accuracies"))
    numbers = [phase.losses[-1] + penalty, *(values[-1] for values in accuracies if values)]
    shown = "".join(f"\t{number:.3f}" for number in numbers)
    return f"{len(phase.step_seconds)}\timages/sec: {rate:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f}){shown}"


class Display:
    """Follows a run; every call is outside the timed part.

    It prints the settings, the first step and every `display_every`th, and the result; or nothing but the record as
    JSON. Both show progress on stderr: what is measured is drawn between steps, and only on a terminal. Until the
    result, a reader that has paused is not waited for: other tasks of a cluster would wait meanwhile.

    Args:
        images_per_step: of the steps that `after_step` counts.
        display_every: number of steps from one line to the next; 0: the record alone is printed.
        accuracies: whether lines have them.
        loss_type: the name of the loss in the heading.
        hardware: what computes, in words.
    """

    def __init__(
        self,
        images_per_step: int = 0,
        *,
        display_every: int = 0,
        accuracies: bool = False,
        loss_type: str = "base_loss",
        hardware: str = "",
    ) -> None:
        self._images, self._every = images_per_step, display_every
        self._hardware = hardware
        self._accuracies, self._loss_type = accuracies, loss_type
        self._penalty: Callable[[], float] = lambda: 0.0
        self._penalty_of_next_step = 0.0
        self._measures = self._has_started = False
        # What the columns of rate and loss are of, if that is not the whole run.
        self._rate_of = self._loss_of = ""

    def only_of(self, task: str, *, rate_too: bool) -> None:
        """The losses that are shown, and with `rate_too` the rates, are those of one worker of several."""
        self._loss_of = f" of {task}"
        self._rate_of = self._loss_of if rate_too else ""

    def add_penalty(self, penalty: Callable[[], float]) -> None:
        """What `penalty` returns before a step belongs to the loss that is printed of it.

        It is computed once now, since TensorFlow prepares what it has not run before; then before each printed step.
        """
        if self._every:
            self._penalty, self._penalty_of_next_step = penalty, penalty()

    def start(self, facts: Mapping[str, str]) -> None:
        """Prints what is about to run, with the hardware beside the devices."""
        self._has_started = bool(self._every)
        named = {"Devices": f"{facts['Devices']}: {self._hardware}"} if self._hardware and "Devices" in facts else {}
        self.note(*fact_lines({**facts, **named}), "=" * len(_RULE))

    def note(self, *lines: str) -> None:
        """Prints lines on the run, such as where it continues."""
        if self._every:
            say(*lines, wait=False)

    def phase(self, name: str, steps: int | None) -> None:
        """A phase begins; None: it has no steps. In the first step XLA compiles, so it may take long."""
        self._measures = name == "measuring"
        progress.begin(name, steps if name != FIRST_STEP else None, measured=bool(steps) and name != FIRST_STEP)
        if self._measures:
            accuracies = "\ttop_1_accuracy\ttop_5_accuracy" if self._accuracies else ""
            self.note(f"Step\tImg/sec{self._rate_of}\t{self._loss_type}{self._loss_of}{accuracies}")
            self._penalty_of_next_step = self._penalty()

    def after_step(self, phase: Phase) -> None:
        """A step has ended; prints its line if it is one of those that are printed."""
        steps = len(phase.step_seconds)
        progress.advance(note=f"{self._images / phase.step_seconds[-1]:.1f} images/s")
        if not (self._measures and self._every):
            return
        if steps == 1 or steps % self._every == 0:
            self.note(_step_line(phase, self._images, self._penalty_of_next_step))
        if (steps + 1) % self._every == 0:
            self._penalty_of_next_step = self._penalty()

    def evaluated(self, result: Mapping[str, Any]) -> None:
        """Prints the accuracy of an evaluation in tf_cnn_benchmarks' format, which scripts parse."""
        self.note(accuracy_line(result))

    def stop(self) -> None:
        """No more steps follow."""
        progress.end()

    def finish(self, record: Record) -> None:
        """Prints the record on one line; or the headline, which scripts parse, if there is a rate, and the status."""
        if not self._every:
            say(record.to_json())
            return
        if (rate := record.derived.images_per_sec) is not None:
            say(_RULE, f"total images/sec: {rate:.2f}", _RULE, *result_lines(record))
        if self._has_started:
            say(f"status:         {record.status}")  # an error, with its reason, is printed on stderr

    def part(self, measurement: Measurement, task: str, leader: str) -> None:
        """The run has ended; prints this process' own rate, which is of its part, and that the leader has the whole."""
        if self._every:
            seconds = measurement.step_seconds
            own = step_statistics.rate(seconds, measurement.images_per_step or 0)
            say(
                _RULE,
                f"{task}: {as_rate(own)} images/s in {len(seconds)} steps; {leader} has the total and keeps the record",
            )

    def stored(self, record: Record, location: str) -> None:
        """Prints where the record is, and what to try next, if something is obvious."""
        if self._has_started:
            say(f"record:         {location}")
            if better := to_try(record):
                say(f"try:            {better}")

    def sent(self, location: str) -> None:
        """Prints which tracker has the record, and where."""
        if self._has_started:
            say(f"sent to:        {location}")
