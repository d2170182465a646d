"""Carries out one run inside TensorFlow: builds the graph, starts the session, takes the steps."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from benchmarks.cluster import restarts
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.errors import BenchError, InvalidRunError, headline
from benchmarks.input.addresses import is_address, place
from benchmarks.measure.run_log import RunLog, largest_resident_bytes
from benchmarks.measure.timing import TRY_SMALLER_STEPS
from benchmarks.microbench import input_stages
from benchmarks.one_run import evaluating, graph, reference_loops, resuming, steps, traced_steps
from benchmarks.one_run.display import Display
from benchmarks.one_run.observers import Observers, require_files, write_graph
from benchmarks.process import apart
from benchmarks.process.deadlines import PREPARATION_FACTOR, Deadlines
from benchmarks.topology import devices as device_planning
from benchmarks.training import pipeline
from results.input_verdict import LEAST_REPORTED_WAIT
from variable_mgr.catalog import REFERENCE_LOOPS


def execute(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs `config` and fills `log` during the run.

    Raises:
        UsageError: a device is missing.
        DataError: the data cannot be read.
        OutOfMemoryError: a device or the host is out of memory.
        InvalidRunError: a loss was not finite, or replicas drifted apart.
    """
    device_planning.set_arithmetic(config.runtime)
    _reach(config, display, team)
    run = reference_loops.run if config.variables.variable_update in REFERENCE_LOOPS else _train
    (evaluating.run if config.workload.eval_only else run)(config, log, display, team)
    if config.computing.check_precision:
        log.observe(peak_host_memory_bytes=largest_resident_bytes())
        try:
            log.observe(fp32_losses=_train_in_fp32(config, log, display))
        except (tf.errors.OpError, BenchError) as error:  # the measurement is still valid
            warn(f"--check_precision: training again in fp32 failed, so there is no comparison: {headline(error)}")
    log.reports = list(team.meet("results", log.report().to_message(), patient=True).values())
    _require_valid(log)
    if log.unsaved is not None:
        raise log.unsaved


def _reach(config: Config, display: Display, team: Team) -> None:
    """Asks the storages of other hosts that a run needs for an answer.

    Raises:
        UsageError: TensorFlow has no file system for one.
        DataError: one cannot be reached.
    """
    named = {
        "data_dir": config.data.data_dir,
        "train_dir": config.checkpoints.train_dir,
        "initial_weights": config.checkpoints.initial_weights,
    }
    for flag, path in named.items():
        if path and is_address(path):
            display.phase(f"waiting for the storage of --{flag}", None)
            team.expect(f"An answer from the storage of --{flag}={path}", config.processes.step_timeout_seconds)
            place(path).exists()
            team.expect_nothing()


def _train(config: Config, log: RunLog, display: Display, team: Team) -> None:
    require_files(config, is_leader=team.is_leader)
    with resuming.only_training(config, team):
        _build_and_train(config, log, display, team)


def _build_and_train(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Builds the graph and runs it in a session."""
    devices = graph.plan_devices(config)
    earlier = resuming.find(config, team)
    patience = PREPARATION_FACTOR * config.processes.step_timeout_seconds
    team.expect("Building the graph", patience)
    display.phase("building the graph", None)
    with tf.Graph().as_default() as built_in, tf.device(team.device or None):
        built = graph.build(config, devices, earlier.images_drawn(config))
        log.started("graph")
        log.observe(steps_before=earlier.steps, restarts=restarts.count())
        log.placement = built.placement
        log.data_set = built.input.source.identify() if built.input.source else None
        display.start(steps.facts(config, built.input.description, log.placement))
        write_graph(config, built_in, is_leader=team.is_leader)
        config, count = steps.plan(config, built.input, earlier.steps, earlier.images, earlier.ends_at_step)
        restoring = resuming.restoring(config, built, earlier)
        resuming.require_room(config, restoring.state, team)
        evaluator = evaluating.evaluator(config, built, devices, team)
        options = _run_options(team)

        def shared_is_there() -> None:
            team.meet("initialised their variables")
            team.expect("Preparing the first step", patience)

        try:
            display.phase("initialising the variables", None)
            session_config = graph.session_config(config)
            team.configure(session_config)
            with tf.compat.v1.Session(team.target, graph=built_in, config=session_config) as session:
                built.step.initialize(
                    session,
                    built.input.initializers,
                    alone=team.is_leader,
                    shared_is_there=shared_is_there,
                    options=options,
                    values=restoring.values,
                    resuming=restoring.resumes,
                )
                if config.output.loss_type_to_report == "total_loss" and (penalty := built.penalty()) is not None:
                    display.add_penalty(session.make_callable(penalty))
                ends = earlier.steps + max(1, config.length.num_warmup_batches) + count
                saving = resuming.saving(config, built, restoring.state, session, earlier, ends)
                evaluation = evaluating.evaluation(config, built, evaluator, session, log, display, earlier)
                rate_after = steps.rate_after(config, built.input, earlier.steps, earlier.images)
                with steps.stepping(session, built.step, options, rate_after, earlier.steps) as stepper:
                    observers = Observers(
                        config, session, stepper, log, team, rate_after=rate_after, steps_before=earlier.steps
                    )
                    agenda = observers.agenda(built, [*saving, *evaluation], ends)
                    steps.measure(config, count, stepper, log, display, team, agenda)
                team.meet("measured", patient=True)
                agenda.end()
                log.unsaved = next((each.problem for each in saving), None)
                team.expect("Checking the variables after the run", patience)
                _look_after_the_run(session, built, log, options)
                traced_steps.trace(session, built.step.loops, options, config, log, team)
        except tf.errors.OpError as error:
            raise team.explain(error) or built.input.translate(error, config.workload.num_classes) from error
    team.expect_nothing()
    _measure_input(config, built, log, display, team)


def _run_options(team: Team) -> tf.compat.v1.RunOptions:
    """Returns the options of a run that takes part in collectives: all have this key, and no other run may have it."""
    options = tf.compat.v1.RunOptions()
    options.experimental.collective_graph_key = team.collective_key
    return options


def _measure_input(config: Config, built: graph.RunGraph, log: RunLog, display: Display, team: Team) -> None:
    """Measures the stages of an input that steps have waited for."""
    source = built.input.source
    waited = sum(log.measured.observed.get("input_wait_seconds", []))
    if source is not None and waited >= LEAST_REPORTED_WAIT * sum(log.measured.step_seconds):
        display.phase("measuring the input's stages", None)
        assert config.data.input is not None, "input that is read has options"
        stages = input_stages.measure_after_run(
            source,
            graph.input_spec(config),
            config.data.input,
            num_devices=len(built.input.towers),
            session_config=device_planning.session_config(dataclasses.replace(config.devices, device="cpu")),
            deadlines=Deadlines(team, config.processes.step_timeout_seconds),
        )
        log.observe(input_stages=stages)


def _look_after_the_run(
    session: tf.compat.v1.Session, built: graph.RunGraph, log: RunLog, options: tf.compat.v1.RunOptions
) -> None:
    """Fills `log` with what the measured steps have left: skipped records, the variables, a pipeline's idle shares."""
    if built.input.skipping:
        log.observe(skipped_records=built.input.skipping.close())
    drift = built.drift()
    if drift is not None:
        log.observe(replica_drift=float(session.run(drift, options=options)))
    log.weights_are_finite = bool(session.run(built.finite()))
    if built.step.pass_ends:
        (loop,) = built.step.loops
        shares = pipeline.measured_idle_shares(session, built.step.pass_ends, loop.operation, options)
        log.placement = {**log.placement, "pipeline": {**log.placement["pipeline"], "idle_shares": shares}}


def _train_in_fp32(config: Config, log: RunLog, display: Display) -> list[float]:
    """Takes the run's steps again in fp32, and returns the losses of those that were measured."""
    in_fp32 = dataclasses.replace(config.computing, precision="fp32", loss_scaling=None)
    plain = dataclasses.replace(config, computing=in_fp32)
    device_planning.set_arithmetic(plain.runtime)
    before, measured = len(log.first.losses) + len(log.warmup.losses), len(log.measured.losses)
    display.phase("training again in fp32", before + measured)
    if config.runtime.fpmath is None:
        return _losses(plain, before + measured)[before:]
    # oneDNN reads its math mode once in a process.
    strict = dataclasses.replace(plain.runtime, fpmath="STRICT")
    return apart.call(strict, None, _losses_apart, plain, before + measured)[before:]


def _losses_apart(config: Config, count: int) -> list[float]:
    """Does the same as `_losses` where TensorFlow has just been imported; its errors can be sent to another process."""
    device_planning.set_arithmetic(config.runtime)
    try:
        return _losses(config, count)
    except tf.errors.OpError as error:
        raise BenchError(headline(error)) from None


def _losses(config: Config, count: int) -> list[float]:
    """Trains anew for so many steps, and returns the loss of each."""
    patience = tf.compat.v1.RunOptions(
        timeout_in_ms=int(1000 * PREPARATION_FACTOR * config.processes.step_timeout_seconds)
    )
    with tf.Graph().as_default() as built_in:
        built = graph.build(config, graph.plan_devices(config))
        with tf.compat.v1.Session(graph=built_in, config=graph.session_config(config)) as session:
            built.step.initialize(session, built.input.initializers)
            rate_after = steps.rate_after(config, built.input)
            return [
                built.step.run(session, patience, rate_after(number) if rate_after else None) for number in range(count)
            ]


def _require_valid(log: RunLog) -> None:
    """Raises InvalidRunError if the numbers of all workers together must not be used; every worker decides alike."""
    measurement = log.measurement()
    if not measurement.step_seconds:
        raise InvalidRunError(
            "While all workers measured, they completed fewer steps than there are workers, so there is no common "
            "rate: pass more --num_batches."
        )
    if measurement.skipped_updates and all(measurement.skipped_updates):
        raise InvalidRunError(
            "No measured step updated anything: gradients overflowed in float16 in each. Use --precision=bf16 or fp32."
        )
    if not all(report["weights_are_finite"] for report in log.reports):
        raise InvalidRunError(f"After the run some weights are not finite: the training diverged. {TRY_SMALLER_STEPS}")
    if measurement.replica_drift:
        raise InvalidRunError(
            f"After the run the copies of the variables differ by up to {measurement.replica_drift:g}, but they must "
            "be equal: this is a bug in the suite or in TensorFlow; please report it."
        )
