"""The graph of one global step: every tower's forward and backward pass, and the manager's updates."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.data.pipeline.tower_input import TowerInput
from benchmarks.devices.device_plan import DevicePlan
from benchmarks.measure import injected_delay
from benchmarks.training import model_parallel, pipeline
from benchmarks.training.computing import Computing
from benchmarks.training.loss_scale import LossScale
from benchmarks.training.objectives import Objective, Score
from benchmarks.training.optimizers import Optimizer
from models.building import Model
from models.parts import SplitModel
from results.measurement import Observed
from variable_mgr.graph_copies import GraphCopies
from variable_mgr.manager import TowerUpdate, UpdateOp, VariableManager
from variable_mgr.place import HOST
from variable_mgr.reductions.kernels import mean


@dataclasses.dataclass(frozen=True)
class Loop:
    """What one thread runs repeatedly: a step of all towers together, or of one asynchronous tower.

    Attributes:
        operation: one step.
        loss: mean over its towers of the tower's mean loss, without weight decay, before the step's update.
        staleness: see `variable_mgr.manager.UpdateOp`; None if it does not depend on timing.
        observed: more scalars to fetch with every step.
        learning_rate: takes the rate of a step, a scalar; None if it is constant.
    """

    operation: tf.Operation
    loss: tf.Tensor
    staleness: tf.Tensor | None = None
    observed: Observed = dataclasses.field(default_factory=Observed)
    learning_rate: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """What a session runs.

    Attributes:
        loops: one if all towers step together, else one per tower.
        init_ops: run once, in this order, after variables and input are initialised; see `initialize`.
        updates: what each tower computes; nothing in inference.
        pass_times: of a pipeline, when the passes of a step ended.
        optimizer: the update rule, with the loss scale if there is one; None in inference.
        resume_ops: run instead of `init_ops` if what an earlier run had staged is fed.
    """

    loops: list[Loop]
    init_ops: list[tf.Operation]
    updates: Sequence[TowerUpdate] = ()
    resume_ops: Sequence[tf.Operation] = ()
    pass_times: pipeline.PassTimes | None = None
    optimizer: Optimizer | LossScale | None = None

    def initialize(
        self,
        session: tf.compat.v1.Session,
        input_initializers: Sequence[tf.Operation] = (),
        *,
        alone: bool = True,
        shared_is_there: Callable[[], object] = lambda: None,
        options: tf.compat.v1.RunOptions | None = None,
        values: Mapping[tf.Tensor, np.ndarray] | None = None,
        resuming: bool = False,
    ) -> None:
        """Runs what must run before the first step: variables, then input, then `init_ops`.

        Unless `alone`, this process initialises only its own variables, and not those on parameter servers.
        `shared_is_there` is called after that, and returns when all others' are. `options` are for the init_ops.
        `values` take the place of tensors, such as initial values, in all that is run here. If they include what was
        staged, this is `resuming`.
        """
        variables = tf.compat.v1.global_variables()
        if not alone:
            variables = [variable for variable in variables if "/job:ps" not in variable.device]
        for operation in [tf.group(*(variable.initializer for variable in variables)), *input_initializers]:
            session.run(operation, feed_dict=values)
        shared_is_there()
        for operation in self.resume_ops if resuming else self.init_ops:
            session.run(operation, feed_dict=values, options=options)

    def take(self, session: tf.compat.v1.Session, options: tf.compat.v1.RunOptions | None = None) -> float:
        """Runs every loop once, one after the other, and returns the mean of their losses."""
        losses = [session.run([loop.loss, loop.operation], options=options)[0] for loop in self.loops]
        return float(sum(losses)) / len(losses)


class Tower:
    """What every tower of a model computes; the caller chooses the device.

    With `xla` the tower is compiled as a whole: it is built once, and XLA compiles it for each device. With
    `decay_later` weight decay is left out of the gradients: the manager adds it. With `copied` the tower is built once
    and copied for each use, which is faster from the second use on; `xla` does so anyway.
    """

    def __init__(
        self, model: Model, objective: Objective, *, xla: bool = False, decay_later: bool = False, copied: bool = False
    ) -> None:
        self._model = model
        self._decay = objective.decay_of(model.variables) if decay_later else {}
        self._objective = dataclasses.replace(objective, weight_decay=0.0) if decay_later else objective
        self._backward: Callable[..., Any] = self._train
        self._forward: Callable[..., Any] = self._infer
        if copied:
            self._backward, self._forward = GraphCopies(self._train), GraphCopies(self._infer)
        if xla:
            self._backward = tf.function(self._train, jit_compile=True, autograph=False)
            self._forward = tf.function(self._infer, jit_compile=True, autograph=False)

    def train(
        self, values: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor, loss_scale: tf.Tensor | None = None
    ) -> tuple[Score, TowerUpdate]:
        """Returns the score, and gradients and new state, given the variables' values, images, and labels [batch].

        The loss is multiplied by the scalar `loss_scale`, and its gradients are divided by it.
        """
        score, gradients, state = self._backward(list(values), images, labels, loss_scale)
        return score, TowerUpdate(gradients=gradients, state=state, decay=self._decay)

    def infer(self, values: Sequence[tf.Tensor], images: tf.Tensor, labels: tf.Tensor) -> Score:
        """Returns the score of a forward pass in inference mode; arguments as of `train`."""
        score: Score = self._forward(list(values), images, labels)
        return score

    def _train(
        self, values: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor, loss_scale: tf.Tensor | None
    ) -> tuple[Score, dict[str, tf.Tensor], Mapping[str, tf.Tensor]]:
        logits, state = self._model.call(values, images, training=True)
        score = self._objective.score(logits, labels)
        weights = [(v, value) for v, value in zip(self._model.variables, values, strict=True) if v.kind == "weight"]
        loss = score.loss if loss_scale is None else loss_scale * score.loss
        gradients = tf.gradients(loss, [value for _, value in weights])
        if loss_scale is not None:
            gradients = [None if gradient is None else gradient / loss_scale for gradient in gradients]
        named = {
            variable.name: self._objective.with_decay(variable, value, gradient)
            for (variable, value), gradient in zip(weights, gradients, strict=True)
        }
        return score, named, state

    def _infer(self, values: list[tf.Tensor], images: tf.Tensor, labels: tf.Tensor) -> Score:
        logits, _ = self._model.call(values, images, training=False)
        return self._objective.score(logits, labels)


def build_training_step(
    model: Model | SplitModel | pipeline.Pipeline,
    inputs: Sequence[TowerInput],
    devices: DevicePlan,
    *,
    manager: VariableManager,
    optimizer: Optimizer,
    objective: Objective,
    computing: Computing | None = None,
    timed: bool = True,
) -> Step:
    """Builds a training step in the default graph: one tower per device, one input per tower.

    The manager creates its variables. The towers of a split model compute its dense layers together; the manager must
    divide these. A pipeline has one input, and a device per stage. With `timed`, parts of a step are.
    """
    manager.create(model.variables)
    pass_times = None
    computing, place = computing or Computing(), devices.place
    scaling = computing.loss_scaling
    loss_scale = LossScale(scaling, place.ps[0] if place.ps else place.host, optimizer) if scaling else None
    if isinstance(model, SplitModel):
        scores, updates = model_parallel.train_towers(model, inputs, devices, manager, objective)
    elif isinstance(model, pipeline.Pipeline):
        values = dict(zip((variable.name for variable in model.variables), manager.tower_values(0), strict=True))
        scale = loss_scale.factor() if loss_scale else None
        score, update, pass_times = pipeline.train(model, inputs[0], devices.towers, values, objective, scale)
        scores, updates = [score], [update]
    else:
        tower = Tower(
            model,
            objective,
            xla=computing.xla == "jit",
            decay_later=manager.adds_decay,
            copied=len(devices.towers) > 1,
        )
        scores, updates = [], []
        for number, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
            with tf.device(device), tf.name_scope(f"tower_{number}"):
                scale = loss_scale.factor() if loss_scale else None
                score, update = tower.train(manager.tower_values(number), tower_input.images, tower_input.labels, scale)
                late = injected_delay.of_tower(place.worker * len(devices.towers) + number)
                if late:
                    update = dataclasses.replace(update, gradients=_delayed(update.gradients, late))
                scores.append(score)
                updates.append(update)
    rule = loss_scale or optimizer
    applied = manager.apply(updates, rule)
    observed = Observed()
    if place.workers > 1 and timed:
        observed |= Observed(worker_compute_seconds=_computing(scores, updates))
    if loss_scale and loss_scale.changes:
        observed |= Observed(loss_scales=loss_scale.factor())
    if loss_scale and loss_scale.overflowed is not None:
        observed |= Observed(skipped_updates=tf.cast(loss_scale.overflowed, tf.float32))
    step = _assemble(applied, scores, inputs, manager, observed)
    return dataclasses.replace(step, updates=updates, pass_times=pass_times if timed else None, optimizer=rule)


def _delayed(gradients: Mapping[str, tf.Tensor], seconds: float) -> dict[str, tf.Tensor]:
    """Returns a tower's gradients that many seconds later, for tests."""

    def pause() -> np.float32:
        time.sleep(seconds)
        return np.float32(seconds)

    with tf.control_dependencies(gradients.values()), tf.device(HOST):
        paused = tf.numpy_function(pause, [], tf.float32)
    with tf.control_dependencies([paused]):
        return {name: tf.identity(gradient) for name, gradient in gradients.items()}


def build_inference_step(
    model: Model,
    inputs: Sequence[TowerInput],
    devices: DevicePlan,
    *,
    manager: VariableManager,
    objective: Objective,
    xla: bool = False,
) -> Step:
    """Builds a forward pass in inference mode on every tower; nothing is updated."""
    manager.create(model.variables)
    scores = []
    tower = Tower(model, objective, xla=xla, copied=len(devices.towers) > 1)
    for number, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{number}"):
            scores.append(tower.infer(manager.tower_values(number), tower_input.images, tower_input.labels))
    return _assemble([UpdateOp(tf.group(*(score.loss for score in scores)))], scores, inputs, manager, Observed())


def _assemble(
    applied: Sequence[UpdateOp],
    scores: Sequence[Score],
    inputs: Sequence[TowerInput],
    manager: VariableManager,
    observed: Observed,
) -> Step:
    """Returns one loop for all towers, or, if each has its own update, one per tower; `observed` is of every loop."""
    towers = range(len(scores))
    groups = [[tower] for tower in towers] if len(applied) == len(scores) else [list(towers)]
    loops = [
        _loop(update, [scores[tower] for tower in group], [inputs[tower] for tower in group], observed)
        for update, group in zip(applied, groups, strict=True)
    ]
    # An init op that computes takes a batch out of each stage, so it must put the next one in.
    stages = [tower_input.stage for tower_input in inputs if tower_input.stage is not None]
    init_ops, resume_ops = (
        [tf.group(each.operation, *stages) if each.computes else each.operation for each in several]
        for several in (manager.init_ops(), manager.resume_ops())
    )
    return Step(loops, init_ops, resume_ops=resume_ops)


def _loop(update: UpdateOp, scores: Sequence[Score], inputs: Sequence[TowerInput], more: Observed) -> Loop:
    """Returns the loop of towers that step together."""
    stages = [tower_input.stage for tower_input in inputs if tower_input.stage is not None]
    arrived = [tower_input.arrived for tower_input in inputs if tower_input.arrived is not None]
    with tf.device(HOST):
        loss = mean([score.loss for score in scores])
        operation = tf.group(update.operation, *stages)
        observed = Observed(**{name: mean([score.observed[name] for score in scores]) for name in scores[0].observed})
        if arrived:
            if stages:
                # After the update, a tower only waits for the next batch.
                began = pipeline.time_after([update.operation] * len(scores), [score.loss for score in scores])
            else:
                began = tf.reduce_min(tf.stack([tower_input.asked for tower_input in inputs]))
            waited = tf.maximum(tf.reduce_max(tf.stack(arrived)) - began, 0.0)
            observed |= Observed(input_wait_seconds=waited)
    return Loop(operation, loss, update.staleness, Observed(**observed, **more))


def _computing(scores: Sequence[Score], updates: Sequence[TowerUpdate]) -> tf.Tensor:
    """Returns the seconds from the start of a step until this worker's towers have their gradients."""
    gradients = [tf.group(*update.gradients.values()) for update in updates]
    with tf.device(HOST):
        begun = tf.timestamp()
        return tf.maximum(pipeline.time_after(gradients, [score.loss for score in scores]) - begun, 0.0)
