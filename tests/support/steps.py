"""Training steps of models on CPU devices of this process, in the default graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices import device_plan
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import objectives, optimizers, training_step
from benchmarks.training.options import Training
from models.building import ModelVariable, VariableKind
from variable_mgr import factory
from variable_mgr.manager import VariableManager
from variable_mgr.modifiers import Modifiers

_NO_MODIFIERS = Modifiers()


def on_cpus(towers: int, shared_on: str = "cpu") -> DevicePlan:
    return device_plan.plan(Devices(num_devices=towers), shared_on=shared_on)


def cpu_session(num_devices: int = 1) -> tf.compat.v1.Session:
    """Returns a session of the default graph, with so many devices, all of the CPU."""
    return tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=num_devices)))


def variable(name: str, value: Any, kind: VariableKind = "weight", *, decayed: bool = False) -> ModelVariable:
    """Describes a variable of a model, given its initial value as an array."""
    return ModelVariable(
        name=name,
        shape=value.shape,
        dtype=value.dtype.name,
        kind=kind,
        decayed=decayed,
        initial_value=lambda: tf.constant(value),
    )


def step_of(
    model: Any,
    inputs: Sequence[TowerInput],
    plan: DevicePlan,
    manager: str = "replicated",
    modifiers: Modifiers = _NO_MODIFIERS,
    *,
    optimizer: Any = "sgd",
    learning_rate: float = 0.1,
    loss: objectives.LossFunction = objectives.cross_entropy,
    weight_decay: float = 0.0,
    **more: Any,
) -> tuple[training_step.Step, VariableManager]:
    """Builds a step of a model, which may be split, and the manager of its variables; the momentum is 0.9."""
    made = factory.make(
        manager,
        plan.place,
        shared_devices=plan.shared,
        modifiers=modifiers,
        divided=getattr(model, "divided", ()),
    )
    step = training_step.build_training_step(
        model,
        inputs,
        plan,
        manager=made,
        optimizer=optimizers.make(Training(optimizer=optimizer, learning_rate=learning_rate), learning_rate),
        objective=objectives.Objective(loss=loss, weight_decay=weight_decay),
        **more,
    )
    return step, made
