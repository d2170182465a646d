"""What a run takes from checkpoints, and what it leaves in them for the next."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.checkpoints import checkpoint_files, keras_exchange
from benchmarks.checkpoints.checkpoint_files import Saved
from benchmarks.checkpoints.training_state import IN_FLIGHT, TrainingState, of_other_classes
from benchmarks.cluster import restarts
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.data.sources.class_folders import PhotoFolder, digest
from benchmarks.data.sources.data_sets import StoredImages
from benchmarks.data.sources.imagenet_files import PhotoRecords, labels_of
from benchmarks.data.sources.safe_files import only_writer
from benchmarks.data.sources.storage import is_address
from benchmarks.errors import DataError, UsageError
from benchmarks.graph.run_graph import RunGraph
from benchmarks.measure.display import Display
from variable_mgr.modifiers import Modifiers


@dataclasses.dataclass(frozen=True)
class Earlier:
    """What earlier runs have left of a training; nothing, if it begins.

    Attributes:
        steps: that were trained.
        images: that were trained with, by all towers.
        ends_at_step: the last step that the failed attempt had planned. None: this is no restart, or the attempt saved
            no checkpoint.
        values: of the checkpoint's entries, by name; without what is in flight if this run's graph is another one.
        epochs: passes over the data set that the images were.
        classes: what `classes_of` returned for the images of the training, of each kind.
        initial_weights: to begin with, from another training's checkpoint, by name.
    """

    steps: int = 0
    images: int = 0
    ends_at_step: int | None = None
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    epochs: float = 0.0
    classes: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    initial_weights: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def images_drawn(self, modifiers: Modifiers, images_per_step: int) -> int:
        """Returns how many images the training has drawn from the data set: those of staged gradients, too."""
        is_staged = modifiers.staged_vars and any(name.startswith(IN_FLIGHT) for name in self.values)
        return self.images + is_staged * images_per_step

    def require_classes(self, source: StoredImages | None, num_classes: int) -> None:
        """Compares the classes of the training with those of this run's images, as far as both are known.

        Raises:
            UsageError: labels would mean other classes: they have other names, or another order; or nothing shows
                whether the labels of records are numbered as those of the training were.
        """
        now = classes_of(source, num_classes)
        if source is None or all(self.classes.get(kind, value) == value for kind, value in now.items()):
            return
        if not isinstance(source, PhotoRecords):
            raise UsageError(
                f"The classes of {source.directory} are not those that the checkpoint was trained on, so its labels "
                "mean others. Pass a --data_dir with the same class folders in train, or another --train_dir."
            )
        if source.first_label(num_classes) is None:
            raise UsageError(
                f"The images of {source.directory} do not show whether their labels count from 0 or 1; those that the "
                f"checkpoint was trained on counted from {self.classes[source.layout.label]}. Pass a --data_dir that "
                "has the train shards, too."
            )


def classes_of(source: StoredImages | None, num_classes: int) -> dict[str, str | int]:
    """Returns what tells how images are labelled: of a folder, a checksum of its classes' names in their order.

    Of records it is the first label, by its key; of other images nothing.
    """
    if isinstance(source, PhotoRecords):
        return {source.layout.label: labels_of(source, num_classes).start}
    return {"class folders": digest(source.classes)} if isinstance(source, PhotoFolder) else {}


def checkpoint_facts(config: Config) -> dict[str, Any]:
    """Returns what a checkpoint of a run is of, as JSON has it; `graph` must be equal for values in flight to fit."""
    workload, variables = config.workload, config.variables
    return {
        "model": workload.model,
        "model_digest": workload.model_digest,
        "data_name": config.data.data_name,
        "num_classes": workload.num_classes,
        "optimizer": config.training.optimizer,
        "graph": {
            "variable_update": variables.variable_update,
            "modifiers": dataclasses.asdict(variables.modifiers),
            "towers": config.towers_in_total,
            "batch_per_device": workload.batch_per_device,
            "precision": config.computing.precision,
            "pipeline": None if variables.pipeline is None else dataclasses.asdict(variables.pipeline),
        },
    }


@contextlib.contextmanager
def only_training(directory: str | None, team: Team) -> Iterator[None]:
    """Keeps other trainings out of the directory of checkpoints. The leader locks it, since it alone saves.

    Raises:
        UsageError: another training uses it.
    """
    with contextlib.ExitStack() as stack:
        if directory is not None and team.is_leader:
            try:
                if is_address(directory):
                    raise OSError(errno.ENOLCK, "its storage has no locks")
                stack.enter_context(only_writer(Path(directory), "checkpoints"))
            except OSError as error:  # a file system without locks, or another storage
                warn(f"--train_dir={directory} cannot be locked ({error.strerror}): let only one training use it.")
        yield


def find_earlier(config: Config, team: Team, display: Display) -> Earlier:
    """Reads the newest whole checkpoint of `--train_dir`, if it has one, or else that of `--initial_weights`.

    If nothing is trained there must be a checkpoint, and its optimizer does not matter.

    Raises:
        DataError: there are only damaged ones, or those of other programs; or inference needs one, and there is none.
            Or the initial weights cannot be read.
        UsageError: it is of another model or optimizer, or workers see different checkpoints.
    """
    directory, saved, of_run = config.checkpoints.train_dir, None, checkpoint_facts(config)
    weights_only = config.workload.forward_only
    if directory is not None:
        saved, found = _newest(directory, team, weights_only=weights_only), f"{directory} has none, so training begins"
        if saved is not None:
            _require_same(saved, of_run, f"--train_dir={directory}", weights_only=weights_only)
            found = f"{'weights' if weights_only else 'continuing'} after step {saved.steps}, from {saved.prefix}"
            found += ", not from --initial_weights" * (config.checkpoints.initial_weights is not None)
        if team.is_leader:
            display.note(f"Checkpoints: {found}.")
    if saved is None:
        return Earlier(initial_weights=_of_other_training(config.checkpoints.initial_weights))
    values = saved.values
    if saved.facts.get("graph") != of_run["graph"]:
        values = {name: value for name, value in values.items() if not name.startswith(IN_FLIGHT)}
    images = saved.facts["images"]
    return Earlier(
        saved.steps,
        images,
        ends_at_step=_end_of_attempt(saved),
        values=values,
        epochs=images / saved.facts["images_per_epoch"],
        classes=saved.facts.get("classes") or {},
    )


def _newest(directory: str, team: Team, *, weights_only: bool) -> Saved | None:
    """Returns the newest whole checkpoint, which is the same for all workers; None if the directory has none."""
    saved = checkpoint_files.read_checkpoint(directory) if weights_only else checkpoint_files.latest(directory)
    steps = team.meet("looked for a checkpoint", saved and saved.steps)
    if len(set(steps.values())) > 1:
        seen = ", ".join(f"{task} {'none' if found is None else f'step {found}'}" for task, found in steps.items())
        raise UsageError(
            f"--train_dir={directory}: the workers see different checkpoints ({seen}). Pass a directory that all share."
        )
    return saved


def _end_of_attempt(saved: Saved) -> int | None:
    """Returns the step at which the training was to end, if an attempt of this run has saved the checkpoint."""
    run = restarts.inherited().run
    if not run or saved.facts.get("run") != run:
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
    checkpoints, place = config.checkpoints, config.place
    if checkpoints.train_dir is None and checkpoints.initial_weights is None:
        return Restoring()
    state = TrainingState(
        built.model.variables,
        built.manager,
        built.step.optimizer,
        built.variables,
        first_tower=place.worker * len(place.towers),
        alone=place.workers == 1,
    )
    if earlier.values:
        return Restoring(state, state.feeds(earlier.values), state.resumes(earlier.values))
    if checkpoints.initial_weights is not None:
        weights = earlier.initial_weights or keras_exchange.read_keras_weights(checkpoints.initial_weights, built.model)
        other_head = of_other_classes(weights, built.model.variables)
        if other_head and place.worker == 0:
            warn(
                f"--initial_weights={checkpoints.initial_weights} has another number of classes than this run, "
                f"{config.workload.num_classes}, so the last layer begins anew."
            )
        try:
            return Restoring(state, state.feeds(weights, weights_only=True, without=other_head))
        except DataError as error:
            raise DataError(f"--initial_weights={checkpoints.initial_weights}: {error}") from error
    return Restoring(state)


def _of_other_training(path: str | None) -> Mapping[str, np.ndarray]:
    """Returns the values of a checkpoint of `--initial_weights`; none for a file of Keras, which is read into a model.

    Raises:
        DataError: it is missing, damaged or of another format. This is found before anything is built.
    """
    if path is None:
        return {}
    if path.lower().endswith(keras_exchange.KERAS_FILES):
        keras_exchange.require_keras_file(path)
        return {}
    return checkpoint_files.read_checkpoint(path).values


def _require_same(saved: Saved, facts: Mapping[str, Any], where: str, *, weights_only: bool) -> None:
    """Compares what a checkpoint is of with what is to be trained.

    Raises:
        UsageError: it is of another model or optimizer.
    """
    instead = f"Pass that, or another --train_dir; --initial_weights={saved.prefix} begins a training with its weights."
    for name in ("model", "num_classes", *(() if weights_only else ("optimizer",))):
        if saved.facts[name] != facts[name] and not (name == "model" and _is_moved(saved.facts, facts)):
            raise UsageError(
                f"{where}: its checkpoint is of --{name}={saved.facts[name]}, and this run has --{name}={facts[name]}. "
                f"{instead if name == 'optimizer' else 'Pass that, or another --train_dir.'}"
            )
    if saved.facts["model_digest"] != facts["model_digest"]:
        warn(f"{where}: the code of {facts['model']} has changed since the checkpoint was saved.")


def _is_moved(saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether two models are the same function of the same code, in other places."""
    before, after = ((facts["model_digest"], facts["model"].rpartition(":")[2]) for facts in (saved, now))
    return before == after and before[0] is not None
