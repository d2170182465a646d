"""Checkpoints that are saved between steps, and at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from benchmarks.checkpoints import checkpoint_files, resuming
from benchmarks.checkpoints.training_state import TrainingState
from benchmarks.cluster import restarts
from benchmarks.console import warn
from benchmarks.data.sources.storage import is_address
from benchmarks.errors import UsageError
from benchmarks.graph.epochs import is_one_of_every
from benchmarks.graph.run_session import RunSession
from results.version import SUITE_VERSION


class CheckpointCallback:
    """Saves checkpoints of a run with --train_dir. Training goes on if one cannot be saved; the log has the error.

    `classes` are those of the training before, see `resuming.classes_of`: images of another kind keep them.
    """

    name = "a checkpoint"

    def __init__(self, run: RunSession, state: TrainingState, classes: Mapping[str, str | int]) -> None:
        self._run, self._state, self._classes = run, state, classes
        self._saved_step, self._saved_at = run.epochs.steps_before, time.monotonic()

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether a checkpoint follows, which this process counts as saved."""
        asked, now = self._run.config.checkpoints, time.monotonic()
        by_steps = is_one_of_every(asked.save_model_steps, steps)
        by_time = bool(asked.save_model_secs) and now - self._saved_at >= asked.save_model_secs
        if steps == self._saved_step or not (last or by_steps or by_time):
            return False
        self._saved_step, self._saved_at = steps, now
        return True

    def after_step(self, steps: int) -> bool:
        """Saves a checkpoint."""
        config, epochs, built = self._run.config, self._run.epochs, self._run.built
        facts = {
            **resuming.checkpoint_facts(config),
            "images": epochs.images_after(steps),
            "images_per_epoch": epochs.images_per_epoch,
            "classes": {**self._classes, **resuming.classes_of(built.input.source, config.workload.num_classes)},
            "ends_at_step": self._run.last_step,
            "run": restarts.inherited().run,
            "suite_version": SUITE_VERSION,
        }
        directory, keep = str(config.checkpoints.train_dir), config.checkpoints.max_ckpts_to_keep
        self._run.team.deadlines.preparation("Saving a checkpoint")
        # Not with the options of the steps: the leader alone would count a run of the collectives.
        values = self._state.fetch(self._run.session)
        if name := checkpoint_files.not_finite(values):
            warn(f"No checkpoint is saved after step {steps}, since {name} is not finite: earlier ones stay.")
            return False
        what = "The last checkpoint"
        self._run.log.unsaved.pop(what, None)
        with self._run.log.writing(what, directory):
            checkpoint_files.write(directory, steps, values, facts, keep)
        return False


def require_room(directory: str, state: TrainingState) -> None:
    """Finds out, before the training, whether a checkpoint will have room; an old one stays until it is written.

    Raises:
        UsageError: it will not; of an address this is not known.
    """
    if is_address(directory):
        return
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < state.size_bytes:
        raise UsageError(
            f"--train_dir={directory} has {free_bytes / 1e6:,.1f} MB of free space, and a checkpoint of this training "
            f"needs {state.size_bytes / 1e6:,.1f} MB. Free space there, or pass another directory."
        )
