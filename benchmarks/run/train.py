"""A run inside TensorFlow, from top to bottom: build, initialise, warm up, measure with callbacks, check, trace."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from benchmarks.callbacks import evaluation, summaries
from benchmarks.callbacks.callback import Callback, Callbacks
from benchmarks.checkpoints import resuming, saving
from benchmarks.checkpoints.training_state import TrainingState
from benchmarks.cluster import restarts
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.data.pipeline import input_stages
from benchmarks.data.sources.storage import is_address, path_of
from benchmarks.devices import device_plan
from benchmarks.errors import BenchError, InvalidRunError, UsageError, headline
from benchmarks.graph import run_graph
from benchmarks.graph.epochs import Epochs, images_per_epoch, plan
from benchmarks.graph.run_graph import RunGraph
from benchmarks.graph.run_session import RunSession
from benchmarks.graph.stepper import rate_after, stepping
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import TRY_SMALLER_STEPS
from benchmarks.measure.worker_reports import WorkerReport
from benchmarks.process import apart
from benchmarks.run import loop, reference_loops
from benchmarks.tracing import graph_files, profiles, traced_steps
from benchmarks.training import pipeline
from models import specs
from models.model_spec import ModelSpec
from results.input_bottleneck import LEAST_REPORTED_WAIT
from variable_mgr.catalog import PYTORCH_LOOPS, REFERENCE_LOOPS


def run_loop(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs the loop that a configuration names in this process, reports to the other workers, and fills `log`.

    Raises:
        UsageError: a device is missing.
        DataError: the data cannot be read.
        OutOfMemoryError: a device or the host is out of memory.
        InvalidRunError: a loss was not finite, or replicas drifted apart.
    """
    device_plan.set_arithmetic(config.runtime)
    _wait_for_storage(config, display, team)
    team.deadlines.preparation("Opening the devices and checkpoints")
    if config.workload.eval_only:
        evaluation.evaluate_checkpoint(config, log, display, team)
    elif config.variables.variable_update in PYTORCH_LOOPS:
        try:
            from benchmarks.run import pytorch_loop  # PyTorch may not be installed
        except (ImportError, OSError) as error:
            raise UsageError(
                f"PyTorch is installed, and cannot be imported: {headline(error)} Install a build of it for this "
                "driver and for TensorFlow's version of CUDA, see docs/howto/compare-with-pytorch.md."
            ) from error
        pytorch_loop.run_pytorch_loop(config, log, display, team)
    elif config.variables.variable_update in REFERENCE_LOOPS:
        reference_loops.run_reference_loop(config, log, display, team)
    else:
        train(config, log, display, team)
    if config.computing.check_precision:
        _train_in_fp32(config, log, display, team)
    messages = team.meet("results", log.report().to_message(), patient=True)
    log.reports = [*map(WorkerReport.from_message, messages.values())]
    _require_valid(log)
    if log.unsaved:
        raise next(iter(log.unsaved.values()))


def train(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Trains, or infers: builds the graph, takes its steps in a session, and looks at what they have left."""
    saved_in = None if config.workload.forward_only else config.checkpoints.train_dir
    graph_files.require_files(config, saves=bool(saved_in), leads=team.is_leader)
    devices = run_graph.plan_devices(config)
    with resuming.only_training(saved_in, team), tf.Graph().as_default() as graph, tf.device(team.device or None):
        # Build the graph.
        earlier = resuming.find_earlier(config, team, display)
        team.deadlines.preparation("Building the graph")
        display.phase("building the graph", None)
        drawn = earlier.images_drawn(config.variables.modifiers, config.batch_global)
        built = run_graph.build(config, devices, drawn)
        if not config.workload.forward_only or config.workload.print_training_accuracy:
            earlier.require_classes(built.input.source, config.workload.num_classes)
        log.started("graph")
        log.observe(steps_before=earlier.steps, restarts=len(restarts.inherited().failures))
        log.placement = built.placement
        log.data_set = built.input.source.identify() if built.input.source else None
        display.start(run_graph.shown_facts(config, built.input.description, log.placement))
        if config.traces.graph_file and team.is_leader:
            with log.writing("The graph", config.traces.graph_file):
                graph_files.write_graph(graph.as_graph_def(), Path(config.traces.graph_file))
        with _explained(built, config, team):
            epochs = _epochs(config, built, earlier.steps, earlier.images)
            steps = plan(config.length, epochs, config.steps_per_round, saved_in, earlier.ends_at_step)
            restored = resuming.restoring(config, built, earlier)
            if saved_in and restored.state and team.is_leader:
                saving.require_room(saved_in, restored.state)
            evaluator = None
            if config.evaluation.is_scheduled and team.is_leader:
                evaluator = evaluation.build_evaluator(config, built.model, built.manager, devices, team)

            # Initialise the variables. What is added to the graph of a session later costs the whole graph once more.
            display.phase("initialising the variables", None)
            penalty = built.penalty() if config.output.loss_type_to_report == "total_loss" else None
            session_config = team.configured(run_graph.session_config(config.devices, config.runtime))
            options = tf.compat.v1.RunOptions()
            # Workers whose collectives meet pass the same key; 0: there are no collectives across processes.
            options.experimental.collective_graph_key = team.collective_key
            with tf.compat.v1.Session(team.target, config=session_config) as session:
                _initialize(session, options, built, restored, config, team, log)
                if penalty is not None:
                    display.add_penalty(session.make_callable(penalty))

                # Take the steps: the first, the warm-up, the measured ones, with callbacks between them.
                rates = rate_after(config.training, epochs)
                with stepping(session, built.step, options, rates, epochs.steps_before) as stepper:
                    run = RunSession(config, built, session, options, stepper, epochs, steps, log, display, team)
                    callbacks = _callbacks(run, restored.state if saved_in else None, earlier.classes, evaluator)
                    loop.measure(config, steps, stepper, log, display, team, callbacks)
                team.meet("measured", patient=True)
                callbacks.after_run()

                # Check the variables, and trace steps.
                team.deadlines.preparation("Checking the variables after the run")
                _check_variables(run)
                traced_steps.trace(run)
    team.deadlines.none()
    _measure_input(run)


@contextlib.contextmanager
def _explained(built: RunGraph, config: Config, team: Team) -> Iterator[None]:
    """Turns an error of TensorFlow into one that says what to do: of a lost task, of the data, of memory."""
    try:
        yield
    except tf.errors.OpError as error:
        raise team.explain(error) or built.input.translate(error, config.workload.num_classes) from error


def _epochs(config: Config, built: RunGraph, steps_before: int = 0, images_before: int = 0) -> Epochs:
    length = images_per_epoch(config.workload.model, built.input.source)
    return Epochs(length, config.batch_global, steps_before, images_before)


def _callbacks(
    run: RunSession,
    state: TrainingState | None,
    classes: Mapping[str, str | int],
    evaluator: evaluation.Evaluator | None,
) -> Callbacks:
    """Returns what is called between the steps of a run: checkpoints of `state`, then evaluation, then summaries."""
    config = run.config
    callbacks: list[Callback] = [saving.CheckpointCallback(run, state, classes)] if state else []
    if config.evaluation.is_scheduled:
        callbacks.append(evaluation.EvaluationCallback(run, evaluator))
    of_summaries = [summaries.SummaryCallback(run)] if config.summaries.summary_verbosity else []
    profiled = profiles.profiled_steps(run)
    by_epochs = bool(config.length.num_epochs and config.checkpoints.train_dir)
    return Callbacks(
        run.team,
        steps=run.epochs.steps_before,
        callbacks=[*callbacks, *of_summaries],
        unmeasured=[profiled, *of_summaries] if profiled else of_summaries,
        ends_at=run.last_step if by_epochs else None,
    )


def _wait_for_storage(config: Config, display: Display, team: Team) -> None:
    """Checks that each storage of other hosts that the run needs answers.

    Raises:
        UsageError: TensorFlow has no file system for one.
        DataError: one cannot be reached.
    """
    checkpoints = config.checkpoints
    paths = {
        "data_dir": config.data.data_dir,
        "train_dir": checkpoints.train_dir,
        "initial_weights": checkpoints.initial_weights,
    }
    for flag, path in paths.items():
        if path and is_address(path):
            display.phase(f"waiting for the storage of --{flag}", None)
            team.deadlines.step(f"An answer from the storage of --{flag}={path}")
            path_of(path).exists()
            team.deadlines.none()


def _initialize(
    session: tf.compat.v1.Session,
    options: tf.compat.v1.RunOptions,
    built: RunGraph,
    restored: resuming.Restoring,
    config: Config,
    team: Team,
    log: RunLog,
) -> None:
    def shared_is_there() -> None:
        data_sets = team.meet("initialised their variables", log.data_set)
        if len({*data_sets.values()}) > 1:
            named = "; ".join(f"{task}: {found}" for task, found in data_sets.items())
            different = (
                f"The workers' data differ in names, sizes or form ({named}), and each reads its share of its own as "
                "if all had the same. Copy the same files to all hosts."
            )
            log.doubts = [*log.doubts, different]
        team.deadlines.preparation("Preparing the first step")

    built.step.initialize(
        session,
        built.input.initializers,
        alone=team.is_leader,
        shared_is_there=shared_is_there,
        options=options,
        values=restored.values,
        resuming=restored.resumes,
    )


def _check_variables(run: RunSession) -> None:
    """Fills the log with what the steps have left: skipped records, the variables, a pipeline's idle shares."""
    built, log = run.built, run.log
    if built.input.skipping:
        log.observe(skipped_records=built.input.skipping.close())
    found = run.session.run([each for each in (built.finite(), built.drift()) if each is not None], options=run.options)
    log.weights_are_finite = bool(found[0])
    if len(found) > 1:
        log.observe(replica_drift=float(found[1]))
    if built.step.pass_times:
        (steps,) = built.step.loops
        shares = pipeline.measured_idle_shares(run.session, built.step.pass_times, steps.operation, run.options)
        log.placement = {**log.placement, "pipeline": {**log.placement["pipeline"], "idle_shares": shares}}


def _measure_input(run: RunSession) -> None:
    """Measures the stages of an input that steps have waited for; other workers, which may be on this host, wait."""
    built, config, log, source = run.built, run.config, run.log, run.built.input.source
    waited_seconds = sum(log.measured.observed.get("input_wait_seconds", []))
    is_bound = waited_seconds >= LEAST_REPORTED_WAIT * sum(log.measured.step_seconds)
    if source is None or not run.team.is_leader or not is_bound:
        return
    run.display.phase("measuring the input's stages", None)
    assert config.data.input is not None, "input that is read has options"
    measured = input_stages.Measuring(
        source=source,
        spec=built.input_spec,
        options=config.data.input,
        num_devices=len(built.input.towers),
        session_config=device_plan.session_config(dataclasses.replace(config.devices, device="cpu")),
        deadlines=dataclasses.replace(run.team.deadlines, shows_progress=True),
    )
    log.observe(input_stages=input_stages.measure_after_run(measured))


def _train_in_fp32(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Trains again in fp32, with TensorFlow's own kernels, and notes the losses for a comparison."""
    before, measured = len(log.first.losses) + len(log.warmup.losses), len(log.measured.losses)
    display.phase("training again in fp32", before + measured)
    processes = config.processes
    limit_seconds = 2 * processes.preparation_seconds + (before + measured) * processes.step_timeout_seconds
    team.deadlines.within(limit_seconds, "Training again in fp32")
    in_fp32 = dataclasses.replace(config.computing, precision="fp32", loss_scaling=None, xla="off", fused_bn=True)
    plain = dataclasses.replace(config, computing=in_fp32)
    try:
        if config.runtime.fpmath is None:
            losses = _losses(plain, before + measured)
        else:  # oneDNN reads its math mode once in a process
            strict = dataclasses.replace(plain.runtime, fpmath="STRICT")
            model = specs.find_model(config.workload.model)
            losses = apart.call(strict, limit_seconds, _losses_of, model, plain, before + measured)
        log.observe(fp32_losses=losses[before:])
    except BenchError as error:  # the measurement is still valid
        warn(f"--check_precision: training again in fp32 failed, so there is no comparison: {headline(error)}")
    team.deadlines.none()


def _losses_of(model: ModelSpec, config: Config, count: int) -> list[float]:
    """Returns the losses of a model that this process does not know yet."""
    specs.register(model)
    return _losses(config, count)


def _losses(config: Config, count: int) -> list[float]:
    """Trains anew for so many steps, and returns the loss of each; its errors can be sent to another process.

    Raises:
        BenchError: it failed.
    """
    device_plan.set_arithmetic(config.runtime)
    options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * config.processes.preparation_seconds))
    try:
        with tf.Graph().as_default():
            built = run_graph.build(config, run_graph.plan_devices(config))
            with tf.compat.v1.Session(config=run_graph.session_config(config.devices, config.runtime)) as session:
                built.step.initialize(session, built.input.initializers)
                rates = rate_after(config.training, _epochs(config, built))
                with stepping(session, built.step, options, rates) as stepper:
                    return [stepper.take().loss for _ in range(count)]
    except tf.errors.OpError as error:
        raise BenchError(headline(error)) from None


def _require_valid(log: RunLog) -> None:
    """Raises InvalidRunError if the numbers of all workers together must not be used; every worker decides alike."""
    measurement = log.measurement()
    if not measurement.step_seconds:
        raise InvalidRunError(
            "The workers took too few steps at the same time, so there is no rate of all: pass more --num_batches."
        )
    if measurement.skipped_updates and all(measurement.skipped_updates):
        raise InvalidRunError(
            "No measured step updated anything: gradients overflowed in float16 in each. Use a smaller "
            "--fp16_loss_scale, or --precision=bf16 or fp32."
        )
    if not all(report.weights_are_finite for report in log.reports):
        raise InvalidRunError(f"After the run some weights are not finite: the training diverged. {TRY_SMALLER_STEPS}")
    if measurement.replica_drift:
        raise InvalidRunError(
            f"After the run the copies of the variables differ by up to {measurement.replica_drift:g}, but they must "
            "be equal: this is a bug in the suite or in TensorFlow; please report it."
        )
