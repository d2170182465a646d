"""How the steps of a built graph are taken: fetches, fed learning rates, traces."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.graph.epochs import Epochs
from benchmarks.measure import injected_delay
from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.timing import Numbers, Taken, timed
from benchmarks.training import training_step
from benchmarks.training.options import Training

RateAfter = Callable[[int], float]


@dataclasses.dataclass(frozen=True)
class Stepper:
    """What the loop of a run takes its steps with.

    Attributes:
        take: takes a global step.
        forget: discards steps that asynchronous towers completed meanwhile.
        take_with: takes a step that fetches more tensors, whose values it returns too, and that is traced if it gets
            a `RunMetadata`; None for asynchronous towers.
    """

    take: Callable[[], Taken]
    forget: Callable[[], None] = lambda: None
    take_with: Callable[[Sequence[tf.Tensor], tf.compat.v1.RunMetadata | None], tuple[Taken, Sequence[Any]]] | None = (
        None
    )


@contextlib.contextmanager
def stepping(
    session: tf.compat.v1.Session,
    step: training_step.Step,
    options: tf.compat.v1.RunOptions,
    rates: RateAfter,
    steps_before: int = 0,
) -> Iterator[Stepper]:
    """Yields the stepper of a step in a session.

    Args:
        session: in which the graph was initialised.
        step: of the graph.
        options: of each step.
        rates: returns the learning rate after a number of steps of all towers.
        steps_before: were taken by an earlier run.
    """
    loops = [_LoopSteps(session, loop, options, rates, steps_before) for loop in step.loops]
    takes = [injected_delay.slowed(loop.take) for loop in loops]
    if step.loops[0].staleness is None:
        (take,), (synchronous,) = takes, loops
        yield Stepper(timed(take), take_with=synchronous.take_with)
        return
    with FreeRunningTowers(takes) as towers:
        yield Stepper(towers.take, towers.forget)


def fetches(loop: training_step.Loop) -> list[tf.Tensor | tf.Operation]:
    """Returns what a step of a loop fetches; other fetches would be another graph, which is optimised anew."""
    staleness = [] if loop.staleness is None else [loop.staleness]
    return [loop.loss, *loop.observed.values(), *staleness, loop.operation]


def traced(
    options: tf.compat.v1.RunOptions, *, with_graphs: bool, with_kernels: bool = True
) -> tf.compat.v1.RunOptions:
    """Returns the options of a step that is traced, on GPUs with their kernels."""
    levels = tf.compat.v1.RunOptions
    changed = tf.compat.v1.RunOptions(
        trace_level=levels.FULL_TRACE if with_kernels else levels.SOFTWARE_TRACE, output_partition_graphs=with_graphs
    )
    changed.MergeFrom(options)
    return changed


def rate_after(training: Training, epochs: Epochs) -> RateAfter:
    """Returns a function from a number of steps of all towers to the learning rate after them."""
    schedule = training.schedule
    if schedule is None:
        return lambda steps: training.learning_rate
    return lambda steps: schedule.rate(epochs.after(steps))


class _LoopSteps:
    """Takes the steps of a loop; the learning rate of each follows from the number of those before."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        loop: training_step.Loop,
        options: tf.compat.v1.RunOptions,
        rates: RateAfter,
        steps_before: int,
    ) -> None:
        self._session, self._loop, self._options = session, loop, options
        self._fed = [] if loop.learning_rate is None else [loop.learning_rate]
        self._call = session.make_callable(fetches(loop), feed_list=self._fed, accept_options=True)
        self._rate_of, self._taken = rates, itertools.count(steps_before)

    def take(self) -> tuple[float, int, Numbers]:
        """Returns the loss, the staleness, which is 0 if the loop has none, and more numbers."""
        return self._numbers(self._call(*self._rates(), options=self._options))

    def take_with(
        self, more: Sequence[tf.Tensor], metadata: tf.compat.v1.RunMetadata | None
    ) -> tuple[Taken, Sequence[Any]]:
        """See `Stepper`."""
        options = self._options if metadata is None else traced(self._options, with_graphs=True)
        more_values: list[Any] = []

        def take() -> tuple[float, int, Numbers]:
            rates = self._rates()
            if not more:  # the graph of other steps
                return self._numbers(self._call(*rates, options=options, run_metadata=metadata))
            fed = dict(zip(self._fed, rates, strict=True))
            values, others = self._session.run([fetches(self._loop), list(more)], fed, options, metadata)
            more_values.extend(others)
            return self._numbers(values)

        return timed(take)(), more_values

    def _rates(self) -> list[float]:
        return [self._rate_of(next(self._taken))] if self._fed else []

    def _numbers(self, fetched: Sequence[Any]) -> tuple[float, int, Numbers]:
        loss, *values = fetched
        staleness = values[-2] if self._loop.staleness is not None else 0
        return loss, staleness, dict(zip(self._loop.observed, values, strict=False))
