"""The graph of a run, from its configuration: model, input, variables, step, and their placement."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.between_steps.evaluation import Evaluator
from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.input import host_pipeline
from benchmarks.input.options import of_validation
from benchmarks.input.tower_input import InputSpec
from benchmarks.topology import devices as device_planning
from benchmarks.topology.devices import DevicePlan
from benchmarks.training import flop_count, objectives, optimizers, pipeline, run_input, training_step
from benchmarks.training.loss_scale import LossScale, all_finite
from benchmarks.training.placement_table import aggregations, per_device, placement_table
from benchmarks.training.traffic import manager_on_real_devices, model_traffic
from models import building, specs, splitting
from models.convolutions import Products
from variable_mgr import factory
from variable_mgr.catalog import IN_GRAPH
from variable_mgr.manager import VariableManager
from variable_mgr.managers.pipelined import Pipelined
from variable_mgr.traffic import NETWORK, busiest_server


@dataclasses.dataclass(frozen=True)
class RunGraph:
    """What the session runs. What is only needed after the first step is built in the default graph when it is called.

    Attributes:
        model: as it was built, before it was divided over devices.
        manager: of its variables.
        optimizer: the update rule, with the loss scale if there is one; None in inference.
        variables: everything that a step may change: copies, slots, and what the manager keeps between steps.
        input: of the towers.
        step: one global step.
        drift: builds the largest difference between copies of a weight, a scalar; None in inference or with one copy.
        finite: builds whether every weight and average of the authoritative copy is finite, a scalar.
        penalty: builds what weight decay adds to the loss, of the authoritative copy, a scalar; None if nothing.
        placement: for the record.
    """

    model: building.Model
    manager: VariableManager
    optimizer: optimizers.Optimizer | LossScale | None
    variables: Sequence[tf.Variable]
    input: run_input.RunInput
    step: training_step.Step
    drift: Callable[[], tf.Tensor | None]
    finite: Callable[[], tf.Tensor]
    penalty: Callable[[], tf.Tensor | None]
    placement: Mapping[str, Any]


def build(config: Config, devices: DevicePlan, images_before: int = 0) -> RunGraph:
    """Builds everything that the session runs, in the default graph; earlier runs have drawn `images_before`."""
    spec, model = specs.find(config.workload.model), _build_model(config)
    tower_input = build_input(
        config, devices.towers[:1] if config.variables.pipeline else devices.towers, images_before
    )
    of_input = len(tf.compat.v1.global_variables())
    trained, manager = _divided(config, model, devices)
    step = _build_step(config, trained, tower_input, devices, manager)
    if (
        config.computing.xla == "jit"
    ):  # calls of compiled functions cannot be counted; every tower does the model's work
        images = config.workload.batch_per_device
        work = flop_count.of_built(
            model,
            spec,
            batch=images,
            data_format=config.workload.data_format,
            forward_only=config.workload.forward_only,
        )
    else:
        images = config.workload.batch_per_device * len(devices.towers)
        work = flop_count.count(loop.operation for loop in step.loops)
    gradients = [update.gradients for update in step.updates]
    built = RunGraph(
        model=model,
        manager=manager,
        optimizer=step.optimizer,
        variables=tf.compat.v1.global_variables()[of_input:],
        input=tower_input,
        step=step,
        drift=functools.cache(lambda: None if config.workload.forward_only else manager.replica_drift()),
        finite=functools.cache(lambda: _finite(manager)),
        penalty=functools.cache(lambda: _penalty(config, model, manager)),
        placement={
            **placement_table(manager, devices, training=not config.workload.forward_only, variables=model.variables),
            "aggregations": aggregations(gradients) if devices.place.towers_in_total > 1 else [],
            "sent_per_step": _sent_per_step(config, model, manager),
            **work.per_image(images),
            **(_of_pipeline(trained, manager, devices, images) if isinstance(trained, pipeline.Pipeline) else {}),
        },
    )
    if config.devices.log_device_placement:  # TensorFlow prints it again whenever the graph has grown
        for later in (built.drift, built.finite, built.penalty):
            later()
    return built


def _finite(manager: VariableManager) -> tf.Tensor:
    with tf.device(device_planning.HOST):
        return all_finite(itertools.chain.from_iterable(manager.checkpoint_variables().values()))


def _penalty(config: Config, model: building.Model, manager: VariableManager) -> tf.Tensor | None:
    kept = manager.checkpoint_variables()
    decayed = [part for spec in model.variables if spec.decayed for part in kept[spec.name]]
    with tf.device(device_planning.HOST):
        return _objective(config).penalty(decayed) if config.training.weight_decay and decayed else None


def _build_model(config: Config) -> building.Model:
    model = building.build(
        specs.find(config.workload.model),
        data_format=config.workload.data_format,
        num_classes=config.workload.num_classes,
        seed=config.training.seed,
        precision=config.computing.precision,
        products=Products(
            conv1x1=config.computing.conv1x1_as_matmul, filter_gradients=config.computing.filter_gradients_as_matmul
        ),
        fused_bn=config.computing.fused_bn,
    )
    return building.decaying(model, config.training.weight_decay_on)


def _divided(
    config: Config, model: building.Model, devices: DevicePlan
) -> tuple[building.Model | splitting.SplitModel | pipeline.Pipeline, VariableManager]:
    """Returns the model, divided over the devices as configured, and the manager of its variables.

    Raises:
        UsageError: the model cannot be divided so.
    """
    if config.variables.pipeline:
        stages = pipeline.plan(model, **vars(config.variables.pipeline))
        return stages, Pipelined(stages.homes(devices.towers))
    trained: building.Model | splitting.SplitModel = model
    if config.variables.modifiers.fc_model_parallel:
        trained = splitting.split(model)
        if problem := splitting.why_not(trained, config.devices.num_devices):
            raise UsageError(problem)
    return trained, factory.make(
        config.variables.variable_update,
        devices.place,
        shared_devices=devices.shared,
        modifiers=config.variables.modifiers,
        divided=trained.divided,
    )


def _of_pipeline(
    model: pipeline.Pipeline, manager: VariableManager, devices: DevicePlan, images: int
) -> dict[str, Any]:
    """Returns what the record of a pipeline has more, or other than that of towers."""
    weights = [entry for entry in manager.placed() if entry.kind == "weight"]
    sent = model.traffic(images)
    return {
        "pipeline": model.facts(devices.towers, images),
        "gradient_bytes_per_device": per_device((entry.device, entry.size_bytes) for entry in weights),
        "sent_per_step": {**dataclasses.asdict(sent), "total_bytes": sent.total_bytes},
    }


def _sent_per_step(config: Config, model: building.Model, manager: VariableManager) -> dict[str, Any]:
    """Returns for the record what a step sends: in one process between devices, in a cluster between processes."""
    if config.processes.cluster:
        links = manager.links(model.variables, training=not config.workload.forward_only)
        if config.workload.forward_only and not links:
            return {}
        number = manager.link_transfers(model.variables, training=not config.workload.forward_only)
        total_bytes = sum(links.values()) if links else None
        by_kind = {"by_kind": {NETWORK: (number, total_bytes)}} if links else {}
        return {"links": dict(links), "total_bytes": total_bytes, "busiest_ps_bytes": busiest_server(links), **by_kind}
    if config.workload.forward_only:
        return {}
    by_formula = model_traffic(
        manager_on_real_devices(
            config.variables.variable_update,
            config.variables.modifiers,
            device=config.devices.device,
            towers=config.devices.num_devices,
            shared_on=config.variables.shared_on,
        ),
        model,
        config.workload.batch_per_device,
        divided_over=config.devices.num_devices if config.variables.modifiers.fc_model_parallel else 0,
    )
    return {**dataclasses.asdict(by_formula), "total_bytes": by_formula.total_bytes}


def build_input(config: Config, tower_devices: Sequence[str], images_before: int = 0) -> run_input.RunInput:
    """Finds the data set of a run, if it reads one, and builds the towers' input in the default graph.

    Raises:
        DataError: the data set is missing or incomplete.
    """
    source = None
    if config.data.input is not None and config.data.data_dir is not None:
        source = host_pipeline.find(config.data.data_name, config.data.data_dir, config.data.input.split)
    return run_input.build(
        specs.find(config.workload.model),
        dataclasses.replace(input_spec(config), images_before=images_before),
        tower_devices,
        config.data.input,
        source,
        in_turn=not config.variables.modifiers.asynchronous,
        pipelined=config.data.pipelined_input,
        timed=not config.training.deterministic,
    )


def build_evaluator(
    config: Config, model: building.Model, weights: Mapping[str, Sequence[tf.Variable]], devices: DevicePlan
) -> Evaluator:
    """Finds the validation set, and builds in the default graph what evaluates weights by name on all devices.

    Raises:
        DataError: the validation set is missing or incomplete.
    """
    assert config.data.input is not None and config.data.data_dir is not None, "the configuration requires images"
    images = run_input.build_validation(
        specs.find(config.workload.model),
        dataclasses.replace(
            input_spec(config), batch_per_device=config.evaluation.eval_batch_size or config.workload.batch_per_device
        ),
        devices.towers,
        of_validation(config.data.input),
        host_pipeline.find(config.data.data_name, config.data.data_dir, "validation"),
    )
    return Evaluator(model, weights, devices.towers, images, config.workload.num_classes)


@dataclasses.dataclass(frozen=True)
class EvaluationGraph:
    """What a session runs to evaluate a checkpoint: a model, the manager of its variables, and the evaluator."""

    model: building.Model
    manager: VariableManager
    evaluator: Evaluator
    placement: Mapping[str, Any]


def build_evaluation(config: Config, devices: DevicePlan) -> EvaluationGraph:
    """Builds in the default graph what evaluates a checkpoint.

    Raises:
        DataError: the validation set is missing or incomplete.
    """
    model = _build_model(config)
    _, manager = _divided(config, model, devices)
    manager.create(model.variables)
    evaluator = build_evaluator(config, model, manager.checkpoint_variables(), devices)
    placement = placement_table(manager, devices, training=False, variables=model.variables)
    return EvaluationGraph(model, manager, evaluator, placement)


def input_spec(config: Config) -> InputSpec:
    """Returns what a run's towers need of their input."""
    model, in_graph = specs.find(config.workload.model), config.variables.variable_update in IN_GRAPH
    return InputSpec(
        batch_per_device=config.batch_global if config.variables.pipeline else config.workload.batch_per_device,
        image_size=model.image_size,
        channels=model.channels,
        data_format=config.workload.data_format,
        num_classes=config.workload.num_classes,
        seed=config.training.seed,
        worker=config.processes.cluster.own.index if config.processes.cluster and not in_graph else 0,
        workers=1 if in_graph else config.processes.num_workers,
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


def session_config(config: Config) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a session, or of a task's server."""
    made = device_planning.session_config(config.devices)
    rewriting = made.graph_options.rewrite_options
    # A second pass over the graph takes a quarter of the first step's time, and made no step faster. Nor did saving
    # memory on CPUs, where the search for it takes another quarter with 8 towers.
    rewriting.meta_optimizer_iterations = rewriting.ONE
    rewriting.layout_optimizer = rewriting.OFF  # on GPUs convolutions would not run in the recorded data_format
    if config.devices.device == "cpu" and config.devices.num_devices > 1:
        rewriting.memory_optimization = rewriting.NO_MEM_OPT
    if config.training.deterministic:  # sums would be regrouped in another order in every process
        rewriting.arithmetic_optimization = rewriting.OFF
    return made


def _build_step(
    config: Config,
    model: building.Model | splitting.SplitModel | pipeline.Pipeline,
    tower_input: run_input.RunInput,
    devices: DevicePlan,
    manager: VariableManager,
) -> training_step.Step:
    """Builds a step of training or inference."""
    objective = _objective(config)
    if config.workload.forward_only:
        assert isinstance(model, building.Model), "only training divides a model"
        return training_step.build_inference_step(
            model, tower_input.towers, devices, manager=manager, objective=objective, xla=config.computing.xla == "jit"
        )
    rate = None
    if config.training.schedule:
        with tf.device(device_planning.HOST):
            rate = tf.compat.v1.placeholder_with_default(config.training.learning_rate, [], name="learning_rate")
    step = training_step.build_training_step(
        model,
        tower_input.towers,
        devices,
        manager=manager,
        optimizer=optimizers.make(
            config.training.optimizer,
            learning_rate=config.training.learning_rate if rate is None else rate,
            momentum=config.training.momentum,
            constants=config.training.hyperparameters,
            clipping=config.training.clipping,
            lars_trust_coefficient=config.training.lars_trust_coefficient,
        ),
        objective=objective,
        computing=config.computing,
        timed=not config.training.deterministic,  # then TensorFlow refuses to read the clock within a step
    )
    return dataclasses.replace(step, loops=[dataclasses.replace(loop, learning_rate=rate) for loop in step.loops])


def _objective(config: Config) -> objectives.Objective:
    return objectives.Objective(
        loss=objectives.smoothed_cross_entropy(config.training.label_smoothing),
        weight_decay=config.training.weight_decay,
        with_accuracy=config.workload.print_training_accuracy,
    )
