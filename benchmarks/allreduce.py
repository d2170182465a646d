"""Times reductions on their own: one message, several reductions in turn, and what they computed against NumPy."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.errors import headline
from benchmarks.oracle import relative_error
from models import building, specs
from variable_mgr.algorithms import Place
from variable_mgr.reduction import Reduction

FLOAT32_BYTES = 4
_FEWEST_ROUNDS = 3
_UNITS = {2**30: "G", 2**20: "M", 2**10: "K", 1: ""}


@dataclasses.dataclass(frozen=True)
class Message:
    """What is reduced: float32 tensors of these shapes on every tower."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size_bytes(self) -> int:
        """Returns the size of one tower's tensors."""
        return FLOAT32_BYTES * sum(math.prod(shape) for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a message is reduced: rounds in which every reduction has its turn.

    Attributes:
        warmup_rounds: not measured; the first pays for graph optimisation.
        rounds: measured, at most.
        enough_seconds: once a message has taken so long, three measured rounds suffice.
    """

    warmup_rounds: int
    rounds: int
    enough_seconds: float


@dataclasses.dataclass
class Timing:
    """What came of one reduction of one message: seconds of each round and the error, or why it failed."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None
    failure: str = ""


def of_size(size_bytes: int) -> Message:
    """Returns one tensor of that size."""
    unit = next(unit for unit in _UNITS if size_bytes % unit == 0)
    return Message(f"{size_bytes // unit}{_UNITS[unit]}", ((size_bytes // FLOAT32_BYTES,),))


def of_model(name: str) -> Message:
    """Returns a model's gradients, in the order in which a manager reduces them."""
    model = building.build(specs.find(name), data_format="NHWC", num_classes=specs.BACKGROUND_CLASSES, seed=0)
    return Message(name, tuple(variable.shape for variable in model.variables if variable.kind == "weight"))


def measure(
    message: Message,
    reductions: Mapping[str, Reduction],
    place: Place,
    config: tf.compat.v1.ConfigProto,
    patience: Patience,
    *,
    clock: Callable[[], float] = time.perf_counter,
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
        clock: seconds, monotonic.

    Returns:
        For each reduction what came of it.
    """
    timings = {name: Timing() for name in reductions}
    with tf.Graph().as_default() as graph:
        sources, results = _variables(message, place)
        steps = {name: _step(reduction, sources, results, place) for name, reduction in reductions.items()}
        forget = tf.group(*(_assign(result, tf.fill(result.shape, math.nan)) for result in _flat(results)))
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run([variable.initializer for variable in _flat([*sources, *results])])
            runs = {name: session.make_callable(step) for name, step in steps.items()}
            _take_rounds(runs, timings, patience, clock)
            copies_of_each = zip(*session.run(sources), strict=True)
            wanted = [np.asarray(np.mean(copies, axis=0, dtype=np.float64)) for copies in copies_of_each]
            for name, timing in timings.items():
                if not timing.failure:
                    session.run(forget)
                    runs[name]()
                    timing.error = max(
                        relative_error(value, mean)
                        for tower in results
                        for value, mean in zip(session.run(tower), wanted, strict=True)
                    )
    return timings


def _take_rounds(
    runs: Mapping[str, Callable[[], object]],
    timings: Mapping[str, Timing],
    patience: Patience,
    clock: Callable[[], float],
) -> None:
    begun = clock()
    for round_number in range(patience.warmup_rounds + patience.rounds):
        measured = round_number - patience.warmup_rounds
        if measured >= _FEWEST_ROUNDS and clock() - begun > patience.enough_seconds:
            return
        for name, run in runs.items():
            if timings[name].failure:
                continue
            try:
                begin = clock()
                run()
                end = clock()
            except tf.errors.OpError as error:
                timings[name].failure = headline(error)
                continue
            if measured >= 0:
                timings[name].seconds.append(end - begin)


def _variables(message: Message, place: Place) -> tuple[list[list[tf.Variable]], list[list[tf.Variable]]]:
    """Returns, per tower, what is reduced and where the means go."""
    sources, results = [], []
    for tower, device in enumerate(place.towers):
        with tf.device(device):
            values = [tf.random.stateless_normal(shape, (tower, n)) for n, shape in enumerate(message.shapes)]
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


def _flat(towers: Sequence[Sequence[tf.Variable]]) -> list[tf.Variable]:
    return [variable for tower in towers for variable in tower]
