"""Carries out one run inside TensorFlow: builds the graph, starts the session, takes the steps."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks import devices as device_planning
from benchmarks import imagenet, inputs, objectives, optimizers, training
from benchmarks.config import Config
from benchmarks.devices import Devices
from benchmarks.display import Display
from benchmarks.errors import BenchError, InvalidRunError, UsageError, headline
from benchmarks.free_running import FreeRunningTowers
from benchmarks.measuring import TRY_SMALLER_STEPS, AnyOf, Deadline, FixedSteps, StoppingRule, Taken, run_phase, timed
from benchmarks.model_traffic import model_traffic
from benchmarks.placement_table import placement_table
from benchmarks.run_log import RunLog, process_age_seconds
from models import building, specs, splitting
from results.record import Status
from variable_mgr import factory
from variable_mgr.manager import VariableManager


class OutOfMemoryError(BenchError):
    """A device or the host could not give the memory that the run asked for."""

    record_status = Status.OUT_OF_MEMORY


@dataclasses.dataclass(frozen=True)
class _Input:
    """The towers' input, what must run before the first step, and the files behind it."""

    towers: list[inputs.TowerInput]
    initializers: list[tf.Operation]
    shards: Sequence[Path]
    description: str


@dataclasses.dataclass(frozen=True)
class _Built:
    """What the session runs, and what is known of it: input, step, how far copies differ, whether all is finite."""

    input: _Input
    step: training.Step
    drift: tf.Tensor | None
    finite: tf.Tensor
    placement: Mapping[str, Any]


def execute(config: Config, log: RunLog, display: Display) -> None:
    """Runs `config` and fills `log` as it goes.

    Raises:
        UsageError: the devices are not there.
        DataError: the data cannot be read.
        OutOfMemoryError: a device's or the host's memory does not suffice.
        InvalidRunError: a loss was not finite, or replicas drifted apart.
    """
    spec = specs.find(config.model)
    devices = _devices(config)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # fp32 means fp32; TensorFlow's default is TF32
    with tf.Graph().as_default() as graph:
        built = _build(config, spec, devices)
        log.placement = built.placement
        display.start(_facts(config, spec, built.input.description, log.placement))
        steps = config.num_batches or _steps_of_epochs(config, built.input)
        try:
            with tf.compat.v1.Session(graph=graph, config=_session_config(config)) as session:
                built.step.initialize(session, built.input.initializers)
                with _stepping(session, built.step) as take:
                    _measure(config, steps, take, log, display)
                if built.drift is not None:
                    log.replica_drift = float(session.run(built.drift))
                weights_are_finite = bool(session.run(built.finite))
        except tf.errors.OpError as error:
            raise _translate(error, built.input.shards, config.num_classes) from error
    if not weights_are_finite:
        raise InvalidRunError(f"After the run some weights are not finite: the training diverged. {TRY_SMALLER_STEPS}")
    if log.replica_drift:
        raise InvalidRunError(
            f"After the run the copies of the variables differ by up to {log.replica_drift:g}, and they must be "
            "equal: this is a fault of the suite or of TensorFlow; please report it."
        )


def _build(config: Config, spec: specs.ModelSpec, devices: Devices) -> _Built:
    """Builds everything that the session runs, in the default graph."""
    model = building.build(spec, data_format=config.data_format, num_classes=config.num_classes, seed=config.seed)
    tower_input = _input(config, devices, spec.image_size)
    trained = _trained(model, config)
    manager = factory.make(
        config.variable_update,
        devices.place,
        shared_devices=devices.shared,
        modifiers=config.modifiers,
        divided=trained.divided,
    )
    step = _build_step(config, trained, tower_input, devices, manager)
    sent: dict[str, int | None] = {}
    if not config.forward_only:
        by_formula = model_traffic(config, model)
        sent = {**dataclasses.asdict(by_formula), "total_bytes": by_formula.total_bytes}
    return _Built(
        input=tower_input,
        step=step,
        drift=None if config.forward_only else manager.replica_drift(),
        finite=_all_finite(manager),
        placement={**placement_table(manager, devices, training=not config.forward_only), "sent_per_step": sent},
    )


@contextlib.contextmanager
def _stepping(session: tf.compat.v1.Session, step: training.Step) -> Iterator[Callable[[], Taken]]:
    """Yields what takes a global step, as long as it is needed."""
    if step.loops[0].staleness is None:
        run_step = session.make_callable([step.together.operation, step.together.loss])
        yield timed(lambda: run_step()[1])
        return
    fetches = [[loop.loss, loop.staleness, loop.operation] for loop in step.loops]
    with FreeRunningTowers([session.make_callable(each) for each in fetches]) as towers:
        yield towers.take


def _all_finite(manager: VariableManager) -> tf.Tensor:
    """Returns whether every weight and average of the authoritative copy is finite."""
    finite = []
    for variable in itertools.chain.from_iterable(manager.checkpoint_variables().values()):
        with tf.device(variable.device):
            finite.append(tf.reduce_all(tf.math.is_finite(variable)))
    with tf.device(device_planning.HOST):
        return tf.reduce_all(tf.stack(finite))


def _devices(config: Config) -> Devices:
    if config.device == "gpu":
        device_planning.require_gpus(config.num_devices, virtual_gpus=config.virtual_gpus)
    elif config.data_format == "NCHW":
        device_planning.require_nchw_on_cpu()
    return device_planning.plan(
        config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on=config.shared_on
    )


def _session_config(config: Config) -> tf.compat.v1.ConfigProto:
    return device_planning.session_config(config.device, config.num_devices, **config.session_options())


def _input(config: Config, devices: Devices, image_size: int) -> _Input:
    spec = inputs.InputSpec(
        batch_per_device=config.batch_per_device,
        image_size=image_size,
        data_format=config.data_format,
        num_classes=config.num_classes,
        seed=config.seed,
    )
    size = f"{image_size}x{image_size} pixels"
    if config.data_dir is None:
        towers = inputs.synthetic(devices.towers, spec)
        return _Input(towers, [], [], f"synthetic, {size}, made once on each device")
    shards = imagenet.find_shards(config.data_dir)
    together = not config.modifiers.asynchronous
    towers, initializers = imagenet.read(
        shards, devices.towers, spec, in_turn=together, pipelined=config.pipelined_input
    )
    return _Input(towers, initializers, shards, f"ImageNet, {len(shards)} training shards in {config.data_dir}, {size}")


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
    tower_input: _Input,
    devices: Devices,
    manager: VariableManager,
) -> training.Step:
    if isinstance(model, building.Model) and config.forward_only:
        loss = objectives.cross_entropy
        return training.build_inference_step(model, tower_input.towers, devices, manager=manager, loss=loss)
    optimizer = optimizers.make(config.optimizer, learning_rate=config.learning_rate, momentum=config.momentum)
    objective = objectives.Objective(loss=objectives.cross_entropy, weight_decay=config.weight_decay)
    return training.build_training_step(
        model, tower_input.towers, devices, manager=manager, optimizer=optimizer, objective=objective
    )


def _steps_of_epochs(config: Config, tower_input: _Input) -> int:
    images = imagenet.count_images(tower_input.shards) if tower_input.shards else imagenet.TRAIN_IMAGES
    assert config.num_epochs is not None, "the configuration gives either batches or epochs"
    return max(1, round(config.num_epochs * images / config.batch_global))


def _measure(config: Config, steps: int, take: Callable[[], Taken], log: RunLog, display: Display) -> None:
    """Takes the first step, the warm-up and the measured steps."""
    deadline: list[StoppingRule] = []
    age = process_age_seconds()
    log.startup_seconds = age
    if config.time_limit_seconds is not None:
        deadline = [Deadline(time.perf_counter() + config.time_limit_seconds - age)]
    plan = (
        ("first step", 1, log.first),
        ("warm-up", max(0, config.num_warmup_batches - 1), log.warmup),
        ("measuring", steps, log.measured),
    )
    for name, count, phase in plan:
        display.phase(name, count)
        run_phase(take, AnyOf([FixedSteps(count), *deadline]), phase, after_step=display.after_step)


def _translate(error: tf.errors.OpError, shards: Sequence[Path], num_classes: int) -> Exception:
    """Turns TensorFlow's error into one that says what to do, where that is known."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return OutOfMemoryError(f"Out of memory: {headline(error)} Try a smaller --batch_size.")
    # A callable's errors carry no operation, so the message has to say where it came from.
    if shards and (isinstance(error, tf.errors.DataLossError) or "IteratorGetNext" in str(error.message)):
        return imagenet.explain_failure(shards, num_classes, error)
    return error


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
