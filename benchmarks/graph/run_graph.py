"""The graph of a run, from its configuration: model, input, variables, step, and their placement."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.config.variable_update import Variables
from benchmarks.config.workload import Workload
from benchmarks.data.options import Data
from benchmarks.data.pipeline import input_pipeline
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources.imagenet_files import PhotoRecords
from benchmarks.devices import device_plan as device_planning
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.errors import DataError, UsageError
from benchmarks.graph.sent_bytes import between_devices, between_processes, sent_in_one_process
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.training import flop_count, model_parallel, objectives, optimizers, pipeline, training_step
from benchmarks.training.computing import Computing
from benchmarks.training.loss_scale import all_finite
from benchmarks.training.options import Training
from benchmarks.training.placement_table import aggregations, per_device, placement_table, size_bytes
from models import building, parts, specs
from models.convolutions import Kernels
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.place import HOST


@dataclasses.dataclass(frozen=True)
class RunGraph:
    """What the session runs. What is only needed after the first step is built in the default graph when it is called.

    Attributes:
        model: as it was built, before it was divided over devices.
        manager: of its variables.
        variables: everything that a step may change: copies, slots, and what the manager keeps between steps.
        input, input_spec: of the towers.
        step: one global step.
        drift: builds the largest difference between copies of a weight, a scalar; None in inference or with one copy.
        finite: builds whether every weight and average of the authoritative copy is finite, a scalar.
        penalty: builds what weight decay adds to the loss, of the authoritative copy, a scalar; None if nothing.
        placement: for the record.
    """

    model: building.Model
    manager: VariableManager
    variables: Sequence[tf.Variable]
    input: input_pipeline.RunInput
    input_spec: InputSpec
    step: training_step.Step
    drift: Callable[[], tf.Tensor | None]
    finite: Callable[[], tf.Tensor]
    penalty: Callable[[], tf.Tensor | None]
    placement: Mapping[str, Any]


def build(config: Config, devices: DevicePlan, images_before: int = 0) -> RunGraph:
    """Builds everything that the session runs, in the default graph; earlier runs have drawn `images_before`."""
    workload, training, computing, variables = config.workload, config.training, config.computing, config.variables
    is_training = not workload.forward_only
    model = build_model(workload, training, computing, config.devices)
    spec = input_spec(config, config.batch_global if variables.pipeline else 0)
    drawing = dataclasses.replace(spec, images_before=images_before)
    drawn_by = devices.towers[:1] if variables.pipeline else devices.towers
    tower_input = build_input(workload, config.data, drawing, drawn_by)
    of_input = len(tf.compat.v1.global_variables())
    trained, manager = divided(variables, model, devices)
    objective = objectives.Objective(
        loss=objectives.smoothed_cross_entropy(training.label_smoothing),
        weight_decay=training.weight_decay,
        with_accuracy=workload.print_training_accuracy,
    )
    if is_training:
        step = _training_step(training, computing, trained, tower_input, devices, manager, objective)
    else:
        assert isinstance(trained, building.Model), "only training divides a model"
        xla = computing.xla == "jit"
        step = training_step.build_inference_step(
            trained, tower_input.towers, devices, manager=manager, objective=objective, xla=xla
        )
    sent: dict[str, Any] = {}
    if config.processes.cluster:
        sent = between_processes(manager.transfers(model.variables, training=is_training))
        sent = sent if is_training or sent["links"] else {}
    elif is_training:
        sent = between_devices(sent_in_one_process(config.devices, variables, model, workload.batch_per_device))
    work, images = _flops(workload, computing, model, step, len(devices.towers))
    gradients = [update.gradients for update in step.updates]
    built = RunGraph(
        model=model,
        manager=manager,
        variables=tf.compat.v1.global_variables()[of_input:],
        input=tower_input,
        input_spec=spec,
        step=step,
        drift=functools.cache(lambda: manager.replica_drift() if is_training else None),
        finite=functools.cache(lambda: _finite(manager)),
        penalty=functools.cache(lambda: _penalty(objective, model, manager)),
        placement={
            **placement_table(manager, devices, training=is_training, variables=model.variables),
            "aggregations": aggregations(gradients) if devices.place.towers_in_total > 1 else [],
            "sent_per_step": sent,
            **work.per_image(images),
            **(_of_pipeline(trained, manager, devices, images) if isinstance(trained, pipeline.Pipeline) else {}),
        },
    )
    if config.devices.log_device_placement:  # TensorFlow prints it again whenever the graph has grown
        for later in (built.drift, built.finite, built.penalty):
            later()
    return built


def _flops(
    workload: Workload, computing: Computing, model: building.Model, step: training_step.Step, towers: int
) -> tuple[flop_count.Work, int]:
    """Returns the operations of a step, and of how many images they are."""
    if computing.xla != "jit":
        return flop_count.count(loop.operation for loop in step.loops), workload.batch_per_device * towers
    # Calls of compiled functions cannot be counted; every tower does the model's work.
    images = workload.batch_per_device
    return flop_count.of_built(model, batch=images, forward_only=workload.forward_only), images


def _finite(manager: VariableManager) -> tf.Tensor:
    with tf.device(HOST):
        return all_finite(itertools.chain.from_iterable(manager.checkpoint_variables().values()))


def _penalty(objective: objectives.Objective, model: building.Model, manager: VariableManager) -> tf.Tensor | None:
    kept = manager.checkpoint_variables()
    decayed = [part for spec in model.variables if spec.decayed for part in kept[spec.name]]
    with tf.device(HOST):
        return objective.penalty(decayed) if objective.weight_decay and decayed else None


def build_model(workload: Workload, training: Training, computing: Computing, devices: Devices) -> building.Model:
    """Builds the model of a run, whose variables do not exist yet."""
    model = building.build(
        specs.find_model(workload.model),
        data_format=workload.data_format,
        num_classes=workload.num_classes,
        seed=training.seed,
        precision=computing.precision,
        kernels=Kernels(
            conv1x1=computing.conv1x1_as_matmul,
            filter_gradients=computing.filter_gradients_as_matmul,
            that_pad=devices.on_gpu and computing.xla == "off",
        ),
        fused_bn=computing.fused_bn,
    )
    return building.decaying(model, training.weight_decay_on)


def divided(
    variables: Variables, model: building.Model, devices: DevicePlan
) -> tuple[building.Model | parts.SplitModel | pipeline.Pipeline, VariableManager]:
    """Returns the model, divided over the devices as configured, and the manager of its variables.

    Raises:
        UsageError: the model cannot be divided so.
    """
    if variables.pipeline:
        stages = pipeline.plan(model, **vars(variables.pipeline))
        return stages, stages.manager(devices.towers)
    trained: building.Model | parts.SplitModel = model
    if variables.modifiers.fc_model_parallel:
        trained = parts.split(model)
        if problem := model_parallel.why_not(trained, len(devices.towers)):
            raise UsageError(problem)
    return trained, factory.make(
        variables.variable_update,
        devices.place,
        shared_devices=devices.shared,
        modifiers=variables.modifiers,
        divided=trained.divided if isinstance(trained, parts.SplitModel) else (),
    )


def _of_pipeline(
    model: pipeline.Pipeline, manager: VariableManager, devices: DevicePlan, images: int
) -> dict[str, Any]:
    """Returns what the record of a pipeline has more, or other than that of towers."""
    (created,) = manager.homes()
    weights = [created[variable.name] for variable in model.variables if variable.kind == "weight"]
    return {
        "pipeline": model.facts(devices.towers, images),
        "gradient_bytes_per_device": per_device((weight.device, size_bytes(weight)) for weight in weights),
        "sent_per_step": between_devices(model.transfers(images)),
    }


def build_input(
    workload: Workload, data: Data, spec: InputSpec, tower_devices: Sequence[str]
) -> input_pipeline.RunInput:
    """Finds the data set of a run, if it reads one, and builds the towers' input in the default graph.

    Raises:
        DataError: the data set is missing or incomplete, or has less than an image per worker.
    """
    source = None
    if data.input is not None and data.data_dir is not None:
        source = input_pipeline.find_source(data.data_name, data.data_dir, data.input.split)
        if isinstance(source, PhotoRecords) and data.input.on_bad_record == "fail":
            source.require_whole_files()  # rather than after hours
        if spec.workers > 1 and source.count < spec.workers:
            raise DataError(
                f"--data_dir={data.data_dir} has {source.count} image(s), and each of {spec.workers} workers reads "
                "others: use fewer workers, or more images."
            )
    model = specs.find_model(workload.model)
    return input_pipeline.build(model, spec, tower_devices, data.input, source, pipelined=data.pipelined_input)


def input_spec(config: Config, batch_per_device: int = 0) -> InputSpec:
    """Returns what the devices of a run need of their input; by default each gets a batch as configured."""
    workload, place, training = config.workload, config.place, config.training
    model = specs.find_model(workload.model)
    return InputSpec(
        batch_per_device=batch_per_device or workload.batch_per_device,
        image_size=model.image_size,
        channels=model.channels,
        data_format=workload.data_format,
        num_classes=workload.num_classes,
        seed=training.seed,
        worker=place.worker,
        workers=place.workers,
        in_turn=not config.variables.modifiers.asynchronous,
        timed=not training.deterministic,
    )


def plan_devices(config: Config, *, eager: bool = False) -> DevicePlan:
    """Returns the towers' devices, after checking that they exist; with `eager`, the eager runtime gets them.

    Raises:
        UsageError: a device is missing.
    """
    own = config.runtime.devices
    device_planning.set_threads(own)
    device_planning.require_gpus(own, eager=eager)
    if not own.on_gpu and config.workload.data_format == "NCHW":
        device_planning.require_nchw_on_cpu(own)
    if eager:
        device_planning.configure_eager_runtime(own)
    return device_planning.plan(
        config.devices,
        shared_on=config.variables.shared_on,
        cluster=config.processes.cluster,
        manager=config.variables.variable_update,
    )


def session_config(devices: Devices, runtime: Runtime) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a session, or of a task's server."""
    made = device_planning.session_config(devices)
    rewriting = made.graph_options.rewrite_options
    # A second pass over the graph takes a quarter of the first step's time, and made no step faster.
    rewriting.meta_optimizer_iterations = rewriting.ONE
    rewriting.layout_optimizer = rewriting.OFF  # on GPUs convolutions would not run in the recorded data_format
    # It would copy activations to the host and back where it expects a step to need most of a GPU's memory.
    rewriting.memory_optimization = rewriting.NO_MEM_OPT
    if devices.device == "cpu" and devices.num_devices > 1:
        # Only what makes steps faster: oneDNN's fused kernels. All others made none faster, and take half of the first
        # step's time with 8 towers.
        rewriting.optimizers.extend(["pruning", "remap"])
        rewriting.disable_tfg_optimizer = True
    if runtime.deterministic:  # sums would be regrouped in another order in every process
        rewriting.arithmetic_optimization = rewriting.OFF
    return made


def _training_step(
    training: Training,
    computing: Computing,
    model: building.Model | parts.SplitModel | pipeline.Pipeline,
    tower_input: input_pipeline.RunInput,
    devices: DevicePlan,
    manager: VariableManager,
    objective: objectives.Objective,
) -> training_step.Step:
    rate = None
    if training.schedule:
        with tf.device(HOST):
            rate = tf.compat.v1.placeholder_with_default(training.learning_rate, [], name="learning_rate")
    step = training_step.build_training_step(
        model,
        tower_input.towers,
        devices,
        manager=manager,
        optimizer=optimizers.make(training, training.learning_rate if rate is None else rate),
        objective=objective,
        computing=computing,
        timed=not training.deterministic,  # then TensorFlow refuses to read the clock within a step
    )
    return dataclasses.replace(step, loops=[dataclasses.replace(loop, learning_rate=rate) for loop in step.loops])


def shown_facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the text output shows of a run before it starts; `data` describes the input."""
    workload, variables, training = config.workload, config.variables, config.training
    spec = specs.find_model(workload.model)
    mode = "evaluation" if workload.eval_only else "inference only" if workload.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    parts = placement.get("pipeline")
    batch = f"{config.batch_global} global, {workload.batch_per_device} per device"
    if parts:
        batch += f", in {parts['micro_batches']} micro-batches of {parts['images_per_micro_batch']}"
    seen = " that this worker sees" if config.processes.num_workers > 1 else ""
    rate = training.schedule or f"learning rate {training.learning_rate:g}"
    updates = {"Optimizer": f"{training.optimizer}, {rate}, weight decay {training.weight_decay:g}"}
    chosen = {
        "precision": config.computing.precision,
        "batch_per_device": f"{workload.batch_per_device}",
        "all_reduce_spec": variables.modifiers.all_reduce_spec,
    }
    why = {name: f" ({value}: {config.reasons[name]})" for name, value in chosen.items() if name in config.reasons}
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.computing.precision}, {workload.data_format}"
        + why.get("precision", ""),
        "Data": data,
        "Batch size": batch + why.get("batch_per_device", ""),
        "Devices": placement["devices"],
        "Variables": f"{variables.variable_update}: {placement['manager']}" + why.get("all_reduce_spec", ""),
        "Placement": f"{placement['variables']} variables{seen}; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        **(pipeline.stage_facts(parts) if parts else {}),
        **(updates if mode == "training" else {}),
    }
