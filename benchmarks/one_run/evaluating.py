"""Evaluation in a run: during training, or alone of a checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks.between_steps import options
from benchmarks.between_steps.evaluation import Evaluation, Evaluator, Totals, due_steps
from benchmarks.checkpoints.training_state import TrainingState
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.timing import Phase
from benchmarks.one_run import graph, resuming, steps
from benchmarks.one_run.display import FIRST_STEP, Display
from benchmarks.one_run.epochs import Epochs
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.training.placement_table import placement_table


def evaluation(
    wanted: options.Evaluation,
    epochs: Epochs,
    evaluator: Evaluator | None,
    session: tf.compat.v1.Session,
    log: RunLog,
    display: Display,
) -> Evaluation:
    """Returns the interlude that evaluates during training; only the process that leads has an evaluator."""

    def evaluate() -> dict[str, Any]:
        assert evaluator is not None, "only the leader evaluates"
        return evaluator.evaluate(session)

    def note(number: int, result: dict[str, Any], reached: bool) -> None:
        noted = {"step": number, "epochs": epochs.after(number), **result}
        log.observe(evaluations=[*log.numbers.evaluations, noted])
        if reached and log.numbers.seconds_to_accuracy is None:
            log.observe(seconds_to_accuracy=process_age_seconds() - (log.numbers.startup_seconds or 0.0))
        display.evaluated(noted)

    follows = due_steps(wanted, epochs.after)
    return Evaluation(follows, evaluate, note, wanted.stop_at_top_1_accuracy)


def run(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Evaluates the newest checkpoint of `--train_dir` once, and measures it.

    Raises:
        DataError: there is no checkpoint, or no validation set.
        UsageError: the checkpoint is of another model.
    """
    workload, training = config.workload, config.training
    devices = graph.plan_devices(config)
    earlier = resuming.find(config.checkpoints, resuming.facts(config), team, display, weights_only=True)
    display.phase("building the graph", None)
    with tf.Graph().as_default():
        model = graph.build_model(workload, training, config.computing)
        _, manager = graph.divided(config.variables, model, devices)
        manager.create(model.variables)
        spec = graph.input_spec(workload, config.place, training.seed, config.evaluation.eval_batch_size)
        evaluator = graph.build_evaluator(workload, config.data, spec, model, manager, devices)
        log.started("graph")
        log.placement = placement_table(manager, devices, training=False, variables=model.variables)
        log.data_set = evaluator.source.identify()
        display.start(steps.facts(config, evaluator.source.describe(), log.placement))
        weights = [part for parts in manager.checkpoint_variables().values() for part in parts]
        values = TrainingState(model.variables, manager, None, []).feeds(earlier.values, weights_only=True)
        with tf.compat.v1.Session(config=graph.session_config(config.devices, config.runtime)) as session:
            session.run([variable.initializer for variable in weights], feed_dict=values)
            with steps.prepared_telemetry(config.devices, config.place) as log.telemetry:
                log.observe(startup_seconds=log.started("variables"))
                limit_seconds = PREPARATION_FACTOR * config.processes.step_timeout_seconds
                result = _measured(evaluator, session, log, display, team, limit_seconds)
    team.expect_nothing()
    log.observe(evaluations=[{"step": earlier.steps, "epochs": earlier.epochs, **result}])
    display.evaluated(result)


def _measured(
    evaluator: Evaluator,
    session: tf.compat.v1.Session,
    log: RunLog,
    display: Display,
    team: Team,
    limit_seconds: float,
) -> dict[str, Any]:
    """Returns the result of a pass over the images, and measures its steps, but not the last if it is not full.

    The first step is taken before: in it TensorFlow optimises the graph.
    """

    def timed() -> Iterator[tuple[Totals, float]]:
        batches = evaluator.steps(session)
        while True:
            team.expect("A step (evaluation)", limit_seconds)
            begin = time.perf_counter()
            batch = next(batches, None)
            seconds = time.perf_counter() - begin
            if batch is None:
                return
            yield batch, seconds

    def note(phase: Phase, batch: Totals, seconds: float) -> None:
        phase.step_seconds.append(seconds)
        phase.losses.append(batch.loss / batch.images)
        phase.ended_at.append(time.perf_counter())
        display.after_step(phase)

    display.phase(FIRST_STEP, 1)
    note(log.first, *next(timed()))
    display.phase("measuring", None)
    totals, begin = Totals(), time.perf_counter()
    log.opened_at = begin
    with log.telemetry or contextlib.nullcontext():
        for batch, seconds in timed():
            totals += batch
            if batch.images == evaluator.images_per_step or not log.measured.step_seconds:
                log.images_per_step = int(batch.images)
                note(log.measured, batch, seconds)
    return {**totals.result(), "seconds": time.perf_counter() - begin}
