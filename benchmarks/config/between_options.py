"""From flags to what a run does between its steps: checkpoints, evaluation, summaries, profiles. No TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.config.flag import Groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class BetweenSteps:
    """What a run does between its measured steps. None of it is in their times.

    Attributes:
        train_dir: where checkpoints and summaries are; None: neither is saved or loaded.
        save_model_steps: a checkpoint is saved after every so many steps; 0: only at the end.
        save_model_secs: the same in seconds.
        max_ckpts_to_keep: older checkpoints are removed; 0: all are kept.
        initial_weights: a checkpoint, or a file of Keras, with the weights to begin with.
        max_restarts: how often the tasks of a cluster are started again after one has died.
        eval_every_steps, eval_every_epochs: an evaluation follows so many steps, or passes over the data; 0: none does.
        eval_at_steps, eval_at_epochs: an evaluation follows these.
        eval_batch_size: images per device and step of an evaluation; 0: as in training.
        stop_at_top_1_accuracy: training ends when an evaluation reaches this share; None: it does not.
        summary_verbosity: 0: no summaries; 1: numbers; 2: also histograms of gradients; 3: also of weights.
        save_summaries_steps: summaries are written every so many steps.
        profile_steps: the first and the last step that is profiled, from 1.
        trace_file, graph_file: where a trace of a step, and the graph, are written.
    """

    train_dir: str | None = None
    save_model_steps: int = 0
    save_model_secs: float = 0.0
    max_ckpts_to_keep: int = 5
    initial_weights: str | None = None
    max_restarts: int = 0
    eval_every_steps: int = 0
    eval_every_epochs: float = 0.0
    eval_at_steps: tuple[int, ...] = ()
    eval_at_epochs: tuple[float, ...] = ()
    eval_batch_size: int = 0
    stop_at_top_1_accuracy: float | None = None
    summary_verbosity: int = 0
    save_summaries_steps: int = 0
    profile_steps: tuple[int, int] | None = None
    trace_file: str | None = None
    graph_file: str | None = None


_USUAL = BetweenSteps()
BETWEEN_FLAGS: Groups = {
    "Checkpoints": (),
    "Evaluation": (),
    "Summaries and profiles": (),
}


def resolve(given: Mapping[str, Any]) -> BetweenSteps:
    """Decides on what happens between steps.

    Args:
        given: flag values by name; None is not given.

    Raises:
        UsageError: a value is not possible, or a flag needs another one.
    """
    checkpoints = _checkpoints(given)
    evaluation = _evaluation(given)
    summaries = _summaries(given)
    return BetweenSteps(**checkpoints, **evaluation, **summaries)


def _checkpoints(given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _evaluation(given: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _summaries(given: Mapping[str, Any]) -> dict[str, Any]:
    return {}
