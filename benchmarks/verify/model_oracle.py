"""Trains any model under a manager, and computes every step again from the gradients of single towers.

The reference has no variables. One graph on one device computes what a tower computes, from values that are fed; means,
momentum and updates are NumPy's. Each of its steps starts with the values that the manager had before that step:
rounding, which deep models with batch normalisation amplify, then does not add up over the steps.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.config.config import Config
from benchmarks.data.pipeline.tower_input import InputSpec, synthetic
from benchmarks.devices import device_plan
from benchmarks.errors import failure_of
from benchmarks.graph import run_graph
from benchmarks.process.deadlines import Deadlines
from benchmarks.training import objectives, training_step
from benchmarks.verify import cases
from benchmarks.verify.cases import Case, CaseResult
from benchmarks.verify.oracle import OracleSession
from models import building, specs
from models.building import Model, ordered
from models.outside_code import UnusableModelError
from variable_mgr.expected import DECAY, Compute, Computed, Steps, Values, relative_error
from variable_mgr.place import HOST

STEPS = 3  # momentum acts from the second on; staging computes with changed weights in the third
IMAGES_PER_TOWER = 2
_OBJECTIVE = objectives.Objective(loss=objectives.cross_entropy, weight_decay=DECAY)
# A change is at least this share of the largest change of its kind, and of the value: some gradients are zero but for
# rounding, such as that of a bias before batch normalisation, and float32 keeps few digits of a smaller change.
_OF_LARGEST_CHANGE, _OF_VALUE = 1e-3, 2.0**-13

Batch = tuple[np.ndarray, np.ndarray]


@contextlib.contextmanager
def _lone_tower(
    build_model: Callable[[], Model],
    spec: InputSpec,
    device: str,
    config: tf.compat.v1.ConfigProto,
    team: Alone,
) -> Iterator[Compute]:
    """Yields what one tower computes from the values of all variables, by name, and its images and labels.

    It is in a graph of its own on that device, whose session gets the `config`.

    Raises:
        UnusableModelError: the model draws random numbers that no variable determines.
    """
    team.deadlines.preparation("Preparing a reference")
    graph = tf.Graph()
    with graph.as_default():
        model = build_model()
        with tf.device(HOST):
            placeholders = {v.name: tf.compat.v1.placeholder(v.dtype, v.shape) for v in model.variables}
            like = synthetic([HOST], spec)[0]
            images_and_labels = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in (like.images, like.labels)]
        with tf.device(device):
            tower = training_step.Tower(model, _OBJECTIVE)
            score, update = tower.train([*placeholders.values()], *images_and_labels)
        computed = [score.loss, dict(update.gradients), dict(update.state)]
    definition = graph.as_graph_def()
    nodes = itertools.chain(definition.node, *(function.node_def for function in definition.library.function))
    if drawing := [node.name for node in nodes if "seed2" in node.attr]:  # only operations that count their draws
        raise UnusableModelError(
            f"it cannot be verified, since '{drawing[0]}' draws other numbers in each tower, as tf.random does: use "
            "keras.random with a SeedGenerator."
        )
    with tf.compat.v1.Session(graph=graph, config=config) as session:

        def compute(values: Values, batch: Batch) -> Computed:
            team.deadlines.step("A tower of a reference")
            fed = {placeholder: values[name] for name, placeholder in placeholders.items()}
            return Computed(*session.run(computed, {**fed, **dict(zip(images_and_labels, batch, strict=True))}))

        yield compute
    team.deadlines.none()


def results(config: Config, chosen: Sequence[Case], deadlines: Deadlines | None = None) -> Iterator[CaseResult]:
    """Runs `model_cases` of the configured model on the configured devices and yields their results."""
    tf.config.experimental.enable_tensor_float_32_execution(False)  # as in a run: fp32 means fp32
    model, training = specs.find_model(config.workload.model), config.training
    options, rate = run_graph.session_config(config.devices, config.runtime), training.learning_rate
    of_model: dict[str, Any] = {
        "data_format": config.workload.data_format,
        "num_classes": config.workload.num_classes,
        "seed": training.seed,
    }
    build = functools.partial(building.build, model, **of_model)
    images = InputSpec(
        batch_per_device=IMAGES_PER_TOWER, image_size=model.image_size, channels=model.channels, **of_model
    )
    team = Alone(deadlines)
    compared = cases.under(cases.rule_of(training), chosen)
    with contextlib.ExitStack() as stack:
        try:
            compute = stack.enter_context(_lone_tower(build, images, config.place.towers[0], options, team))
        except UnusableModelError as problem:
            yield from (CaseResult(case, None, str(problem)) for case in compared)
            return
        for case in compared:
            devices = device_plan.plan(config.devices, shared_on=case.shared_on)
            if reason := case.why_not(devices.place):
                yield CaseResult(case, None, reason)
                continue
            try:
                error, where = _deviation(case, OracleSession(devices, options, team), build, images, compute, rate)
                result = CaseResult(case, error)
                yield result if result.passed else CaseResult(case, error, f"differs most in {where}")
            except tf.errors.OpError as failure:
                yield CaseResult(case, float("inf"), str(failure_of(failure)))


def _deviation(
    case: Case,
    training: OracleSession,
    build_model: Callable[[], Model],
    spec: InputSpec,
    compute: Compute,
    learning_rate: float,
) -> tuple[float, str]:
    """Trains a model under a manager and returns how far it is from the reference, and which loss or variable is.

    Errors of losses are relative, those of variables relative to the largest change that the step should make. All
    towers must start with equal weights.
    """
    devices = training.devices
    with training:
        inputs, model = synthetic(devices.towers, spec), build_model()
        session, manager = training.start(model, inputs, case.variables(stages=0), case.rule, learning_rate, _OBJECTIVE)
        # Of one copy, each tower reads the same.
        copies = [
            {name: every[min(tower, len(every) - 1)][0] for name, every in manager.copies().items()}
            for tower in range(len(devices.towers))
        ]
        batches = session.run([(each.images, each.labels) for each in inputs])  # the same in every step
        kinds = {variable.name: variable.kind for variable in model.variables}
        reference = Steps(case.manager, case.modifiers, case.rule, learning_rate, kinds, compute)
        paths = {one.name: own.path for one, own in zip(model.variables, ordered(model.keras_model), strict=True)}
        now: list[Values] = session.run(copies)
        if case.modifiers.staged_vars:
            reference.fill(now, batches)
        shared = [name for name, kind in kinds.items() if kind != "tower_state"]
        errors = [
            (0.0 if np.array_equal(values[name], now[0][name]) else np.inf, f"{paths[name]} {where}")
            for where, values in ((f"of tower {tower} before the first step", each) for tower, each in enumerate(now))
            for name in shared
        ]
        for number in range(1, STEPS + 1):
            loss, wanted_now = reference.step(now, batches)
            errors.append((relative_error(np.array(training.step()), np.array(loss)), f"the loss of step {number}"))
            before, now = now, session.run(copies)
            for tower, values in enumerate(zip(now, wanted_now, before, strict=True)):
                errors += [
                    (error, f"{paths[name]} of tower {tower} after step {number}")
                    for name, error in _errors(*values, kinds).items()
                ]
    return max(errors, key=lambda error: np.inf if np.isnan(error[0]) else error[0])


def _errors(got: Values, wanted: Values, before: Values, kinds: Mapping[str, str]) -> dict[str, float]:
    """Returns the largest error of each variable, as a share of the change that the step should make."""
    changes = {name: _distance(wanted[name], before[name]) for name in kinds}
    largest = {kind: max(changes[name] for name in kinds if kinds[name] == kind) for kind in kinds.values()}
    errors = {}
    for name, kind in kinds.items():
        resolved = 0.0 if kind == "tower_state" else _OF_VALUE * float(np.max(np.abs(wanted[name]), initial=0.0))
        change = max(changes[name], _OF_LARGEST_CHANGE * largest[kind], resolved)
        distance = _distance(got[name], wanted[name])
        errors[name] = distance / change if change else np.inf if distance else 0.0
    return errors


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.abs(np.subtract(one, other, dtype=np.float64)), initial=0.0))
