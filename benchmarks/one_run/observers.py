"""What observes a training while it pauses, by the flags of a run: summaries, profiles; and the files of its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.between_steps import files
from benchmarks.between_steps.agenda import Agenda, Aside, Interlude
from benchmarks.between_steps.options import Summaries
from benchmarks.between_steps.profiles import ProfiledSteps
from benchmarks.between_steps.summaries import (
    GRADIENTS,
    WEIGHTS,
    EventFile,
    GradientSummaries,
    of_gradients,
    of_weights,
)
from benchmarks.between_steps.summaries import Summaries as WrittenSummaries
from benchmarks.cluster.member import Team
from benchmarks.console import say, warn
from benchmarks.errors import UsageError
from benchmarks.input.addresses import place
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import require_finite
from benchmarks.one_run.epochs import Epochs
from benchmarks.one_run.graph import RunGraph
from benchmarks.one_run.steps import RateAfter, Stepper
from benchmarks.topology.devices import HOST

# The names in TensorBoard of what a step may observe.
_OBSERVED = {
    "top_1_accuracies": "top_1_accuracy",
    "top_5_accuracies": "top_5_accuracy",
    "loss_scales": "loss_scale",
    "input_wait_seconds": "input_wait_seconds",
}


def require_files(summaries: Summaries, train_dir: str | None, output_dir: str, *, saves: bool, leads: bool) -> None:
    """Finds out, before a run, whether what it will write can be written.

    Args:
        summaries: names the files.
        train_dir: of checkpoints and of what is observed; None: what is observed is written into `output_dir`.
        output_dir: of the run.
        saves: whether checkpoints are saved.
        leads: whether this process writes what is of all.

    Raises:
        UsageError: a file or a directory cannot be written.
    """
    for flag in ("trace_file", "graph_file", "partitioned_graph_file_prefix"):
        path = getattr(summaries, flag)
        if path and leads:
            files.require_writable(Path(path), f"--{flag}={path}")
    if (saves and leads) or summaries.summary_verbosity or summaries.profile_steps:
        flag, directory = ("train_dir", train_dir) if train_dir else ("output_dir", output_dir)
        files.require_writable(place(directory) / "events", f"--{flag}={directory}")


@dataclasses.dataclass(frozen=True)
class UnmeasuredSteps:
    """Takes steps that train, but are not measured.

    Attributes:
        stepper: takes them.
        log: gets them.
        team: steps together.
        limit_seconds: how long one may take.
    """

    stepper: Stepper
    log: RunLog
    team: Team
    limit_seconds: float

    def take(
        self, step: int, metadata: tf.compat.v1.RunMetadata | None, more: Sequence[tf.Tensor] = ()
    ) -> Sequence[Any]:
        """Takes the step with that number, and returns the values of more tensors; see `Stepper`."""
        assert self.stepper.otherwise is not None, "the configuration refuses asynchronous towers"
        self.team.expect("A step with a summary or a profile", self.limit_seconds)
        taken, values = self.stepper.otherwise(more, metadata)
        self.team.expect_nothing()
        self.log.asides.add(taken)
        self.log.aside_steps.append(step)
        self.log.latest = self.log.asides
        require_finite(taken.loss)
        return values


class Observers:
    """Makes what observes a run between its steps.

    Args:
        wanted: summaries and profiles.
        directory: of their files.
        session: in which the graph was initialised.
        steps: takes those that are observed.
        epochs: of the training.
        rate_after: see `steps.stepping`.
        shows: whether tables are printed.
    """

    def __init__(
        self,
        wanted: Summaries,
        directory: Path,
        session: tf.compat.v1.Session,
        steps: UnmeasuredSteps,
        epochs: Epochs,
        rate_after: RateAfter,
        *,
        shows: bool,
    ) -> None:
        self._wanted, self._directory, self._session, self._steps = wanted, directory, session, steps
        self._epochs, self._rate_after, self._shows = epochs, rate_after, shows
        self._summarised = 0

    def agenda(self, built: RunGraph, first: Sequence[Interlude], ends: int, *, ends_there: bool) -> Agenda:
        """Returns what the run does between its steps.

        Args:
            built: its graph.
            first: is done before summaries.
            ends: the last step of the training, if all its steps are measured.
            ends_there: whether it also ends there if some are not.

        Raises:
            UsageError: steps are to be profiled that are not taken.
        """
        interludes, asides = self._summaries(built) if self._wanted.summary_verbosity else ([], [])
        profile = self._profile(ends)
        return Agenda(
            self._steps.team,
            steps=self._epochs.steps_before,
            interludes=[*first, *interludes],
            asides=[profile, *asides] if profile else asides,
            ends_at=ends if ends_there else None,
        )

    def _summaries(self, built: RunGraph) -> tuple[list[Interlude], list[Aside]]:
        kept = built.manager.checkpoint_variables()
        events = None
        if self._steps.team.is_leader:
            events = EventFile(self._directory, tf.compat.v1.get_default_graph(), self._epochs.steps_before)
        verbosity, every = self._wanted.summary_verbosity, self._wanted.save_summaries_steps
        asides: list[Aside] = []
        with tf.device(HOST):
            if verbosity >= GRADIENTS:
                divided = [name for name, parts in kept.items() if len(parts) > 1]
                gradients = of_gradients(built.step.updates, divided)
                asides.append(GradientSummaries(every, events, self._take_with, gradients))
            weights = self._session.make_callable(of_weights(kept)) if verbosity >= WEIGHTS and events else None
        return [WrittenSummaries(every, events, self._numbers, weights)], asides

    def _take_with(self, step: int, more: Sequence[tf.Tensor]) -> Sequence[Any]:
        return self._steps.take(step, None, more)

    def _profile(self, ends: int) -> Aside | None:
        if not self._wanted.profile_steps:
            return None
        first, last = self._wanted.profile_steps
        if first > ends:
            raise UsageError(f"--profile_steps={first}:{last}: the training ends after step {ends}.")
        if last <= self._epochs.steps_before + 1:
            warn(f"No step is profiled: an earlier run took --profile_steps={first}:{last}.")
            return None
        self._directory.mkdir(parents=True, exist_ok=True)
        return ProfiledSteps(first, last, self._directory, self._steps.take, self._show)

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines if self._shows else ():
            say(line, wait=False)

    def _numbers(self, step: int) -> dict[str, float]:
        """Returns the numbers of a step, and the rate of the steps since the last summary that observed nothing."""
        log = self._steps.log
        observed = log.latest.observed
        numbers = {
            "loss": log.latest.losses[-1],
            "learning_rate": self._rate_after(step - 1),
            **{name: observed[key][-1] for key, name in _OBSERVED.items() if key in observed},
        }
        seconds = [*log.warmup.step_seconds, *log.measured.step_seconds]
        since, self._summarised = seconds[self._summarised :], len(seconds)
        if since:
            numbers["images_per_sec"] = self._epochs.images_per_step * len(since) / sum(since)
        return numbers
