"""Summaries for TensorBoard, by TensorFlow's own operations and writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

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


class SummaryCallback:
    """Writes summaries of every so many steps; only the leader writes.

    If they have histograms of gradients, it takes these steps itself, with the histograms as one more output.
    """

    name = "a summary"

    def __init__(self, run: RunSession) -> None:
        asked, kept = run.config.summaries, run.built.manager.checkpoint_variables()
        self._run, self._every = run, asked.save_summaries_steps
        self._rate_after = rate_after(run.config.training, run.epochs)
        self._summarised = 0  # measured steps
        self._events = _event_file(run.directory, run.epochs.steps_before) if run.team.is_leader else None
        self._gradients: Sequence[tf.Tensor] = []  # a summary of them, if they are wanted
        self._weights: Callable[[], bytes] | None = None
        with tf.device(HOST):
            if asked.summary_verbosity >= GRADIENTS:
                divided = [name for name, parts in kept.items() if len(parts) > 1]
                self._gradients = [of_gradients(run.built.step.updates, divided)]
            if asked.summary_verbosity >= WEIGHTS and self._events:
                self._weights = run.session.make_callable(of_weights(kept))

    def is_due(self, steps: int, *, last: bool) -> bool:
        """See `Callback`; nothing is written after the last step."""
        return is_one_of_every(self._every, steps) and not last

    def after_step(self, steps: int) -> bool:
        """Writes numbers, and histograms of weights."""
        numbers = self._numbers(steps).items()
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=number) for name, number in numbers]
        self._add(tf.compat.v1.Summary(value=values), steps)
        if self._weights:
            self._add(self._weights(), steps)
        return False

    def wants(self, step: int) -> bool:
        """See `UnmeasuredSteps`."""
        return bool(self._gradients) and is_one_of_every(self._every, step)

    def take(self, step: int) -> None:
        """Takes the step, and writes its histograms; processes that do not write take it as always."""
        for summary in self._run.take_unmeasured(step, self._gradients if self._events else []):
            self._add(summary, step)

    def after_run(self) -> None:
        """Has nothing left to write."""

    def _add(self, summary: tf.compat.v1.Summary | bytes, step: int) -> None:
        assert self._events is not None, "it is the leader that writes"
        log, what = self._run.log, "Summaries"
        if what not in log.unsaved:
            with log.writing(what, self._run.directory):
                self._events.add_summary(summary, step)
                self._events.flush()

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


def _event_file(directory: Path, steps_before: int) -> tf.compat.v1.summary.FileWriter:
    """Opens the file of events of a run; an earlier run of the training, of so many steps, may have left one.

    The graph is written once per training. TensorBoard drops earlier events of steps that are taken again.
    """
    # Another part of the training may have begun in the same second: its file has the same name but for this.
    suffix = f".{steps_before}" if steps_before else None
    graph = None if steps_before else tf.compat.v1.get_default_graph()
    events = tf.compat.v1.summary.FileWriter(str(directory), graph, filename_suffix=suffix)
    if steps_before:
        began = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        events.add_session_log(began, steps_before + 1)
    return events


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
