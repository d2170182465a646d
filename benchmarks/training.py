"""The graph of one global step: every tower's forward and backward pass, and what the manager makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks import model_parallel
from benchmarks.devices import HOST, Devices
from benchmarks.inputs import TowerInput
from benchmarks.objectives import LossFunction, Objective
from models.building import Model
from models.splitting import SplitModel
from variable_mgr.manager import Applied, Optimizer, TowerUpdate, VariableManager
from variable_mgr.reducing import mean


@dataclasses.dataclass(frozen=True)
class Loop:
    """What one thread runs again and again: a step of all towers together, or of one that goes its own way.

    Attributes:
        operation: one step.
        loss: mean over its towers of the tower's mean loss, without weight decay, before the step's update.
        staleness: see `variable_mgr.manager.Applied`; None where it does not depend on chance.
    """

    operation: tf.Operation
    loss: tf.Tensor
    staleness: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """What a session runs.

    Attributes:
        loops: one if all towers step together, else one per tower.
        preparations: run once, in this order, when variables and input have been initialised; see `initialize`.
    """

    loops: list[Loop]
    preparations: list[tf.Operation]

    def initialize(self, session: tf.compat.v1.Session, input_initializers: Sequence[tf.Operation] = ()) -> None:
        """Runs what must run before the first step: variables, then input, then what may compute on both."""
        variables = tf.compat.v1.global_variables_initializer()
        for operation in [variables, *input_initializers, *self.preparations]:
            session.run(operation)

    def run(self, session: tf.compat.v1.Session) -> float:
        """Runs every loop once, one after the other, and returns the mean of their losses."""
        losses = [session.run([loop.loss, loop.operation])[0] for loop in self.loops]
        return float(sum(losses)) / len(losses)

    @property
    def together(self) -> Loop:
        """The one loop of towers that step together."""
        (loop,) = self.loops
        return loop


def build_training_step(
    model: Model | SplitModel,
    inputs: Sequence[TowerInput],
    devices: Devices,
    *,
    manager: VariableManager,
    optimizer: Optimizer,
    objective: Objective,
) -> Step:
    """Builds a training step in the default graph: one tower per device, one input per tower.

    Afterwards the manager knows its variables. The towers of a split model compute its dense layers together, and the
    manager must have divided these.
    """
    manager.create(model.variables)
    if isinstance(model, SplitModel):
        losses, updates = model_parallel.train_towers(model, inputs, devices, manager, objective)
    else:
        losses, updates = _train_towers(model, inputs, devices, manager, objective)
    return _assemble(manager.apply(updates, optimizer), losses, inputs, manager)


def build_inference_step(
    model: Model,
    inputs: Sequence[TowerInput],
    devices: Devices,
    *,
    manager: VariableManager,
    loss: LossFunction,
) -> Step:
    """Builds a forward pass in inference mode on every tower; nothing is updated."""
    manager.create(model.variables)
    losses = []
    for tower, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{tower}"):
            logits, _ = model.call(manager.read(tower), tower_input.images, training=False)
            losses.append(loss(logits, tower_input.labels))
    return _assemble([Applied(tf.group(*losses))], losses, inputs, manager)


def _train_towers(
    model: Model, inputs: Sequence[TowerInput], devices: Devices, manager: VariableManager, objective: Objective
) -> tuple[list[tf.Tensor], list[TowerUpdate]]:
    """Returns each tower's mean loss, and what it computed, each tower for itself."""
    losses, updates = [], []
    for tower, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{tower}"):
            loss, update = _train_tower(model, manager.read(tower), tower_input, objective)
            losses.append(loss)
            updates.append(update)
    return losses, updates


def _train_tower(
    model: Model, values: Sequence[tf.Tensor], tower_input: TowerInput, objective: Objective
) -> tuple[tf.Tensor, TowerUpdate]:
    """Returns one tower's mean loss, its gradients and its new state, on the current device."""
    logits, state = model.call(values, tower_input.images, training=True)
    loss = objective.loss(logits, tower_input.labels)
    weights = [(v, value) for v, value in zip(model.variables, values, strict=True) if v.kind == "weight"]
    gradients = tf.gradients(loss, [value for _, value in weights])
    named = {
        variable.name: objective.with_decay(variable, value, gradient)
        for (variable, value), gradient in zip(weights, gradients, strict=True)
    }
    return loss, TowerUpdate(gradients=named, state=state)


def _assemble(
    applied: Sequence[Applied], losses: Sequence[tf.Tensor], inputs: Sequence[TowerInput], manager: VariableManager
) -> Step:
    """Puts together what has to run: the towers' losses and stages, all in one loop or each in its tower's."""
    each_alone = len(applied) == len(losses)
    parts = [[tower] for tower in range(len(losses))] if each_alone else [range(len(losses))]
    loops = []
    stages = [[inputs[tower].stage for tower in towers if inputs[tower].stage is not None] for towers in parts]
    for end, towers, its_stages in zip(applied, parts, stages, strict=True):
        with tf.device(HOST):
            loss = mean([losses[tower] for tower in towers])
            operation = tf.group(end.operation, *its_stages)
        loops.append(Loop(operation, loss, end.staleness))
    # What computes takes a batch out of each stage, so it must put the next one in.
    preparations = [
        tf.group(preparation.operation, *(stage for its in stages for stage in its))
        if preparation.computes
        else preparation.operation
        for preparation in manager.preparations()
    ]
    return Step(loops, preparations)
