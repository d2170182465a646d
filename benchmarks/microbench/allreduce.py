"""Times reductions on their own: one message, several reductions in turn, and what they computed against NumPy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.errors import headline
from benchmarks.microbench.allreduce_report import Message, Patience, Timing
from models import building, specs
from models.seeds import seed_at_run_time
from variable_mgr.expected import relative_error
from variable_mgr.place import Place
from variable_mgr.reductions.all_reduce import Reduction

_FEWEST_ROUNDS = 3
_CHECKED_ELEMENTS = 2**20


def of_model(name: str) -> Message:
    """Returns a model's gradients, in the order in which a manager reduces them."""
    spec = specs.find(name)
    model = building.build(spec, data_format="NHWC", num_classes=spec.usual_outputs, seed=0)
    return Message(name, tuple(variable.shape for variable in model.variables if variable.kind == "weight"))


def measure(
    message: Message,
    reductions: Mapping[str, Reduction],
    place: Place,
    config: tf.compat.v1.ConfigProto,
    patience: Patience,
) -> dict[str, Timing]:
    """Reduces a message by each reduction in turn, round after round.

    Every tower's tensors are normal random numbers that lie on its device, and every tower stores the means that it
    gets in variables there, so that they must really arrive.

    Args:
        message: what is reduced.
        reductions: by name.
        place: the towers' devices and the host.
        config: of the session.
        patience: how often.

    Returns:
        For each reduction what came of it. What fails for all, such as memory that does not suffice for the message, is
        each one's failure.
    """
    timings = {name: Timing() for name in reductions}
    try:
        with tf.Graph().as_default() as graph:
            sources, results = _variables(message, place)
            steps = {name: _step(reduction, sources, results, place) for name, reduction in reductions.items()}
            forget = tf.group(*(_forget(result) for result in _flat(results)))
            with tf.compat.v1.Session(graph=graph, config=config) as session:
                session.run([variable.initializer for variable in _flat([*sources, *results])])
                runs = {name: session.make_callable(step) for name, step in steps.items()}
                _take_rounds(runs, timings, patience)
                wanted = _means(session, sources)
                for name, timing in timings.items():
                    if not timing.failure:
                        session.run(forget)
                        runs[name]()
                        timing.error = max(_error(session.run(tower), wanted) for tower in results)
    except (tf.errors.OpError, MemoryError) as error:
        for timing in timings.values():
            if timing.error is None and not timing.failure:
                _note_failure(timing, error)
    return timings


def _note_failure(timing: Timing, error: tf.errors.OpError | MemoryError) -> None:
    timing.failure = headline(error) or "The host is out of memory."
    timing.out_of_memory = isinstance(error, tf.errors.ResourceExhaustedError | MemoryError)


def _means(session: tf.compat.v1.Session, sources: Sequence[Sequence[tf.Variable]]) -> list[np.ndarray]:
    """Returns the mean over the towers of each tensor, in float64; one tower's tensors are fetched at a time."""
    sums: list[np.ndarray] = []
    for tower in sources:
        values = session.run(list(tower))
        sums = [np.add(sums[n], value) for n, value in enumerate(values)] if sums else [v.astype(float) for v in values]
    for total in sums:
        total /= len(sources)
    return sums


def _error(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Returns the largest relative difference, piece by piece, so that no large array is made on the way."""
    errors = []
    for one, other in zip(got, wanted, strict=True):
        flat, flat_other = one.reshape(-1), other.reshape(-1)
        for begin in range(0, max(1, flat_other.size), _CHECKED_ELEMENTS):
            piece = slice(begin, begin + _CHECKED_ELEMENTS)
            errors.append(relative_error(flat[piece], flat_other[piece]))
    return max(errors)


def _take_rounds(
    runs: Mapping[str, Callable[[], object]],
    timings: Mapping[str, Timing],
    patience: Patience,
) -> None:
    begun = time.perf_counter()
    for round_number in range(patience.warmup_rounds + patience.rounds):
        measured = round_number - patience.warmup_rounds
        if measured >= _FEWEST_ROUNDS and time.perf_counter() - begun > patience.enough_seconds:
            return
        for name, run in runs.items():
            if timings[name].failure:
                continue
            try:
                begin = time.perf_counter()
                run()
                end = time.perf_counter()
            except tf.errors.OpError as error:
                _note_failure(timings[name], error)
                continue
            if measured >= 0:
                timings[name].seconds.append(end - begin)


def _variables(message: Message, place: Place) -> tuple[list[list[tf.Variable]], list[list[tf.Variable]]]:
    """Returns, per tower, what is reduced and where the means go."""
    sources, results = [], []
    for tower, device in enumerate(place.towers):
        with tf.device(device):
            values = [
                tf.random.stateless_normal(shape, seed_at_run_time((tower, n)))
                for n, shape in enumerate(message.shapes)
            ]
            sources.append([tf.Variable(value, trainable=False) for value in values])
            results.append([tf.Variable(tf.zeros(shape), trainable=False) for shape in message.shapes])
    return sources, results


def _step(
    reduction: Reduction,
    sources: Sequence[Sequence[tf.Variable]],
    results: Sequence[Sequence[tf.Variable]],
    place: Place,
) -> tf.Operation:
    values = []
    for tower, device in zip(sources, place.towers, strict=True):
        with tf.device(device):
            values.append([variable.read_value() for variable in tower])
    means, operations = reduction.mean(values)
    stores = [
        _assign(result, mean)
        for towers_results, towers_means in zip(results, means, strict=True)
        for result, mean in zip(towers_results, towers_means, strict=True)
    ]
    return tf.group(*stores, *operations)


def _assign(variable: tf.Variable, value: tf.Tensor) -> tf.Operation:
    with tf.device(variable.device):
        return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _forget(variable: tf.Variable) -> tf.Operation:
    with tf.device(variable.device):
        return _assign(variable, tf.fill(variable.shape, math.nan))


def _flat(towers: Sequence[Sequence[tf.Variable]]) -> list[tf.Variable]:
    return [variable for tower in towers for variable in tower]
