"""Evaluation in a run: during training, or alone of a checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from benchmarks.between_steps.evaluation import Evaluation, Evaluator, Totals, due_steps
from benchmarks.checkpoints.training_state import TrainingState
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.timing import Phase
from benchmarks.one_run import graph, resuming, steps
from benchmarks.one_run.display import FIRST_STEP, Display
from benchmarks.one_run.graph import RunGraph
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.topology.devices import DevicePlan


def evaluator(config: Config, built: RunGraph, devices: DevicePlan, team: Team) -> Evaluator | None:
    """Builds what evaluates during training; None if that is not wanted, and in processes that do not lead."""
    if not (config.evaluation.is_scheduled and team.is_leader):
        return None
    return graph.build_evaluator(config, built.model, built.manager.checkpoint_variables(), devices)


def evaluation(
    config: Config,
    built: RunGraph,
    evaluator: Evaluator | None,
    session: tf.compat.v1.Session,
    log: RunLog,
    display: Display,
    earlier: resuming.Earlier,
) -> list[Evaluation]:
    """Returns the interlude that evaluates during training, or none.

    Args:
        config: of the run.
        built: its graph.
        evaluator: of the graph's weights; None in processes that do not lead.
        session: that trains.
        log: gets the results.
        display: shows them.
        earlier: what earlier runs have trained.
    """
    wanted = config.evaluation
    if not wanted.is_scheduled:
        return []
    images_per_epoch = steps.images_per_epoch(config, built.input)

    def epochs_after(number: int) -> float:
        return (earlier.images + (number - earlier.steps) * config.batch_global) / images_per_epoch

    def evaluate() -> dict[str, Any]:
        assert evaluator is not None, "only the leader evaluates"
        return evaluator.evaluate(session)

    def note(number: int, result: dict[str, Any], reached: bool) -> None:
        noted = {"step": number, "epochs": epochs_after(number), **result}
        log.observe(evaluations=[*log.numbers.evaluations, noted])
        if reached and log.numbers.seconds_to_accuracy is None:
            log.observe(seconds_to_accuracy=process_age_seconds() - (log.numbers.startup_seconds or 0.0))
        display.evaluated(noted)

    follows = due_steps(
        epochs_after,
        every_steps=wanted.eval_every_steps,
        every_epochs=wanted.eval_every_epochs,
        at_steps=wanted.eval_at_steps,
        at_epochs=wanted.eval_at_epochs,
    )
    return [Evaluation(follows, evaluate, note, wanted.stop_at_top_1_accuracy)]


def run(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Evaluates the newest checkpoint of `--train_dir` once, and measures it.

    Raises:
        DataError: there is no checkpoint, or no validation set.
        UsageError: the checkpoint is of another model.
    """
    devices = graph.plan_devices(config)
    earlier = resuming.find(config, team)
    display.phase("building the graph", None)
    with tf.Graph().as_default() as built_in:
        built = graph.build_evaluation(config, devices)
        log.started("graph")
        log.placement, source = built.placement, built.evaluator.source
        log.data_set = source.identify()
        display.start(steps.facts(config, source.describe(), log.placement))
        weights = [part for parts in built.manager.checkpoint_variables().values() for part in parts]
        values = TrainingState(built.model.variables, built.manager, None, []).feeds(earlier.values, weights_only=True)
        with tf.compat.v1.Session(graph=built_in, config=graph.session_config(config)) as session:
            session.run([variable.initializer for variable in weights], feed_dict=values)
            with steps.prepared_telemetry(config) as log.telemetry:
                log.observe(startup_seconds=log.started("variables"))
                result = _measured(config, built.evaluator, session, log, display, team)
    team.expect_nothing()
    log.observe(evaluations=[{"step": earlier.steps, "epochs": earlier.epochs, **result}])
    display.evaluated(result)


def _measured(
    config: Config, evaluator: Evaluator, session: tf.compat.v1.Session, log: RunLog, display: Display, team: Team
) -> dict[str, Any]:
    """Returns the result of a pass over the images, and measures its steps, but not the last if it is not full.

    The first step is taken before: in it TensorFlow optimises the graph.
    """

    def timed() -> Iterator[tuple[Totals, float]]:
        batches = evaluator.steps(session)
        while True:
            team.expect("A step (evaluation)", PREPARATION_FACTOR * config.processes.step_timeout_seconds)
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
