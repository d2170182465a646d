"""What observes a training while it pauses, by the flags of a run: summaries, profiles; and the files of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.between_steps import files
from benchmarks.between_steps.agenda import Agenda, Aside, Interlude
from benchmarks.between_steps.profiles import ProfiledSteps
from benchmarks.between_steps.summaries import (
    GRADIENTS,
    WEIGHTS,
    EventFile,
    GradientSummaries,
    Summaries,
    of_gradients,
    of_weights,
)
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.errors import UsageError
from benchmarks.input.addresses import place
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import require_finite
from benchmarks.one_run.graph import RunGraph
from benchmarks.one_run.steps import RateAfter, Stepper
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.topology.devices import HOST

# The names in TensorBoard of what a step may observe.
_OBSERVED = {
    "top_1_accuracies": "top_1_accuracy",
    "top_5_accuracies": "top_5_accuracy",
    "loss_scales": "loss_scale",
    "input_wait_seconds": "input_wait_seconds",
}


def require_files(config: Config, *, is_leader: bool) -> None:
    """Finds out, before a run, whether what it will write can be written.

    Raises:
        UsageError: a file or a directory cannot be written.
    """
    for flag in ("trace_file", "graph_file", "partitioned_graph_file_prefix"):
        path = getattr(config.summaries, flag)
        if path and is_leader:
            files.require_writable(Path(path), f"--{flag}={path}")
    train_dir = config.checkpoints.train_dir
    saves = bool(train_dir) and not config.workload.forward_only and is_leader
    if saves or config.summaries.summary_verbosity or config.summaries.profile_steps:
        flag = "train_dir" if train_dir else "output_dir"
        directory = train_dir or config.output.output_dir
        files.require_writable(place(directory) / "events", f"--{flag}={directory}")


def write_graph(config: Config, graph: tf.Graph, *, is_leader: bool) -> None:
    """Writes the graph of a run, if a file is named."""
    if config.summaries.graph_file and is_leader:
        files.write_graph(graph.as_graph_def(), Path(config.summaries.graph_file))


class Observers:
    """Makes what observes a run between its steps.

    Args:
        config: of the run.
        session: in which its graph was initialised.
        stepper: of its steps.
        log: gets the steps that are not measured.
        team: steps together.
        rate_after: see `steps.stepping`.
        steps_before: were taken by an earlier run.
    """

    def __init__(
        self,
        config: Config,
        session: tf.compat.v1.Session,
        stepper: Stepper,
        log: RunLog,
        team: Team,
        *,
        rate_after: RateAfter | None = None,
        steps_before: int = 0,
    ) -> None:
        self._config, self._session, self._stepper, self._log, self._team = config, session, stepper, log, team
        self._rate_after, self._steps_before = rate_after, steps_before
        self._summarised = 0

    def agenda(self, built: RunGraph, saving: Sequence[Interlude], planned_steps: int) -> Agenda:
        """Returns what the run does between its steps: first it saves; `planned_steps` are without asides.

        Raises:
            UsageError: steps are to be profiled that are not taken.
        """
        interludes, asides = self._summaries(built) if self._config.summaries.summary_verbosity else ([], [])
        profile = self._profile(planned_steps)
        return Agenda(
            self._team,
            steps=self._steps_before,
            interludes=[*saving, *interludes],
            asides=[profile, *asides] if profile else asides,
            ends_at=planned_steps if self._config.length.num_epochs and self._config.checkpoints.train_dir else None,
        )

    def _summaries(self, built: RunGraph) -> tuple[list[Interlude], list[Aside]]:
        train_dir, kept = self._config.checkpoints.train_dir, built.manager.checkpoint_variables()
        assert train_dir is not None, "the configuration requires it"
        events = None
        if self._team.is_leader:
            events = EventFile(place(train_dir), tf.compat.v1.get_default_graph(), self._steps_before)
        verbosity, every = self._config.summaries.summary_verbosity, self._config.summaries.save_summaries_steps
        asides: list[Aside] = []
        with tf.device(HOST):
            if verbosity >= GRADIENTS:
                divided = [name for name, parts in kept.items() if len(parts) > 1]
                gradients = of_gradients(built.step.updates, divided)
                asides.append(GradientSummaries(every, events, self._take_with, gradients))
            weights = self._session.make_callable(of_weights(kept)) if verbosity >= WEIGHTS and events else None
        return [Summaries(every, events, self._numbers, weights)], asides

    def _profile(self, planned_steps: int) -> Aside | None:
        if not self._config.summaries.profile_steps:
            return None
        first, last = self._config.summaries.profile_steps
        if first > planned_steps:
            raise UsageError(f"--profile_steps={first}:{last}: the training ends after step {planned_steps}.")
        if last <= self._steps_before + 1:
            warn(f"No step is profiled: an earlier run took --profile_steps={first}:{last}.")
            return None
        directory, own = (
            place(self._config.checkpoints.train_dir or self._config.output.output_dir),
            self._config.processes.cluster,
        )
        if own and not self._team.is_leader:  # processes of one host would write the same files
            directory /= f"{own.own.job}_{own.own.index}"
        directory.mkdir(parents=True, exist_ok=True)
        return ProfiledSteps(first, last, directory, self._take, self._show)

    def _show(self, lines: Sequence[str]) -> None:
        if self._team.is_leader and self._config.output.output_format == "text":
            for line in lines:
                say(line, wait=False)

    def _take_with(self, step: int, more: Sequence[tf.Tensor]) -> Sequence[Any]:
        return self._take(step, None, more)

    def _take(
        self, step: int, metadata: tf.compat.v1.RunMetadata | None, more: Sequence[tf.Tensor] = ()
    ) -> Sequence[Any]:
        """Takes a step that is not measured."""
        assert self._stepper.otherwise is not None, "the configuration refuses asynchronous towers"
        self._team.expect(
            "A step with a summary or a profile", PREPARATION_FACTOR * self._config.processes.step_timeout_seconds
        )
        taken, values = self._stepper.otherwise(more, metadata)
        self._team.expect_nothing()
        self._log.asides.add(taken)
        self._log.aside_steps.append(step)
        self._log.latest = self._log.asides
        require_finite(taken.loss)
        return values

    def _numbers(self, step: int) -> dict[str, float]:
        """Returns the numbers of a step, and the rate of the steps since the last summary that observed nothing."""
        phase, rate = self._log.latest, self._config.training.learning_rate
        numbers = {
            "loss": phase.losses[-1],
            "learning_rate": self._rate_after(step - 1) if self._rate_after else rate,
            **{name: phase.observed[key][-1] for key, name in _OBSERVED.items() if key in phase.observed},
        }
        seconds = [*self._log.warmup.step_seconds, *self._log.measured.step_seconds]
        since, self._summarised = seconds[self._summarised :], len(seconds)
        if since:
            numbers["images_per_sec"] = self._config.batch_global * len(since) / sum(since)
        return numbers
