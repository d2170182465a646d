"""Summaries for TensorBoard, by TensorFlow's own operations and writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.callbacks.callback import Callback, UnmeasuredSteps
from benchmarks.graph.epochs import is_one_of_every
from benchmarks.graph.run_session import RunSession
from benchmarks.graph.stepper import rate_after
from variable_mgr.manager import TowerUpdate
from variable_mgr.place import HOST
from variable_mgr.reductions.kernels import mean

NUMBERS, GRADIENTS, WEIGHTS = 1, 2, 3  # values of `--summary_verbosity`; each includes those before it
# The names in TensorBoard of what a step may observe.
_OBSERVED = {
    "top_1_accuracies": "top_1_accuracy",
    "top_5_accuracies": "top_5_accuracy",
    "loss_scales": "loss_scale",
    "input_wait_seconds": "input_wait_seconds",
}


def summaries(run: RunSession) -> tuple[Sequence[Callback], Sequence[UnmeasuredSteps]]:
    """Returns what writes the summaries of a run by its flags; only the leader writes."""
    asked, kept = run.config.summaries, run.built.manager.checkpoint_variables()
    if not asked.summary_verbosity:
        return [], []
    events = None
    if run.team.is_leader:
        events = EventFile(run.directory, tf.compat.v1.get_default_graph(), run.epochs.steps_before)
    every, unmeasured = asked.save_summaries_steps, []
    with tf.device(HOST):
        if asked.summary_verbosity >= GRADIENTS:
            divided = [name for name, parts in kept.items() if len(parts) > 1]
            unmeasured.append(GradientSummaries(run, every, events, of_gradients(run.built.step.updates, divided)))
        with_weights = asked.summary_verbosity >= WEIGHTS and events
        weights = run.session.make_callable(of_weights(kept)) if with_weights else None
    return [SummaryCallback(run, every, events, weights)], unmeasured


class EventFile:
    """The file of events of one run, in a directory that a later run of the same training continues.

    Args:
        directory: may have events of an earlier run. TensorBoard drops those of steps that are taken again.
        graph: is written once per training.
        steps_before: were taken by an earlier run.
    """

    def __init__(self, directory: Path, graph: tf.Graph, steps_before: int) -> None:
        # Another part of the training may have begun in the same second: its file has the same name but for this.
        suffix = f".{steps_before}" if steps_before else None
        self._writer = tf.compat.v1.summary.FileWriter(
            str(directory), None if steps_before else graph, filename_suffix=suffix
        )
        if steps_before:
            began = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._writer.add_session_log(began, steps_before + 1)

    def add(self, summary: bytes, step: int) -> None:
        """Adds what a summary operation returned, and writes it to disk."""
        self._writer.add_summary(summary, step)
        self._writer.flush()

    def add_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        """Adds numbers by name."""
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        self.add(tf.compat.v1.Summary(value=values).SerializeToString(), step)


class SummaryCallback:
    """Writes numbers of every so many steps, and with `weights` (see `of_weights`) their histograms."""

    name = "a summary"

    def __init__(
        self, run: RunSession, every: int, events: EventFile | None, weights: Callable[[], bytes] | None
    ) -> None:
        self._run, self._every, self._events, self._weights = run, every, events, weights
        self._rate_after = rate_after(run.config.training, run.epochs)
        self._summarised = 0  # measured steps

    def is_due(self, steps: int, *, last: bool) -> bool:
        """See `Callback`; nothing is written after the last step."""
        return is_one_of_every(self._every, steps) and not last

    def after_step(self, steps: int) -> bool:
        """Writes a summary."""
        assert self._events is not None, "it is the leader that writes"
        self._events.add_numbers(self._numbers(steps), steps)
        if self._weights:
            self._events.add(self._weights(), steps)
        return False

    def _numbers(self, step: int) -> dict[str, float]:
        """Returns the numbers of a step, and the rate of the measured steps since the last summary."""
        log = self._run.log
        observed = log.latest.observed
        numbers = {
            "loss": log.latest.losses[-1],
            "learning_rate": self._rate_after(step - 1),
            **{name: observed[key][-1] for key, name in _OBSERVED.items() if key in observed},
        }
        seconds = [*log.warmup.step_seconds, *log.measured.step_seconds]
        since, self._summarised = seconds[self._summarised :], len(seconds)
        if since:
            numbers["images_per_sec"] = self._run.epochs.images_per_step * len(since) / sum(since)
        return numbers


class GradientSummaries:
    """Takes every so many steps with histograms of their gradients (`of_gradients`) as one more output."""

    def __init__(self, run: RunSession, every: int, events: EventFile | None, summary: tf.Tensor) -> None:
        self._run, self._every, self._events, self._summary = run, every, events, summary

    def wants(self, step: int) -> bool:
        """See `UnmeasuredSteps`."""
        return is_one_of_every(self._every, step)

    def take(self, step: int) -> None:
        """Takes the step, and writes its histograms."""
        if self._events is None:  # processes that do not write take the step as always
            self._run.take_unmeasured(step, [])
            return
        (summary,) = self._run.take_unmeasured(step, [self._summary])
        self._events.add(summary, step)

    def after_run(self) -> None:
        """Has nothing left to write."""


def of_gradients(updates: Sequence[TowerUpdate], divided: Collection[str]) -> tf.Tensor:
    """Returns a summary of gradients: histograms of their mean over these towers.

    Each tower has a part of those that are `divided`.
    """
    merged = []
    for name in updates[0].gradients:
        of_towers = [tf.reshape(update.gradients[name], [-1]) for update in updates]
        merged.append(_histogram(f"gradients/{name}", tf.concat(of_towers, 0) if name in divided else mean(of_towers)))
    return tf.raw_ops.MergeSummary(inputs=merged)


def of_weights(variables: Mapping[str, Sequence[tf.Variable]]) -> tf.Tensor:
    """Returns a summary of variables by name, each of one part or several: histograms and Euclidean norms."""
    merged = []
    for name, parts in variables.items():
        values = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        merged += [
            _histogram(f"weights/{name}", values),
            tf.raw_ops.ScalarSummary(tags=f"norms/{name}", values=tf.norm(values)),
        ]
    return tf.raw_ops.MergeSummary(inputs=merged)


def _histogram(tag: str, flat: tf.Tensor) -> tf.Tensor:
    """Returns a histogram of the values that are finite, of a vector: the operation fails on others."""
    return tf.raw_ops.HistogramSummary(tag=tag, values=tf.boolean_mask(flat, tf.math.is_finite(flat)))
