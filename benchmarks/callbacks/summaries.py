"""Summaries for TensorBoard, by TensorFlow's own operations and writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from variable_mgr.manager import TowerUpdate
from variable_mgr.reductions.kernels import mean

NUMBERS, GRADIENTS, WEIGHTS = 1, 2, 3  # values of `--summary_verbosity`; each includes those before it


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


class Summaries:
    """Writes numbers, and histograms of weights if there is such an operation. An `Interlude`.

    Args:
        every: number of steps from one summary to the next.
        events: None in the processes that do not write.
        numbers: returns those of the step with a number.
        weights: returns what `of_weights` computes.
    """

    name = "a summary"

    def __init__(
        self,
        every: int,
        events: EventFile | None,
        numbers: Callable[[int], Mapping[str, float]],
        weights: Callable[[], bytes] | None = None,
    ) -> None:
        self._every, self._events, self._numbers, self._weights = every, events, numbers, weights

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether it is one of every so many steps."""
        return steps % self._every == 0 and not last

    def do(self, steps: int) -> bool:
        """Writes a summary."""
        assert self._events is not None, "it is the leader that writes"
        self._events.add_numbers(self._numbers(steps), steps)
        if self._weights:
            self._events.add(self._weights(), steps)
        return False


class GradientSummaries:
    """Takes every so many steps with histograms of their gradients as one more output. An `Aside`.

    Args:
        every: number of steps from one summary to the next.
        events: None in the processes that do not write, which take the steps as always.
        take: takes the step with a number, and returns the values of more tensors.
        summary: of `of_gradients`.
    """

    def __init__(
        self,
        every: int,
        events: EventFile | None,
        take: Callable[[int, Sequence[tf.Tensor]], Sequence[bytes]],
        summary: tf.Tensor,
    ) -> None:
        self._every, self._events, self._take, self._summary = every, events, take, summary

    def wants(self, step: int) -> bool:
        """Returns whether it is one of every so many steps."""
        return step % self._every == 0

    def take(self, step: int) -> None:
        """Takes the step, and writes its histograms."""
        if self._events is None:
            self._take(step, [])
            return
        (summary,) = self._take(step, [self._summary])
        self._events.add(summary, step)


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
