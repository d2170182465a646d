"""What a run takes from checkpoints, and what it leaves in them for the next."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.between_steps.saving import Saving
from benchmarks.checkpoints import files, keras_exchange, weight_files
from benchmarks.checkpoints.files import Saved
from benchmarks.checkpoints.training_state import IN_FLIGHT, TrainingState
from benchmarks.cluster import restarts
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.errors import UsageError
from benchmarks.input.addresses import is_address
from benchmarks.input.files import only_writer
from benchmarks.one_run import time_slices
from benchmarks.one_run.graph import RunGraph
from benchmarks.one_run.steps import images_per_epoch
from results.version import SUITE_VERSION


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What earlier runs have left of a training; nothing, if it begins.

    Attributes:
        steps: that were trained.
        images: that were trained with, by all towers.
        ends_at_step: the step at which the attempt was to end that this one repeats; None: it repeats none, or that
            saved no checkpoint.
        values: of the checkpoint's entries, by name; without what is in flight if this run's graph is another one.
        epochs: passes over the data set that the images were.
        initial_weights: to begin with, from another training's checkpoint, by name.
    """

    steps: int = 0
    images: int = 0
    ends_at_step: int | None = None
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    epochs: float = 0.0
    initial_weights: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def images_drawn(self, config: Config) -> int:
        """Returns how many images the training has drawn from the data set: those of staged gradients, too."""
        is_staged = config.variables.modifiers.staged_vars and any(name.startswith(IN_FLIGHT) for name in self.values)
        return self.images + is_staged * config.batch_global


@contextlib.contextmanager
def only_training(config: Config, team: Team) -> Iterator[None]:
    """Keeps other trainings out of `--train_dir`. The leader locks it, since it alone saves.

    Raises:
        UsageError: another training uses it.
    """
    directory = config.checkpoints.train_dir
    with contextlib.ExitStack() as stack:
        if directory is not None and team.is_leader and not (config.workload.forward_only or time_slices.inherited()):
            try:
                if is_address(directory):
                    raise OSError(errno.ENOLCK, "its storage has no locks")
                stack.enter_context(only_writer(Path(directory), "checkpoints"))
            except OSError as error:  # a file system without locks, or another storage
                warn(f"--train_dir={directory} cannot be locked ({error.strerror}): let only one training use it.")
        yield


def find(config: Config, team: Team) -> Earlier:
    """Reads the newest whole checkpoint of `--train_dir`, if it has one, or else that of `--initial_weights`.

    Raises:
        DataError: there are only damaged ones, or those of other programs; or inference needs one, and there is none.
            Or the initial weights cannot be read.
        UsageError: it is of another model or optimizer, or workers see different checkpoints.
    """
    saved = _newest(config, team) if config.checkpoints.train_dir is not None else None
    if saved is None:
        return Earlier(initial_weights=_of_other_training(config.checkpoints.initial_weights))
    values = saved.values
    if saved.facts.get("graph") != _graph(config):
        values = {name: value for name, value in values.items() if not name.startswith(IN_FLIGHT)}
    images = saved.facts["images"]
    return Earlier(
        saved.steps,
        images,
        ends_at_step=_end_of_attempt(saved),
        values=values,
        epochs=images / saved.facts["images_per_epoch"],
    )


def _newest(config: Config, team: Team) -> Saved | None:
    """Returns the newest whole checkpoint of `--train_dir`, which is the same for all workers; None if it has none."""
    directory = str(config.checkpoints.train_dir)
    weight_files.refuse_other_formats(directory, "train_dir", keras_too=False)
    if time_slices.inherited():
        raise UsageError("--train_dir: two runs in time slices would train the same weights. Omit it.")
    saved = files.read(directory) if config.workload.forward_only else files.latest(directory)
    steps = team.meet("looked for a checkpoint", saved and saved.steps)
    if len(set(steps.values())) > 1:
        seen = ", ".join(f"{task} {'none' if found is None else f'step {found}'}" for task, found in steps.items())
        raise UsageError(
            f"--train_dir={directory}: the workers see different checkpoints ({seen}). Pass a directory that all share."
        )
    shows = config.output.output_format == "text" and team.is_leader
    if saved is None:
        if shows:
            say(f"Checkpoints: {directory} has none, so training begins.")
        return None
    _require_same(saved, config)
    if shows:
        what = "weights" if config.workload.forward_only else "continuing"
        say(f"Checkpoints: {what} after step {saved.steps}, from {saved.prefix}.")
    return saved


def _end_of_attempt(saved: Saved) -> int | None:
    """Returns the step at which the training was to end, if an attempt of this run has saved the checkpoint."""
    attempts = restarts.inherited()
    if attempts is None or saved.saved_at() < attempts.begun:
        return None
    ends_at_step: int = saved.facts["ends_at_step"]
    return ends_at_step


@dataclasses.dataclass(frozen=True)
class Restoring:
    """How a run's variables get their first values.

    Attributes:
        state: of the training; None if weights are neither loaded nor saved.
        values: to feed while variables are initialised.
        resumes: whether these include all that was staged.
    """

    state: TrainingState | None = None
    values: Mapping[tf.Tensor, np.ndarray] = dataclasses.field(default_factory=dict)
    resumes: bool = False


def restoring(config: Config, built: RunGraph, earlier: Earlier) -> Restoring:
    """Returns the way into a graph of what `earlier` has, or else of `--initial_weights`.

    Raises:
        DataError: the values do not fit.
    """
    if config.checkpoints.train_dir is None and config.checkpoints.initial_weights is None:
        return Restoring()
    state = TrainingState(
        built.model.variables,
        built.manager,
        built.optimizer,
        built.variables,
        first_tower=config.place.worker * len(config.place.towers),
        alone=config.place.workers == 1,
    )
    if earlier.values:
        return Restoring(state, state.feeds(earlier.values), state.resumes(earlier.values))
    if config.checkpoints.initial_weights is not None:
        weights = earlier.initial_weights or keras_exchange.read(config.checkpoints.initial_weights, built.model)
        return Restoring(state, state.feeds(weights, weights_only=True))
    return Restoring(state)


def require_room(config: Config, state: TrainingState | None, team: Team) -> None:
    """Finds out, before the training, whether a checkpoint will have room; an old one stays until it is written.

    Raises:
        UsageError: it will not; of an address this is not known.
    """
    directory = config.checkpoints.train_dir
    if (
        directory is None
        or is_address(directory)
        or config.workload.forward_only
        or state is None
        or not team.is_leader
    ):
        return
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < state.size_bytes:
        raise UsageError(
            f"--train_dir={directory} has {free_bytes / 1e6:,.1f} MB of free space, and a checkpoint of this training "
            f"needs {state.size_bytes / 1e6:,.1f} MB. Free space there, or pass another directory."
        )


def _of_other_training(path: str | None) -> Mapping[str, np.ndarray]:
    """Returns the values of a checkpoint of `--initial_weights`; none for a file of Keras, which is read into a model.

    Raises:
        DataError: it is missing, damaged or of another format. This is found before anything is built.
    """
    if path is None:
        return {}
    weight_files.refuse_other_formats(path, "initial_weights", keras_too=True)
    return {} if weight_files.is_of_keras(path) else files.read(path).values


def saving(
    config: Config,
    built: RunGraph,
    state: TrainingState | None,
    session: tf.compat.v1.Session,
    earlier: Earlier,
    ends_at_step: int,
) -> list[Saving]:
    """Returns the interlude that saves checkpoints of a run, or none.

    Args:
        config: of the run.
        built: its graph.
        state: of the training.
        session: that trains.
        earlier: what earlier runs have trained.
        ends_at_step: the step at which the run is to end.
    """
    directory = config.checkpoints.train_dir
    if state is None or directory is None or config.workload.forward_only:
        return []

    per_epoch = images_per_epoch(config, built.input)

    def save(steps: int) -> None:
        facts = {
            "model": config.workload.model,
            "model_digest": config.workload.model_digest,
            "data_name": config.data.data_name,
            "num_classes": config.workload.num_classes,
            "images": earlier.images + (steps - earlier.steps) * config.batch_global,
            "images_per_epoch": per_epoch,
            "optimizer": config.training.optimizer,
            "variable_update": config.variables.variable_update,
            "graph": _graph(config),
            "ends_at_step": ends_at_step,
            "suite_version": SUITE_VERSION,
        }
        # Not with the options of the steps: the leader alone would count a run of the collectives.
        files.write(directory, steps, state.fetch(session), facts, config.checkpoints.max_ckpts_to_keep)

    return [
        Saving(
            save,
            steps_before=earlier.steps,
            every_steps=config.checkpoints.save_model_steps,
            every_seconds=config.checkpoints.save_model_secs,
        )
    ]


def _require_same(saved: Saved, config: Config) -> None:
    """Compares what a checkpoint is of with what is to be trained.

    Raises:
        UsageError: it is of another model or optimizer.
    """
    where = f"--train_dir={config.checkpoints.train_dir}"
    instead = f"Pass that, or another --train_dir; --initial_weights={saved.prefix} begins a training with its weights."
    wanted = {"model": config.workload.model, "num_classes": config.workload.num_classes}
    if not config.workload.forward_only:
        wanted["optimizer"] = config.training.optimizer
    for name, value in wanted.items():
        if saved.facts[name] != value:
            raise UsageError(
                f"{where}: its checkpoint is of --{name}={saved.facts[name]}, and this run has --{name}={value}. "
                f"{instead if name == 'optimizer' else 'Pass that, or another --train_dir.'}"
            )
    if saved.facts["model_digest"] != config.workload.model_digest:
        warn(f"{where}: the code of {config.workload.model} has changed since the checkpoint was saved.")


def _graph(config: Config) -> dict[str, Any]:
    """Returns what must be equal for values in flight to fit, as JSON has it."""
    return {
        "variable_update": config.variables.variable_update,
        "modifiers": dataclasses.asdict(config.variables.modifiers),
        "towers": config.towers_in_total,
        "batch_per_device": config.workload.batch_per_device,
        "precision": config.computing.precision,
        "pipeline": None if config.variables.pipeline is None else dataclasses.asdict(config.variables.pipeline),
    }
