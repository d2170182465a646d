"""What observes a training while it pauses, by the flags of a run: summaries, profiles; and the files of its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.callbacks.callback import Agenda, Aside, Interlude
from benchmarks.callbacks.options import Summaries
from benchmarks.callbacks.summaries import GRADIENTS, WEIGHTS, EventFile, GradientSummaries, of_gradients, of_weights
from benchmarks.callbacks.summaries import Summaries as WrittenSummaries
from benchmarks.cluster.member import Team
from benchmarks.console import warn
from benchmarks.data.sources.storage import place
from benchmarks.devices.device_plan import HOST
from benchmarks.errors import UsageError
from benchmarks.graph.epochs import Epochs
from benchmarks.graph.run_graph import RunGraph
from benchmarks.graph.stepper import RateAfter, Stepper
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import require_finite
from benchmarks.tracing import graph_files
from benchmarks.tracing.profiles import ProfiledSteps

# The names in TensorBoard of what a step may observe.
_OBSERVED = {
    "top_1_accuracies": "top_1_accuracy",
    "top_5_accuracies": "top_5_accuracy",
    "loss_scales": "loss_scale",
    "input_wait_seconds": "input_wait_seconds",
}


def require_files(summaries: Summaries, train_dir: str | None, output_dir: str, *, saves: bool, leads: bool) -> None:
    """Finds out, before a run, whether what it will write can be written: by the leader, checkpoints and files of all.

    Raises:
        UsageError: a file or a directory cannot be written.
    """
    for flag in ("trace_file", "graph_file", "partitioned_graph_file_prefix"):
        path = getattr(summaries, flag)
        if path and leads:
            graph_files.require_writable(Path(path), f"--{flag}={path}")
    if (saves and leads) or summaries.summary_verbosity or summaries.profile_steps:
        flag, directory = ("train_dir", train_dir) if train_dir else ("output_dir", output_dir)
        graph_files.require_writable(place(directory) / "events", f"--{flag}={directory}")


@dataclasses.dataclass
class Observers:
    """Makes what observes a run between its steps, and writes it into a directory.

    Attributes:
        limit_seconds: how long a step may take that is observed, and so not measured.
        log: gets these steps.
        rate_after: see `stepper.stepping`.
    """

    wanted: Summaries
    directory: Path
    session: tf.compat.v1.Session
    stepper: Stepper
    limit_seconds: float
    log: RunLog
    display: Display
    team: Team
    epochs: Epochs
    rate_after: RateAfter
    _summarised: int = 0

    def agenda(self, built: RunGraph, first: Sequence[Interlude], ends: int, *, ends_there: bool) -> Agenda:
        """Returns what the run does between its steps; what is `first` comes before summaries.

        Training `ends` after so many steps, not counting those that are not measured unless it `ends_there` anyway.

        Raises:
            UsageError: steps are to be profiled that are not taken.
        """
        interludes, asides = self._summaries(built) if self.wanted.summary_verbosity else ([], [])
        profile = self._profile(ends)
        return Agenda(
            self.team,
            steps=self.epochs.steps_before,
            interludes=[*first, *interludes],
            asides=[profile, *asides] if profile else asides,
            ends_at=ends if ends_there else None,
        )

    def _summaries(self, built: RunGraph) -> tuple[list[Interlude], list[Aside]]:
        kept = built.manager.checkpoint_variables()
        events = None
        if self.team.is_leader:
            events = EventFile(self.directory, tf.compat.v1.get_default_graph(), self.epochs.steps_before)
        verbosity, every = self.wanted.summary_verbosity, self.wanted.save_summaries_steps
        asides: list[Aside] = []
        with tf.device(HOST):
            if verbosity >= GRADIENTS:
                divided = [name for name, parts in kept.items() if len(parts) > 1]
                gradients = of_gradients(built.step.updates, divided)
                asides.append(GradientSummaries(every, events, self._take, gradients))
            weights = self.session.make_callable(of_weights(kept)) if verbosity >= WEIGHTS and events else None
        return [WrittenSummaries(every, events, self._numbers, weights)], asides

    def _profile(self, ends: int) -> Aside | None:
        if not self.wanted.profile_steps:
            return None
        first, last = self.wanted.profile_steps
        if first > ends:
            raise UsageError(f"--profile_steps={first}:{last}: the training ends after step {ends}.")
        if last <= self.epochs.steps_before + 1:
            warn(f"No step is profiled: an earlier run took --profile_steps={first}:{last}.")
            return None
        self.directory.mkdir(parents=True, exist_ok=True)
        return ProfiledSteps(first, last, self.directory, self._take, self._show)

    def _show(self, lines: Sequence[str]) -> None:
        for line in lines if self.team.is_leader else ():
            self.display.note(line)

    def _take(
        self, step: int, more: Sequence[tf.Tensor], metadata: tf.compat.v1.RunMetadata | None = None
    ) -> Sequence[Any]:
        """Takes a step that is not measured."""
        assert self.stepper.otherwise is not None, "the configuration refuses asynchronous towers"
        self.team.expect("A step with a summary or a profile", self.limit_seconds)
        taken, values = self.stepper.otherwise(more, metadata)
        self.team.expect_nothing()
        self.log.unmeasured.add(taken)
        self.log.unmeasured_steps.append(step)
        self.log.latest = self.log.unmeasured
        require_finite(taken.loss)
        return values

    def _numbers(self, step: int) -> dict[str, float]:
        """Returns the numbers of a step, and the rate of the steps since the last summary that observed nothing."""
        log = self.log
        observed = log.latest.observed
        numbers = {
            "loss": log.latest.losses[-1],
            "learning_rate": self.rate_after(step - 1),
            **{name: observed[key][-1] for key, name in _OBSERVED.items() if key in observed},
        }
        seconds = [*log.warmup.step_seconds, *log.measured.step_seconds]
        since, self._summarised = seconds[self._summarised :], len(seconds)
        if since:
            numbers["images_per_sec"] = self.epochs.images_per_step * len(since) / sum(since)
        return numbers
