"""Evaluates weights on every image of a validation set once, whatever manager keeps them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.checkpoints import resuming
from benchmarks.checkpoints.training_state import TrainingState
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.data.options import of_validation
from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.pipeline.input_pipeline import NO_LABEL, RunInput
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.errors import DataError, InvalidRunError
from benchmarks.graph import run_graph
from benchmarks.graph.epochs import is_one_of_every
from benchmarks.graph.run_session import RunSession
from benchmarks.measure.display import FIRST_STEP, Display
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.telemetry import prepared_telemetry
from benchmarks.measure.timing import Phase, Taken
from benchmarks.process.deadlines import Deadlines
from benchmarks.training.objectives import in_top
from benchmarks.training.placement_table import placement_table
from models import specs
from models.building import Model
from models.model_spec import BACKGROUND_CLASSES
from variable_mgr.manager import VariableManager
from variable_mgr.place import HOST

_ROUNDING = 1e-9  # of a number of epochs


class Evaluator:
    """Evaluates in inference mode. Devices take batches in turn; those after the last image are empty.

    Made in a graph, to which it adds no variables.

    Args:
        model: as it was built, before it was divided over devices.
        weights: by name, the variable, or its parts that are joined along the last axis.
        devices: each evaluates a part of the images.
        images: of the devices, each image once, as `input_pipeline.build` makes them.
        num_classes: of the labels.
        deadlines: of its steps, each of which may take as long as preparing one.

    Attributes:
        skipped: bad records that the last whole pass left out; None if such a record ends the run.
    """

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, Sequence[tf.Variable]],
        devices: Sequence[str],
        images: RunInput,
        num_classes: int,
        deadlines: Deadlines,
    ) -> None:
        self._input, self._num_classes, self._deadlines = images, num_classes, deadlines
        assert images.source is not None, "an evaluation reads images"
        self.source = images.source
        self.skipped: int | None = None
        totals = []
        for number, (device, batch) in enumerate(zip(devices, images.towers, strict=True)):
            with tf.device(device), tf.name_scope(f"evaluation_{number}"):
                logits, _ = model.call(_values(model, weights), batch.images, training=False)
                totals.append(_totals(logits, batch.labels, background=num_classes == BACKGROUND_CLASSES))
        with tf.device(HOST):
            self._totals = tf.add_n(totals)
        self.images_per_step = sum(batch.labels.shape[0] for batch in images.towers)

    def steps(self, session: tf.compat.v1.Session) -> Iterator[tuple[np.ndarray, float]]:
        """Begins a pass over the images, and yields the totals of each step, as `_totals`, and the seconds it took.

        Raises:
            DataError: a record cannot be read, or none can be used.
        """
        total, begin = 0.0, time.perf_counter()
        try:
            self._deadlines.preparation("An evaluation's first images")
            for operation in self._input.initializers:
                session.run(operation)
            images = self.images_per_step
            while images == self.images_per_step:
                self._deadlines.preparation("A step (evaluation)")
                totals = session.run(self._totals)
                images = totals[0]
                total += images
                if images:
                    yield totals, time.perf_counter() - begin
                    begin = time.perf_counter()
        except tf.errors.OpError as error:
            self._deadlines.none()  # explaining the error may take longer than the limit
            raise self._input.translate(error, self._num_classes) from error
        if self._input.skipping:
            if self._input.skipping.failure:
                raise self._input.skipping.failure
            self.skipped = self._input.skipping.read - int(total)
        if not total:
            raise DataError(
                f"No image of {self.source.describe()} could be used: 'run_bench.py data check DIR --decode "
                "--data_split=validation' with the same --num_classes lists why."
            )

    def evaluate(self, session: tf.compat.v1.Session) -> dict[str, Any]:
        """Returns the result of a pass over the images."""
        return result_of(np.sum([totals for totals, _ in self.steps(session)], axis=0))


def _values(model: Model, weights: Mapping[str, Sequence[tf.Variable]]) -> list[tf.Tensor]:
    """Returns what inference computes with, one tensor per variable of the model; it does not read towers' states."""
    values = []
    for variable in model.variables:
        if variable.kind == "tower_state":
            values.append(tf.zeros(variable.shape, variable.dtype))
            continue
        parts = []
        for part in weights[variable.name]:
            with tf.device(part.device):
                parts.append(part.read_value())
        values.append(tf.concat(parts, axis=-1) if len(parts) > 1 else parts[0])
    return values


def _totals(logits: tf.Tensor, labels: tf.Tensor, *, background: bool) -> tf.Tensor:
    """Returns sums over a batch without the images with NO_LABEL, [5], float64.

    They are the number of images, of those classified correctly, of those so among the five most likely, the loss, and
    the number of images of class 0, if that is the `background`.
    """
    counts = labels > NO_LABEL
    labels = tf.maximum(labels, 0)
    losses = tf.cast(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), tf.float64)
    correct = (tf.cast(in_top(logits, labels, k), tf.float64) for k in (1, 5))
    of_background = tf.cast(tf.equal(labels, 0), tf.float64) if background else tf.zeros_like(losses)
    each = [tf.ones_like(losses), *correct, losses, of_background]
    return tf.reduce_sum(tf.where(counts, tf.stack(each), tf.zeros([], tf.float64)), axis=1)


def result_of(totals: np.ndarray) -> dict[str, Any]:
    """Returns the number of images, and shares and mean loss over them, for the record."""
    images, top_1, top_5, loss, of_background = totals.tolist()
    shares = {"top_1_accuracy": top_1 / images, "top_5_accuracy": top_5 / images, "loss": loss / images}
    return {"images": int(images), **shares} | ({"background_images": int(of_background)} if of_background else {})


class EvaluationCallback:
    """Evaluates between steps, and after the last; only the process that leads has an evaluator."""

    name = "an evaluation"

    def __init__(self, run: RunSession, evaluator: Evaluator | None) -> None:
        self._run, self._evaluator = run, evaluator
        if evaluator is not None:
            self._warn_of_points_after_the_end()

    def _warn_of_points_after_the_end(self) -> None:
        asked, last = self._run.config.evaluation, self._run.last_step
        epochs = self._run.epochs.after(last) + _ROUNDING
        late = [f"step {at}" for at in asked.eval_at_steps if at > last]
        late += [f"epoch {at:g}" for at in asked.eval_at_epochs if at > epochs]
        if late:
            warn(f"No evaluation follows {', '.join(late)}: the training ends after step {last}.")

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether to evaluate; after the last step unless that was already done.

        An evaluation that is due after a number of epochs follows the step that completes them.
        """
        asked = self._run.config.evaluation
        by_steps = steps in asked.eval_at_steps or is_one_of_every(asked.eval_every_steps, steps)
        follows = by_steps or self._completed(steps) != self._completed(steps - 1)
        return follows != last

    def _completed(self, steps: int) -> tuple[int, int]:
        """Returns how many of the epochs after which an evaluation is due so many steps complete: listed, repeated."""
        asked, epochs = self._run.config.evaluation, self._run.epochs.after(steps) + _ROUNDING
        repeated = math.floor(epochs / asked.eval_every_epochs) if asked.eval_every_epochs else 0
        return sum(at <= epochs for at in asked.eval_at_epochs), repeated

    def after_step(self, steps: int) -> bool:
        """Evaluates, and returns whether the accuracy is reached at which training is to end."""
        assert self._evaluator is not None, "only the leader evaluates"
        log = self._run.log
        if not log.numbers.evaluations:
            next(self._evaluator.steps(self._run.session), None)  # TensorFlow optimises the graph
        begin = time.perf_counter()
        result = self._evaluator.evaluate(self._run.session)
        seconds = time.perf_counter() - begin
        result = {"step": steps, "epochs": self._run.epochs.after(steps), **result, "seconds": seconds}
        log.observe(evaluations=[*log.numbers.evaluations, result])
        aim = self._run.config.evaluation.stop_at_top_1_accuracy
        reached: bool = aim is not None and result["top_1_accuracy"] >= aim
        if reached and log.numbers.seconds_to_accuracy is None:
            log.observe(seconds_to_accuracy=process_age_seconds() - (log.numbers.startup_seconds or 0.0))
        self._run.display.evaluated(result)
        return reached


def build_evaluator(
    config: Config, model: Model, manager: VariableManager, devices: DevicePlan, team: Team
) -> Evaluator:
    """Finds the validation set, and builds in the default graph what evaluates a manager's weights on all devices.

    Raises:
        DataError: the validation set is missing or incomplete.
    """
    workload, data = config.workload, config.data
    assert data.input is not None and data.data_dir is not None, "the configuration requires images"
    images = input_pipeline.build(
        specs.find_model(workload.model),
        run_graph.input_spec(config, config.evaluation.eval_batch_size),
        devices.towers,
        of_validation(data.input),
        input_pipeline.find_source(data.data_name, data.data_dir, "validation"),
        once=True,
    )
    return Evaluator(
        model,
        manager.checkpoint_variables(),
        devices.towers,
        images,
        workload.num_classes,
        team.deadlines,
    )


def evaluate_checkpoint(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Evaluates the newest checkpoint of `--train_dir` once, and measures it.

    Raises:
        DataError: there is no checkpoint, or no validation set.
        InvalidRunError: the loss is not finite.
        UsageError: the checkpoint is of another model.
    """
    devices = run_graph.plan_devices(config)
    earlier = resuming.find_earlier(config, team, display)
    team.deadlines.preparation("Building the graph")
    display.phase("building the graph", None)
    with tf.Graph().as_default():
        model = run_graph.build_model(config.workload, config.training, config.computing, config.devices)
        _, manager = run_graph.divided(config.variables, model, devices)
        manager.create(model.variables)
        evaluator = build_evaluator(config, model, manager, devices, team)
        earlier.require_classes(evaluator.source, config.workload.num_classes)
        log.started("graph")
        log.placement = placement_table(manager, devices, training=False, variables=model.variables)
        log.data_set = evaluator.source.identify()
        display.start(run_graph.shown_facts(config, evaluator.source.describe(), log.placement))
        weights = [part for parts in manager.checkpoint_variables().values() for part in parts]
        values = TrainingState(model.variables, manager, None, []).feeds(earlier.values, weights_only=True)
        with tf.compat.v1.Session(config=run_graph.session_config(config.devices, config.runtime)) as session:
            session.run([variable.initializer for variable in weights], feed_dict=values)
            log.telemetry = prepared_telemetry(config.devices, config.place)
            log.observe(startup_seconds=log.started("variables"))
            result = _measured(evaluator, session, log, display)
    team.deadlines.none()
    log.observe(evaluations=[{"step": earlier.steps, "epochs": earlier.epochs, **result}])
    log.observe(skipped_records=evaluator.skipped)
    display.evaluated(result)
    if not math.isfinite(result["loss"]):
        raise InvalidRunError(
            f"The loss of the validation images is {result['loss']:g}, so the accuracies mean nothing: the training "
            "diverged, or numbers overflow. Evaluate an earlier checkpoint."
        )


def _measured(evaluator: Evaluator, session: tf.compat.v1.Session, log: RunLog, display: Display) -> dict[str, Any]:
    """Returns the result of a pass over the images, and measures its full steps but for the first, which opens files.

    One more is taken before: in it TensorFlow optimises the graph. If nothing else is left, the first is measured.
    """

    def note(phase: Phase, batch: np.ndarray, seconds: float) -> None:
        phase.add(Taken(seconds, result_of(batch)["loss"], ended_at=time.perf_counter()))
        display.after_step(phase)

    display.phase(FIRST_STEP, 1)
    note(log.first, *next(evaluator.steps(session)))
    display.phase("measuring", None)
    log.opened_at = begin = time.perf_counter()
    with log.telemetry or contextlib.nullcontext():
        steps = evaluator.steps(session)
        first = totals, _ = next(steps)
        log.images_per_step = int(totals[0])
        for batch, seconds in steps:
            totals = totals + batch
            if batch[0] == evaluator.images_per_step:
                note(log.measured, batch, seconds)
    if not log.measured.step_seconds:
        note(log.measured, *first)
    return {**result_of(totals), "seconds": time.perf_counter() - begin}
