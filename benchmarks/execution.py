"""Carries out one run inside TensorFlow: builds the graph, starts the session, takes the steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks import devices as device_planning
from benchmarks import input_stages, objectives, optimizers, run_input, training
from benchmarks.config import Config
from benchmarks.datasets.catalog import DATA_SETS
from benchmarks.devices import Devices
from benchmarks.display import Display
from benchmarks.errors import InvalidRunError, UsageError
from benchmarks.measuring import TRY_SMALLER_STEPS
from benchmarks.model_traffic import sent_per_step
from benchmarks.placement_table import placement_table
from benchmarks.run_log import RunLog
from benchmarks.stepping import FIRST_STEPS, measure, stepping
from benchmarks.team import Team
from models import building, specs, splitting
from results.input_verdict import WORTH_A_WORD
from variable_mgr import factory
from variable_mgr.manager import VariableManager


@dataclasses.dataclass(frozen=True)
class _Built:
    """What the session runs, and what is known of it: input, step, how far copies differ, whether all is finite."""

    input: run_input.RunInput
    step: training.Step
    drift: tf.Tensor | None
    finite: tf.Tensor
    placement: Mapping[str, Any]


def execute(config: Config, log: RunLog, display: Display, team: Team) -> None:
    """Runs `config` and fills `log` as it goes.

    Raises:
        UsageError: the devices are not there.
        DataError: the data cannot be read.
        OutOfMemoryError: a device's or the host's memory does not suffice.
        InvalidRunError: a loss was not finite, or replicas drifted apart.
    """
    spec = specs.find(config.model)
    devices = _devices(config)
    # fp32 means fp32; TensorFlow's default is TF32.
    tf.config.experimental.enable_tensor_float_32_execution(config.precision == "tf32")
    team.expect("Building the graph", FIRST_STEPS * config.step_timeout_seconds)
    with tf.Graph().as_default() as graph, tf.device(team.device or None):
        built = _build(config, spec, devices)
        log.placement = built.placement
        log.data_set = built.input.source.identify() if built.input.source else None
        display.start(_facts(config, spec, built.input.description, log.placement))
        steps = config.num_batches or _steps_of_epochs(config, built.input)
        try:
            options = session_config(config)
            team.configure(options)
            with tf.compat.v1.Session(team.target, graph=graph, config=options) as session:
                log.weights_are_finite = _run(config, built, session, steps, log, display, team)
        except tf.errors.OpError as error:
            raise team.explain(error) or built.input.translate(error, config.num_classes) from error
    team.expect_nothing()
    log.input_stages = _slow_input(config, built.input, log, display)
    log.reports = list(team.meet("results", log.report().to_message(), patient=True).values())
    _require_valid(log)


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
    built: _Built,
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


def _build(config: Config, spec: specs.ModelSpec, devices: Devices) -> _Built:
    """Builds everything that the session runs, in the default graph."""
    model = building.build(
        spec,
        data_format=config.data_format,
        num_classes=config.num_classes,
        seed=config.seed,
        precision=config.precision,
    )
    tower_input = run_input.build(config, devices.towers, run_input.find(config))
    trained = _trained(model, config)
    manager = factory.make(
        config.variable_update,
        devices.place,
        shared_devices=devices.shared,
        modifiers=config.modifiers,
        divided=trained.divided,
    )
    step = _build_step(config, trained, tower_input, devices, manager)
    sent = sent_per_step(config, model, devices.place, manager)
    return _Built(
        input=tower_input,
        step=step,
        drift=None if config.forward_only else manager.replica_drift(),
        finite=_all_finite(manager),
        placement={**placement_table(manager, devices, training=not config.forward_only), "sent_per_step": sent},
    )


def _all_finite(manager: VariableManager) -> tf.Tensor:
    """Returns whether every weight and average of the authoritative copy is finite."""
    finite = []
    for variable in itertools.chain.from_iterable(manager.checkpoint_variables().values()):
        with tf.device(variable.device):
            finite.append(tf.reduce_all(tf.math.is_finite(variable)))
    with tf.device(device_planning.HOST):
        return tf.reduce_all(tf.stack(finite))


def _devices(config: Config) -> Devices:
    if config.device == "gpu" and (config.cluster is None or config.cluster.own.job == "worker"):
        device_planning.require_gpus(config.num_devices, virtual_gpus=config.virtual_gpus)
    elif config.data_format == "NCHW":
        device_planning.require_nchw_on_cpu()
    return device_planning.plan(
        config.device,
        config.num_devices,
        virtual_gpus=config.virtual_gpus,
        shared_on=config.shared_on,
        cluster=config.cluster,
        manager=config.variable_update,
    )


def session_config(config: Config) -> tf.compat.v1.ConfigProto:
    """Returns what the configuration says of a session, or of a task's server."""
    return device_planning.session_config(config.device, config.num_devices, **config.session_options())


def _trained(model: building.Model, config: Config) -> building.Model | splitting.SplitModel:
    """Returns the model as it is trained: whole, or split where its dense layers are divided over the towers."""
    if not config.modifiers.fc_model_parallel:
        return model
    split = splitting.split(model)
    problem = splitting.why_not(split, config.num_devices)
    if problem:
        raise UsageError(problem)
    return split


def _build_step(
    config: Config,
    model: building.Model | splitting.SplitModel,
    tower_input: run_input.RunInput,
    devices: Devices,
    manager: VariableManager,
) -> training.Step:
    objective = objectives.Objective(
        loss=objectives.cross_entropy,
        weight_decay=config.weight_decay,
        with_accuracy=config.print_training_accuracy,
    )
    if isinstance(model, building.Model) and config.forward_only:
        return training.build_inference_step(model, tower_input.towers, devices, manager=manager, objective=objective)
    optimizer = optimizers.make(config.optimizer, learning_rate=config.learning_rate, momentum=config.momentum)
    return training.build_training_step(
        model, tower_input.towers, devices, manager=manager, optimizer=optimizer, objective=objective
    )


def _steps_of_epochs(config: Config, tower_input: run_input.RunInput) -> int:
    images = (
        tower_input.source.count() if tower_input.source else DATA_SETS[specs.find(config.model).data_name].train_images
    )
    assert config.num_epochs is not None, "the configuration gives either batches or epochs"
    return max(1, round(config.num_epochs * images / config.batch_global))


def _slow_input(config: Config, tower_input: run_input.RunInput, log: RunLog, display: Display) -> Mapping[str, float]:
    """Returns how fast the input's stages are, if the run had to wait for it; else nothing is measured."""
    waited, seconds = sum(log.measured.observed.get("input_wait_seconds", [])), sum(log.measured.step_seconds)
    if tower_input.source is None or waited < WORTH_A_WORD * seconds:
        return {}
    display.phase("measuring the input's stages", None)
    return input_stages.measure_after_run(config, tower_input.source)


def _facts(config: Config, spec: specs.ModelSpec, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a person should know of the run before it starts."""
    mode = "inference only" if config.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.precision}, {config.data_format}",
        "Data": data,
        "Batch size": f"{config.batch_per_device} per device, {config.batch_global} global",
        "Devices": placement["devices"],
        "Variables": f"{config.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        "Optimizer": f"{config.optimizer}, learning rate {config.learning_rate:g}, "
        f"weight decay {config.weight_decay:g}",
    }
