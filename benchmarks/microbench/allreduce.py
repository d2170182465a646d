"""Measures reductions alone: interleaved rounds of several reductions of one message, compared with NumPy's means."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.errors import failure_of
from benchmarks.microbench.allreduce_report import Message, Timing
from benchmarks.process.deadlines import NO_DEADLINES, Deadlines
from models import building, specs
from models.seeds import seed_at_run_time
from variable_mgr.expected import relative_error
from variable_mgr.place import Place
from variable_mgr.reductions.all_reduce import Reduction
from variable_mgr.reductions.kernels import on_each

_FEWEST_ROUNDS = 3
_CHECKED_ELEMENTS = 2**20


def of_model(name: str) -> Message:
    """Returns a model's gradients, in the order in which a manager reduces them."""
    spec = specs.find_model(name)
    model = building.build(spec, data_format="NHWC", num_classes=spec.usual_outputs, seed=0)
    return Message(name, tuple(variable.shape for variable in model.variables if variable.kind == "weight"))


def measure(
    message: Message,
    reductions: Mapping[str, Reduction],
    place: Place,
    config: tf.compat.v1.ConfigProto,
    *,
    warmup_rounds: int,
    rounds: int,
    enough_seconds: float,
    deadlines: Deadlines = NO_DEADLINES,
) -> dict[str, Timing]:
    """Reduces a message by each reduction, in interleaved rounds.

    The tensors are normal random numbers on each tower's device. Every tower stores its means in variables on its
    device, so that they must really arrive there.

    The warm-up rounds pay for graph optimisation, and for NCCL's communicators, which each session makes anew and whose
    first rounds of a size connect the GPUs. After `enough_seconds` of measuring, three measured rounds suffice.

    Returns the result of each reduction; a failure of all, such as too little memory for the message, is that of each.
    """
    timings = {name: Timing() for name in reductions}
    deadlines.preparation(f"Building the all-reduce of {message.name}")
    try:
        with tf.Graph().as_default() as graph:
            sources, results = [], []
            for tower, device in enumerate(place.towers):
                with tf.device(device):
                    values = [
                        tf.random.stateless_normal(shape, seed_at_run_time((tower, n)))
                        for n, shape in enumerate(message.shapes)
                    ]
                    sources.append([tf.Variable(value, trainable=False) for value in values])
                    results.append([tf.Variable(tf.zeros(shape), trainable=False) for shape in message.shapes])
            steps = {name: _step(reduction, sources, results, place) for name, reduction in reductions.items()}
            forget = []
            for variable in itertools.chain(*results):
                with tf.device(variable.device):
                    forget.append(_assign(variable, tf.fill(variable.shape, math.nan)))
            with tf.compat.v1.Session(graph=graph, config=config) as session:
                session.run([variable.initializer for variable in itertools.chain(*sources, *results)])
                runs = {name: session.make_callable(step) for name, step in steps.items()}
                _take_rounds(message.name, runs, timings, warmup_rounds, rounds, enough_seconds, deadlines)
                deadlines.preparation(f"Checking the all-reduce of {message.name}")
                expected = _means(session, sources)
                for name, timing in timings.items():
                    if not timing.failure:
                        session.run(forget)
                        runs[name]()
                        timing.error = max(_error(session.run(tower), expected) for tower in results)
    except (tf.errors.OpError, MemoryError) as error:
        for timing in timings.values():
            if timing.error is None and not timing.failure:
                timing.failure = failure_of(error)
    deadlines.none()
    return timings


def _step(
    reduction: Reduction,
    sources: Sequence[Sequence[tf.Variable]],
    results: Sequence[Sequence[tf.Variable]],
    place: Place,
) -> tf.Operation:
    values = on_each(place.towers, lambda tower: [variable.read_value() for variable in tower], sources)
    means, operations = reduction.mean(values)
    stores = map(_assign, itertools.chain(*results), itertools.chain(*means))
    return tf.group(*stores, *operations)


def _assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    with tf.device(variable.device):
        return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _take_rounds(
    message: str,
    runs: Mapping[str, Callable[[], object]],
    timings: Mapping[str, Timing],
    warmup_rounds: int,
    rounds: int,
    enough_seconds: float,
    deadlines: Deadlines,
) -> None:
    begun = math.inf
    for measured in range(-warmup_rounds, rounds):
        if measured == 0:
            begun = time.perf_counter()
        if measured >= _FEWEST_ROUNDS and time.perf_counter() - begun > enough_seconds:
            return
        for name, run in runs.items():
            if timings[name].failure:
                continue
            (deadlines.preparation if measured < 0 else deadlines.step)(f"All-reduce of {message} by {name}")
            try:
                begin = time.perf_counter()
                run()
                end = time.perf_counter()
            except tf.errors.OpError as error:
                timings[name].failure = failure_of(error)
                continue
            if measured >= 0:
                timings[name].seconds.append(end - begin)


def _means(session: tf.compat.v1.Session, sources: Sequence[Sequence[tf.Variable]]) -> list[np.ndarray]:
    """Returns the mean over the towers of each tensor, in float64; fetches one tower's tensors at a time."""
    sums = [np.zeros(variable.shape) for variable in sources[0]]
    for tower in sources:
        for total, value in zip(sums, session.run(list(tower)), strict=True):
            total += value
    return [total / len(sources) for total in sums]


def _error(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Returns the largest relative difference; compares in pieces, to need little memory."""
    errors = []
    for one, other in zip(got, expected, strict=True):
        flat, flat_other = one.reshape(-1), other.reshape(-1)
        for begin in range(0, max(1, flat_other.size), _CHECKED_ELEMENTS):
            piece = slice(begin, begin + _CHECKED_ELEMENTS)
            errors.append(relative_error(flat[piece], flat_other[piece]))
    return max(errors)
