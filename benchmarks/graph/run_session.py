"""A run whose graph is built and whose session is open, as callbacks and traces see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.data.sources.storage import path_of
from benchmarks.graph.epochs import Epochs, Plan
from benchmarks.graph.run_graph import RunGraph
from benchmarks.graph.stepper import Stepper
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import require_finite


@dataclasses.dataclass(frozen=True)
class RunSession:
    """What a callback may use of a run.

    Attributes:
        session: in which the graph is initialised.
        options: of each step.
        stepper: takes the steps; it ends before the session does.
        plan: how many steps are to be taken.
        team: the processes that train together.
    """

    config: Config
    built: RunGraph
    session: tf.compat.v1.Session
    options: tf.compat.v1.RunOptions
    stepper: Stepper
    epochs: Epochs
    plan: Plan
    log: RunLog
    display: Display
    team: Team

    @property
    def last_step(self) -> int:
        """The step of the training at which it ends, not counting steps with a profile or a summary."""
        return self.epochs.steps_before + sum(self.plan)

    @property
    def directory(self) -> Path:
        """The directory of what this process writes during the run, which is no other process' directory."""
        directory = path_of(self.config.checkpoints.train_dir or self.config.output.output_dir)
        cluster = self.config.processes.cluster
        return (
            directory / f"{cluster.own.job}_{cluster.own.index}" if cluster and not self.team.is_leader else directory
        )

    def take_unmeasured(
        self, step: int, more: Sequence[tf.Tensor], metadata: tf.compat.v1.RunMetadata | None = None
    ) -> Sequence[Any]:
        """Takes the step with a number, and returns the values of `more`; see `Stepper.take_with`."""
        assert self.stepper.take_with is not None, "the configuration refuses asynchronous towers"
        log = self.log
        self.team.deadlines.preparation("A step with a summary or a profile")
        taken, values = self.stepper.take_with(more, metadata)
        self.team.deadlines.none()
        log.unmeasured.add(taken)
        log.unmeasured_steps.append(step)
        log.latest = log.unmeasured
        require_finite(taken.loss)
        return values
