"""Carries out one run inside TensorFlow: builds the graph, starts the session, takes the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import InvalidRunError, headline
from benchmarks.measure.run_log import RunLog, largest_resident_bytes
from benchmarks.measure.timing import TRY_SMALLER_STEPS
from benchmarks.microbench import input_stages
from benchmarks.run import reference_run
from benchmarks.run import steps as run_facts
from benchmarks.run.display import Display
from benchmarks.run.steps import FIRST_STEPS, measure, stepping
from benchmarks.run.team import Team
from benchmarks.topology.devices import session_config
from benchmarks.training import run_graph, run_input
from benchmarks.training.run_graph import RunGraph
from models import specs
from results.input_verdict import LEAST_REPORTED_WAIT
from variable_mgr.catalog import REFERENCE_LOOPS


def execute(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs `config` and fills `log` as it goes.

    Raises:
        UsageError: the devices are not there.
        DataError: the data cannot be read.
        OutOfMemoryError: a device's or the host's memory does not suffice.
        InvalidRunError: a loss was not finite, or replicas drifted apart.
    """
    # fp32 means fp32; TensorFlow's default is TF32.
    tf.config.experimental.enable_tensor_float_32_execution(config.precision == "tf32")
    (reference_run.run if config.variable_update in REFERENCE_LOOPS else _train)(config, log, display, team)
    if config.check_precision:
        log.peak_host_memory_bytes = largest_resident_bytes()
        try:
            log.fp32_losses = _train_in_fp32(config, log, display)
        except tf.errors.OpError as error:  # what has been measured is still good
            warn(f"--check_precision: training again in fp32 failed, so there is nothing to compare: {headline(error)}")
    log.reports = list(team.meet("results", log.report().to_message(), patient=True).values())
    _require_valid(log)


def _train(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Builds the graph and runs it in a session."""
    spec = specs.find(config.model)
    devices = run_graph.plan_devices(config)
    team.expect("Building the graph", FIRST_STEPS * config.step_timeout_seconds)
    with tf.Graph().as_default() as graph, tf.device(team.device or None):
        built = run_graph.build(config, spec, devices)
        log.started("graph")
        log.placement = built.placement
        log.data_set = built.input.source.identify() if built.input.source else None
        display.start(run_facts.facts(config, built.input.description, log.placement))
        steps = run_facts.steps_to_measure(config, built.input)
        try:
            options = run_graph.session_config(config)
            team.configure(options)
            with tf.compat.v1.Session(team.target, graph=graph, config=options) as session:
                log.weights_are_finite = _run(config, built, session, steps, log, display, team)
        except tf.errors.OpError as error:
            raise team.explain(error) or built.input.translate(error, config.num_classes) from error
    team.expect_nothing()
    log.input_stages = _slow_input(config, built.input, log, display)


def _train_in_fp32(config: Config, log: RunLog, display: Display) -> list[float]:
    """Takes the run's steps again in fp32, and returns the losses of those that were measured."""
    plain = dataclasses.replace(config, precision="fp32", loss_scaling=None)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    before, measured = len(log.first.losses) + len(log.warmup.losses), len(log.measured.losses)
    display.phase("training again in fp32", before + measured)
    patience = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * FIRST_STEPS * config.step_timeout_seconds))
    with tf.Graph().as_default() as graph:
        built = run_graph.build(plain, specs.find(plain.model), run_graph.plan_devices(plain))
        with tf.compat.v1.Session(graph=graph, config=run_graph.session_config(plain)) as session:
            built.step.initialize(session, built.input.initializers)
            losses = [built.step.run(session, patience) for _ in range(before + measured)]
    return losses[before:]


def _require_valid(log: RunLog) -> None:
    """Checks what all workers have reported, so that all come to the same end.

    Raises:
        InvalidRunError: the numbers must not be used.
    """
    measurement = log.measurement()
    if not measurement.step_seconds:
        raise InvalidRunError(
            "While all workers measured, they did not complete as many steps as there are workers, so there is no "
            "common rate: give more --num_batches."
        )
    if measurement.skipped_updates and all(measurement.skipped_updates):
        raise InvalidRunError(
            "No measured step updated anything: in each, gradients overflowed in float16. Say --precision=bf16 or fp32."
        )
    if not all(report["weights_are_finite"] for report in log.reports):
        raise InvalidRunError(f"After the run some weights are not finite: the training diverged. {TRY_SMALLER_STEPS}")
    drift = measurement.replica_drift
    if drift:
        raise InvalidRunError(
            f"After the run the copies of the variables differ by up to {drift:g}, and they must be equal: this is a "
            "fault of the suite or of TensorFlow; please report it."
        )


def _run(
    config: Config,
    built: RunGraph,
    session: tf.compat.v1.Session,
    steps: int,
    log: RunLog,
    display: Display,
    team: Team,
) -> bool:
    """Does all that needs the session; returns whether the weights are finite in the end."""
    # For what meets the others' collectives, and nothing else: each such run counts, and all must count alike.
    options = tf.compat.v1.RunOptions()
    options.experimental.collective_graph_key = team.collective_key
    built.step.initialize(
        session,
        built.input.initializers,
        alone=team.is_leader,
        shared_is_there=lambda: _all_have(team, "initialised their variables", config),
        options=options,
    )
    with stepping(session, built.step, options) as stepper:
        measure(config, steps, stepper, log, display, team)
    team.meet("measured", patient=True)
    team.expect("Looking at the variables after the run", FIRST_STEPS * config.step_timeout_seconds)
    if built.input.skipping:
        log.skipped_records = built.input.skipping.close()
    if built.drift is not None:
        log.replica_drift = float(session.run(built.drift, options=options))
    return bool(session.run(built.finite))


def _all_have(team: Team, done: str, config: Config) -> None:
    team.meet(done)
    team.expect("Preparing the first step", FIRST_STEPS * config.step_timeout_seconds)


def _slow_input(config: Config, tower_input: run_input.RunInput, log: RunLog, display: Display) -> Mapping[str, float]:
    """Returns how fast the input's stages are, if the run had to wait for it; else nothing is measured."""
    waited, seconds = sum(log.measured.observed.get("input_wait_seconds", [])), sum(log.measured.step_seconds)
    if tower_input.source is None or waited < LEAST_REPORTED_WAIT * seconds:
        return {}
    display.phase("measuring the input's stages", None)
    assert config.input is not None, "input that is read has options"
    return input_stages.measure_after_run(
        tower_input.source,
        run_input.spec_of(config),
        config.input,
        num_devices=config.num_devices,
        session_config=session_config("cpu", config.num_devices, **config.runtime.session_options()),
    )
