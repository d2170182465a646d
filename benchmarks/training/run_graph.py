"""The graph of a run, from its configuration: model, input, variables, step, and what is known of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.errors import UsageError
from benchmarks.topology import devices as device_planning
from benchmarks.topology.devices import Devices
from benchmarks.training import flop_count, objectives, optimizers, run_input, training_step
from benchmarks.training.placement_table import placement_table
from benchmarks.training.traffic import links_per_step, manager_on_real_devices, model_traffic
from models import building, specs, splitting
from models.convolutions import Products
from variable_mgr import factory
from variable_mgr.manager import VariableManager


@dataclasses.dataclass(frozen=True)
class RunGraph:
    """What the session runs, and what is known of it: input, step, how far copies differ, whether all is finite."""

    input: run_input.RunInput
    step: training_step.Step
    drift: tf.Tensor | None
    finite: tf.Tensor
    placement: Mapping[str, Any]


def build(config: Config, spec: specs.ModelSpec, devices: Devices) -> RunGraph:
    """Builds everything that the session runs, in the default graph."""
    model = building.build(
        spec,
        data_format=config.data_format,
        num_classes=config.num_classes,
        seed=config.seed,
        precision=config.precision,
        products=Products(conv1x1=config.conv1x1_as_matmul, filter_gradients=config.filter_gradients_as_matmul),
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
    sent = _sent_per_step(config, model, manager)
    work = flop_count.count(loop.operation for loop in step.loops)
    sums = {"sent_per_step": sent, **work.per_image(config.batch_per_device * len(devices.towers))}
    return RunGraph(
        input=tower_input,
        step=step,
        drift=None if config.forward_only else manager.replica_drift(),
        finite=_all_finite(manager),
        placement={**placement_table(manager, devices, training=not config.forward_only), **sums},
    )


def _sent_per_step(config: Config, model: building.Model, manager: VariableManager) -> dict[str, Any]:
    """Returns for the record what a step sends: in one process between devices, in a cluster between processes."""
    if config.cluster:
        links = manager.links(model.variables, training=not config.forward_only)
        return links_per_step(links) if links or not config.forward_only else {}
    if config.forward_only:
        return {}
    by_formula = model_traffic(
        manager_on_real_devices(
            config.variable_update,
            config.modifiers,
            device=config.device,
            towers=config.num_devices,
            shared_on=config.shared_on,
        ),
        model,
        config.batch_per_device,
        divided_over=config.num_devices if config.modifiers.fc_model_parallel else 0,
    )
    return {**dataclasses.asdict(by_formula), "total_bytes": by_formula.total_bytes}


def _all_finite(manager: VariableManager) -> tf.Tensor:
    """Returns whether every weight and average of the authoritative copy is finite."""
    finite = []
    for variable in itertools.chain.from_iterable(manager.checkpoint_variables().values()):
        with tf.device(variable.device):
            finite.append(tf.reduce_all(tf.math.is_finite(variable)))
    with tf.device(device_planning.HOST):
        return tf.reduce_all(tf.stack(finite))


def plan_devices(config: Config) -> Devices:
    """Returns the towers' devices, which are there.

    Raises:
        UsageError: they are not.
    """
    device_planning.set_threads(config.runtime)
    device_planning.require_gpus(config.runtime)
    if config.own_device == "cpu" and config.data_format == "NCHW":
        device_planning.require_nchw_on_cpu(config.runtime)
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
    return device_planning.session_config(config.device, config.num_devices, **config.runtime.session_options())


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
) -> training_step.Step:
    objective = objectives.Objective(
        loss=objectives.cross_entropy,
        weight_decay=config.weight_decay,
        with_accuracy=config.print_training_accuracy,
    )
    if isinstance(model, building.Model) and config.forward_only:
        return training_step.build_inference_step(
            model, tower_input.towers, devices, manager=manager, objective=objective, xla=config.xla == "jit"
        )
    optimizer = optimizers.make(config.optimizer, learning_rate=config.learning_rate, momentum=config.momentum)
    return training_step.build_training_step(
        model,
        tower_input.towers,
        devices,
        manager=manager,
        optimizer=optimizer,
        objective=objective,
        computing=config.computing,
    )
