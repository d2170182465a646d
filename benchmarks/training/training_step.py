"""The graph of one global step: every tower's forward and backward pass, and what the manager makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from benchmarks.config.precision_options import Computing
from benchmarks.input.tower_input import TowerInput
from benchmarks.topology.devices import HOST, Devices
from benchmarks.training import model_parallel
from benchmarks.training.loss_scale import LossScale
from benchmarks.training.objectives import Objective, Score
from benchmarks.training.tower import Tower
from models.building import Model
from models.splitting import SplitModel
from variable_mgr.manager import Applied, Optimizer, TowerUpdate, VariableManager
from variable_mgr.reductions.kernels import mean


@dataclasses.dataclass(frozen=True)
class Loop:
    """What one thread runs again and again: a step of all towers together, or of one that goes its own way.

    Attributes:
        operation: one step.
        loss: mean over its towers of the tower's mean loss, without weight decay, before the step's update.
        staleness: see `variable_mgr.manager.Applied`; None where it does not depend on chance.
        observed: more scalars to be fetched with every step, by the name of their field in
            `results.record.Measurement`: accuracies, and how long the step had to wait for its input.
    """

    operation: tf.Operation
    loss: tf.Tensor
    staleness: tf.Tensor | None = None
    observed: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Step:
    """What a session runs.

    Attributes:
        loops: one if all towers step together, else one per tower.
        preparations: run once, in this order, when variables and input have been initialised; see `initialize`.
    """

    loops: list[Loop]
    preparations: list[tf.Operation]

    def initialize(
        self,
        session: tf.compat.v1.Session,
        input_initializers: Sequence[tf.Operation] = (),
        *,
        alone: bool = True,
        shared_is_there: Callable[[], object] = lambda: None,
        options: tf.compat.v1.RunOptions | None = None,
    ) -> None:
        """Runs what must run before the first step: variables, then input, then what may compute on both.

        Args:
            session: of this graph.
            input_initializers: of the input.
            alone: whether this process initialises all variables; else only its own, and shared ones are another's.
            shared_is_there: is called when this process' variables are initialised, and returns when all others' are.
            options: of each preparation.
        """
        variables = tf.compat.v1.global_variables()
        if not alone:
            variables = [variable for variable in variables if "/job:ps" not in variable.device]
        for operation in [tf.group(*(variable.initializer for variable in variables)), *input_initializers]:
            session.run(operation)
        shared_is_there()
        for operation in self.preparations:
            session.run(operation, options=options)

    def run(self, session: tf.compat.v1.Session, options: tf.compat.v1.RunOptions | None = None) -> float:
        """Runs every loop once, one after the other, and returns the mean of their losses."""
        losses = [session.run([loop.loss, loop.operation], options=options)[0] for loop in self.loops]
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
    computing: Computing | None = None,
) -> Step:
    """Builds a training step in the default graph: one tower per device, one input per tower.

    Afterwards the manager knows its variables. The towers of a split model compute its dense layers together, and the
    manager must have divided these.
    """
    manager.create(model.variables)
    computing, place = computing or Computing(), devices.place
    scaling = computing.loss_scaling
    loss_scale = LossScale(scaling, place.ps[0] if place.ps else place.host) if scaling else None
    if isinstance(model, SplitModel):
        scores, updates = model_parallel.train_towers(model, inputs, devices, manager, objective)
    else:
        tower = Tower(model, objective, xla=computing.xla == "jit", decay_later=manager.adds_decay)
        scores, updates = _train_towers(tower, inputs, devices, manager, loss_scale)
    if loss_scale:
        optimizer = loss_scale.guard(optimizer)
    step = _assemble(manager.apply(updates, optimizer), scores, inputs, manager)
    more = {}
    if place.workers > 1:
        more["compute_seconds"] = _computing(scores, updates)
    if loss_scale and loss_scale.changes:
        more["loss_scales"] = loss_scale.read()
    if loss_scale and loss_scale.overflowed is not None:
        more["skipped_updates"] = tf.cast(loss_scale.overflowed, tf.float32)
    loops = [dataclasses.replace(loop, observed={**loop.observed, **more}) for loop in step.loops]
    return dataclasses.replace(step, loops=loops)


def build_inference_step(
    model: Model,
    inputs: Sequence[TowerInput],
    devices: Devices,
    *,
    manager: VariableManager,
    objective: Objective,
    xla: bool = False,
) -> Step:
    """Builds a forward pass in inference mode on every tower; nothing is updated."""
    manager.create(model.variables)
    scores = []
    tower = Tower(model, objective, xla=xla)
    for number, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{number}"):
            scores.append(tower.infer(manager.read(number), tower_input.images, tower_input.labels))
    return _assemble([Applied(tf.group(*(score.loss for score in scores)))], scores, inputs, manager)


def _train_towers(
    tower: Tower,
    inputs: Sequence[TowerInput],
    devices: Devices,
    manager: VariableManager,
    loss_scale: LossScale | None,
) -> tuple[list[Score], list[TowerUpdate]]:
    """Returns each tower's score, and what it computed, each tower for itself."""
    scores, updates = [], []
    for number, (device, tower_input) in enumerate(zip(devices.towers, inputs, strict=True)):
        with tf.device(device), tf.name_scope(f"tower_{number}"):
            scale = loss_scale.read() if loss_scale else None
            score, update = tower.train(manager.read(number), tower_input.images, tower_input.labels, scale)
            scores.append(score)
            updates.append(update)
    return scores, updates


def _assemble(
    applied: Sequence[Applied], scores: Sequence[Score], inputs: Sequence[TowerInput], manager: VariableManager
) -> Step:
    """Puts together what has to run: the towers' losses and stages, all in one loop or each in its tower's."""
    each_alone = len(applied) == len(scores)
    parts = [[tower] for tower in range(len(scores))] if each_alone else [list(range(len(scores)))]
    stages = [[inputs[tower].stage for tower in towers if inputs[tower].stage is not None] for towers in parts]
    loops = [
        _loop(end, [scores[tower] for tower in towers], [inputs[tower] for tower in towers], its_stages)
        for end, towers, its_stages in zip(applied, parts, stages, strict=True)
    ]
    # What computes takes a batch out of each stage, so it must put the next one in.
    preparations = [
        tf.group(preparation.operation, *(stage for its in stages for stage in its))
        if preparation.computes
        else preparation.operation
        for preparation in manager.preparations()
    ]
    return Step(loops, preparations)


def _loop(end: Applied, scores: Sequence[Score], inputs: Sequence[TowerInput], stages: Sequence[tf.Operation]) -> Loop:
    """Puts together what towers run that step together."""
    with tf.device(HOST):
        loss = mean([score.loss for score in scores])
        operation = tf.group(end.operation, *stages)
        observed = {name: mean([score.accuracy[name] for score in scores]) for name in scores[0].accuracy}
    arrived = [tower_input.arrived for tower_input in inputs if tower_input.arrived is not None]
    if arrived:
        with tf.device(HOST):
            began = (
                _finished([end.operation] * len(scores), scores)
                if stages
                else tf.reduce_min(tf.stack([i.asked for i in inputs]))
            )
            observed["input_wait_seconds"] = tf.maximum(tf.reduce_max(tf.stack(arrived)) - began, 0.0)
    return Loop(operation, loss, end.staleness, observed)


def _computing(scores: Sequence[Score], updates: Sequence[TowerUpdate]) -> tf.Tensor:
    """Returns how many seconds this worker's towers take from the begin of a step until they have their gradients."""
    gradients = [tf.group(*update.gradients.values()) for update in updates]
    with tf.device(HOST):
        begun = tf.timestamp()
        return tf.maximum(_finished(gradients, scores) - begun, 0.0)


def _finished(work: Sequence[tf.Operation], scores: Sequence[Score]) -> tf.Tensor:
    """Returns when towers have done each its work; after an update, they do nothing but wait for the next batch.

    A device's queue may hold what the host believes to be done. So something is computed on each device behind the
    work, and its value is used: what nobody uses, TensorFlow would turn into an order of launches.
    """
    last = []
    for score, done in zip(scores, work, strict=True):
        with tf.device(score.loss.device), tf.control_dependencies([done]):
            last.append(tf.square(score.loss))
    total = tf.add_n(last)
    with tf.control_dependencies([total]):
        now = tf.timestamp()
    return tf.where(total >= 0.0, now, tf.zeros_like(now))  # a sum of squares: always, unless the loss is not a number
