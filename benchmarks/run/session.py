"""Carries out one run inside TensorFlow: builds the graph, starts the session, takes the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.callbacks import evaluation, observers
from benchmarks.callbacks.callback import Interlude
from benchmarks.checkpoints import resuming
from benchmarks.cluster import restarts
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.console import warn
from benchmarks.data.pipeline import input_stages
from benchmarks.data.sources.storage import is_address, place
from benchmarks.devices import device_plan as device_planning
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.errors import BenchError, InvalidRunError, headline
from benchmarks.graph import run_facts, run_graph, stepper
from benchmarks.graph.epochs import Epochs, Plan, images_per_epoch, plan
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog, largest_resident_bytes
from benchmarks.measure.timing import TRY_SMALLER_STEPS
from benchmarks.process import apart
from benchmarks.process.deadlines import PREPARATION_FACTOR, Deadlines
from benchmarks.run import loop, reference_loops
from benchmarks.tracing import graph_files, traced_steps
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
    checkpoints, data_dir = config.checkpoints, config.data.data_dir
    paths = {"data_dir": data_dir, "train_dir": checkpoints.train_dir, "initial_weights": checkpoints.initial_weights}
    _reach(paths, config.processes.step_timeout_seconds, display, team)
    if config.workload.eval_only:
        evaluation.evaluate_checkpoint(config, log, display, team)
    elif config.variables.variable_update in REFERENCE_LOOPS:
        reference_loops.run_reference_loop(config, log, display, team)
    else:
        _Training(config, log, display, team).run()
    if config.computing.check_precision:
        log.observe(peak_host_memory_bytes=largest_resident_bytes())
        before, measured = len(log.first.losses) + len(log.warmup.losses), len(log.measured.losses)
        display.phase("training again in fp32", before + measured)
        in_fp32 = dataclasses.replace(config.computing, precision="fp32", loss_scaling=None)
        plain = dataclasses.replace(config, computing=in_fp32)
        try:
            if config.runtime.fpmath is None:
                losses = _losses(plain, before + measured)
            else:  # oneDNN reads its math mode once in a process
                strict = dataclasses.replace(plain.runtime, fpmath="STRICT")
                losses = apart.call(strict, None, _losses, plain, before + measured)
            log.observe(fp32_losses=losses[before:])
        except BenchError as error:  # the measurement is still valid
            warn(f"--check_precision: training again in fp32 failed, so there is no comparison: {headline(error)}")
    log.reports = list(team.meet("results", log.report().to_message(), patient=True).values())
    _require_valid(log)
    if log.unsaved is not None:
        raise log.unsaved


def _reach(paths: Mapping[str, str | None], within_seconds: float, display: Display, team: Team) -> None:
    """Asks the storages of other hosts that a run needs for an answer; `paths` are by flag.

    Raises:
        UsageError: TensorFlow has no file system for one.
        DataError: one cannot be reached.
    """
    for flag, path in paths.items():
        if path and is_address(path):
            display.phase(f"waiting for the storage of --{flag}", None)
            team.expect(f"An answer from the storage of --{flag}={path}", within_seconds)
            place(path).exists()
            team.expect_nothing()


class _Training:
    """Trains, or infers, in this process: builds the graph, and takes its steps in a session."""

    def __init__(self, config: Config, log: RunLog, display: Display, team: Team) -> None:
        self._config, self._log, self._display, self._team = config, log, display, team
        self._saved_in = None if config.workload.forward_only else config.checkpoints.train_dir
        self._facts = resuming.facts(config)
        self._patience = PREPARATION_FACTOR * config.processes.step_timeout_seconds
        # All processes whose collectives meet have this key, and no other run may have it.
        self._options = tf.compat.v1.RunOptions()
        self._options.experimental.collective_graph_key = team.collective_key

    def run(self) -> None:
        """Takes the steps of the run; raises as `execute` does."""
        config, log, team, summaries = self._config, self._log, self._team, self._config.summaries
        train_dir, saves, leads = config.checkpoints.train_dir, bool(self._saved_in), team.is_leader
        observers.require_files(summaries, train_dir, config.output.output_dir, saves=saves, leads=leads)
        with resuming.only_training(self._saved_in, team):
            devices, weights_only = run_graph.plan_devices(config), config.workload.forward_only
            earlier = resuming.find_earlier(
                config.checkpoints, self._facts, team, self._display, weights_only=weights_only
            )
            team.expect("Building the graph", self._patience)
            self._display.phase("building the graph", None)
            with tf.Graph().as_default() as built_in, tf.device(team.device or None):
                drawn = earlier.images_drawn(config.variables.modifiers, config.batch_global)
                built = run_graph.build(config, devices, drawn)
                log.started("graph")
                log.observe(steps_before=earlier.steps, restarts=restarts.count())
                log.placement = built.placement
                log.data_set = built.input.source.identify() if built.input.source else None
                self._display.start(run_facts.facts(config, built.input.description, log.placement))
                if summaries.graph_file and leads:
                    graph_files.write_graph(built_in.as_graph_def(), Path(summaries.graph_file))
                try:
                    self._run_in_session(built, devices, earlier)
                except tf.errors.OpError as error:
                    raise team.explain(error) or built.input.translate(error, config.workload.num_classes) from error
            team.expect_nothing()
            self._measure_input(built)

    def _run_in_session(self, built: run_graph.RunGraph, devices: DevicePlan, earlier: resuming.Earlier) -> None:
        """Takes the steps, and looks at what they have left."""
        config, log, team, display = self._config, self._log, self._team, self._display
        length = images_per_epoch(config.workload.model, built.input.source)
        epochs = Epochs(length, config.batch_global, earlier.steps, earlier.images)
        planned = plan(config.length, epochs, config.steps_per_round, self._saved_in, earlier.ends_at_step)
        ends = earlier.steps + sum(planned)
        restoring = resuming.restoring(config.checkpoints, config.place, built, earlier)
        if self._saved_in and restoring.state and team.is_leader:
            resuming.require_room(self._saved_in, restoring.state)
        evaluator = None
        if config.evaluation.is_scheduled and team.is_leader:
            batch = config.evaluation.eval_batch_size
            spec = run_graph.input_spec(config.workload, config.place, config.training.seed, batch)
            evaluator = evaluation.build_evaluator(
                config.workload, config.data, spec, built.model, built.manager, devices
            )
        display.phase("initialising the variables", None)
        session_config = run_graph.session_config(config.devices, config.runtime)
        team.configure(session_config)
        with tf.compat.v1.Session(team.target, config=session_config) as session:
            self._initialize(session, built, restoring)
            interludes: list[Interlude] = []
            saving = None
            if self._saved_in and restoring.state:
                saving = resuming.saving(config.checkpoints, self._facts, epochs, restoring.state, session, ends)
                interludes.append(saving)
            if config.evaluation.is_scheduled:
                interludes.append(evaluation.evaluation(config.evaluation, epochs, evaluator, session, log, display))
            self._take_steps(session, built, epochs, planned, interludes)
            log.unsaved = saving.problem if saving else None
            team.expect("Checking the variables after the run", self._patience)
            _look_after_the_run(session, built, log, self._options)
            tracer = traced_steps.Tracer(session, self._options, team, self._patience)
            on_gpus, in_cluster, loops = config.devices.on_gpu, config.processes.cluster is not None, built.step.loops
            traced_steps.trace(
                tracer, loops, config.place, config.summaries, log, on_gpus=on_gpus, in_cluster=in_cluster
            )

    def _initialize(
        self, session: tf.compat.v1.Session, built: run_graph.RunGraph, restoring: resuming.Restoring
    ) -> None:
        def shared_is_there() -> None:
            self._team.meet("initialised their variables")
            self._team.expect("Preparing the first step", self._patience)

        built.step.initialize(
            session,
            built.input.initializers,
            alone=self._team.is_leader,
            shared_is_there=shared_is_there,
            options=self._options,
            values=restoring.values,
            resuming=restoring.resumes,
        )
        if self._config.output.loss_type_to_report == "total_loss" and (penalty := built.penalty()) is not None:
            self._display.add_penalty(session.make_callable(penalty))

    def _take_steps(
        self,
        session: tf.compat.v1.Session,
        built: run_graph.RunGraph,
        epochs: Epochs,
        planned: Plan,
        interludes: Sequence[Interlude],
    ) -> None:
        config, log, display, team = self._config, self._log, self._display, self._team
        train_dir, own = config.checkpoints.train_dir, config.processes.cluster and config.processes.cluster.own
        directory = place(train_dir or config.output.output_dir)
        if own and not team.is_leader:  # processes of one host would write the same files
            directory /= f"{own.job}_{own.index}"
        ends, by_epochs = epochs.steps_before + sum(planned), bool(config.length.num_epochs and train_dir)
        rate_after = stepper.rate_after(config.training, epochs)
        with stepper.stepping(session, built.step, self._options, rate_after, epochs.steps_before) as takes:
            observed = observers.Observers(
                config.summaries, directory, session, takes, self._patience, log, display, team, epochs, rate_after
            )
            agenda = observed.agenda(built, interludes, ends, ends_there=by_epochs)
            loop.measure(config, planned, takes, log, display, team, agenda)
        team.meet("measured", patient=True)
        agenda.end()

    def _measure_input(self, built: run_graph.RunGraph) -> None:
        """Measures the stages of an input that steps have waited for."""
        config, log, source = self._config, self._log, built.input.source
        waited = sum(log.measured.observed.get("input_wait_seconds", []))
        if source is None or waited < LEAST_REPORTED_WAIT * sum(log.measured.step_seconds):
            return
        self._display.phase("measuring the input's stages", None)
        assert config.data.input is not None, "input that is read has options"
        measured = input_stages.Measuring(
            source=source,
            spec=built.input_spec,
            options=config.data.input,
            num_devices=len(built.input.towers),
            session_config=device_planning.session_config(dataclasses.replace(config.devices, device="cpu")),
            deadlines=Deadlines(self._team, config.processes.step_timeout_seconds),
        )
        log.observe(input_stages=input_stages.measure_after_run(measured))


def _look_after_the_run(
    session: tf.compat.v1.Session, built: run_graph.RunGraph, log: RunLog, options: tf.compat.v1.RunOptions
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


def _losses(config: Config, count: int) -> list[float]:
    """Trains anew for so many steps, and returns the loss of each; its errors can be sent to another process.

    Raises:
        BenchError: it failed.
    """
    device_planning.set_arithmetic(config.runtime)
    limit_seconds = PREPARATION_FACTOR * config.processes.step_timeout_seconds
    options = tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * limit_seconds))
    try:
        with tf.Graph().as_default():
            built = run_graph.build(config, run_graph.plan_devices(config))
            with tf.compat.v1.Session(config=run_graph.session_config(config.devices, config.runtime)) as session:
                built.step.initialize(session, built.input.initializers)
                length = images_per_epoch(config.workload.model, built.input.source)
                rate_after = stepper.rate_after(config.training, Epochs(length, config.batch_global))
                rates = [rate_after(number) if config.training.schedule else None for number in range(count)]
                return [built.step.run(session, options, rate) for rate in rates]
    except tf.errors.OpError as error:
        raise BenchError(headline(error)) from None


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
