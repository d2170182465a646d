"""Takes the steps of a built graph: first, warm-up, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.between_steps.agenda import Agenda
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.measure import injected_delay, telemetry
from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.timing import Numbers, Phase, Taken, run_phase, timed
from benchmarks.one_run import time_slices
from benchmarks.one_run.display import FIRST_STEP, Display
from benchmarks.one_run.epochs import Epochs, Plan
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.topology.device_options import Devices
from benchmarks.training import pipeline, training_step
from benchmarks.training.options import Training
from models import specs
from variable_mgr.place import Place

RateAfter = Callable[[int], float]
Otherwise = Callable[[Sequence[tf.Tensor], tf.compat.v1.RunMetadata | None], tuple[Taken, Sequence[Any]]]


@dataclasses.dataclass(frozen=True)
class Stepper:
    """Takes a global step; `forget` discards steps that asynchronous towers completed meanwhile.

    `otherwise` takes one that fetches more tensors, whose values it returns too, and that is traced if it gets a
    `RunMetadata`; None for asynchronous towers.
    """

    take: Callable[[], Taken]
    forget: Callable[[], None] = lambda: None
    otherwise: Otherwise | None = None


@contextlib.contextmanager
def stepping(
    session: tf.compat.v1.Session,
    step: training_step.Step,
    options: tf.compat.v1.RunOptions,
    rate_after: RateAfter,
    steps_before: int = 0,
) -> Iterator[Stepper]:
    """Yields the stepper of a step in a session.

    Args:
        session: in which the graph was initialised.
        step: of the graph.
        options: of each step.
        rate_after: returns the learning rate after a number of steps of all towers.
        steps_before: were taken by an earlier run.
    """
    loops = [_LoopSteps(session, loop, options, rate_after, steps_before) for loop in step.loops]
    takes = [injected_delay.slowed(loop.take) for loop in loops]
    if step.loops[0].staleness is None:
        (take,), (together,) = takes, loops
        yield Stepper(timed(take), otherwise=together.otherwise)
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


class _LoopSteps:
    """Takes the steps of a loop; the learning rate of each follows from the number of those before."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        loop: training_step.Loop,
        options: tf.compat.v1.RunOptions,
        rate_after: RateAfter,
        steps_before: int,
    ) -> None:
        self._session, self._loop, self._options = session, loop, options
        self._fed = [] if loop.learning_rate is None else [loop.learning_rate]
        self._run = session.make_callable(fetches(loop), feed_list=self._fed, accept_options=True)
        self._rate_after, self._taken = rate_after, itertools.count(steps_before)

    def take(self) -> tuple[float, int, Numbers]:
        """Returns the loss, the staleness, which is 0 if the loop has none, and more numbers."""
        return self._numbers(self._run(*self._rates(), options=self._options))

    def otherwise(
        self, more: Sequence[tf.Tensor], metadata: tf.compat.v1.RunMetadata | None
    ) -> tuple[Taken, Sequence[Any]]:
        """See `Stepper`."""
        options = self._options if metadata is None else traced(self._options, with_graphs=True)
        found: list[Any] = []

        def take() -> tuple[float, int, Numbers]:
            rates = self._rates()
            if not more:  # the graph of other steps
                return self._numbers(self._run(*rates, options=options, run_metadata=metadata))
            fed = dict(zip(self._fed, rates, strict=True))
            values, others = self._session.run([fetches(self._loop), list(more)], fed, options, metadata)
            found.extend(others)
            return self._numbers(values)

        return timed(take)(), found

    def _rates(self) -> list[float]:
        return [self._rate_after(next(self._taken))] if self._fed else []

    def _numbers(self, fetched: Sequence[Any]) -> tuple[float, int, Numbers]:
        loss, *values = fetched
        staleness = values[-2] if self._loop.staleness is not None else 0
        return loss, staleness, dict(zip(self._loop.observed, values, strict=False))


def measure(
    config: Config, plan: Plan, stepper: Stepper, log: RunLog, display: Display, team: Team, agenda: Agenda
) -> None:
    """Takes the first step, the warm-up and the measured steps; all workers start measuring together.

    Between steps, what is on the agenda is done, which may also end the measurement.
    """
    length, processes = config.length, config.processes
    interleaves = time_slices.inherited() is not None and time_slices.can_interleave(config)
    # Telemetry would include the time and energy of the run that this one is interleaved with.
    observed = contextlib.nullcontext() if interleaves else prepared_telemetry(config.devices, config.place)
    with observed as log.telemetry:
        age = log.started("variables")
        log.observe(startup_seconds=age)
        until = math.inf
        if length.time_limit_seconds is not None:
            until = time.perf_counter() + length.time_limit_seconds - age
        deadline = math.inf if processes.cluster else until  # workers agree on a number of steps instead

        def take(name: str, count: int, phase: Phase, *after_step: Callable[[Phase], None]) -> None:
            limit = processes.step_timeout_seconds * (PREPARATION_FACTOR if phase is log.first else 1)

            def watched() -> Taken:
                team.expect(f"A step ({name})", limit)
                taken = stepper.take()
                log.latest = phase
                return dataclasses.replace(taken, ended_at=taken.ended_at - agenda.paused_seconds)

            log.opened_at = time.perf_counter() - agenda.paused_seconds
            display.phase(name, count)
            run_phase(
                watched,
                count,
                phase,
                deadline=deadline,
                steps_per_round=config.steps_per_round if phase is log.measured else 1,
                after_step=[display.after_step, agenda.after_step, *after_step],
                is_enough=lambda: agenda.is_enough,
            )

        take(FIRST_STEP, 1, log.first)
        take("warm-up", plan.warmup - 1, log.warmup)
        steps = plan.measured
        if processes.cluster:
            steps = _agreed_steps(steps, until, log, team, config.steps_per_round)
            stepper.forget()
        interleaved = _interleaved(interleaves, processes.step_timeout_seconds, steps, log, team)
        with interleaved as after_step, log.telemetry or contextlib.nullcontext():
            take("measuring", steps, log.measured, *after_step)
    team.expect_nothing()


def prepared_telemetry(devices: Devices, place: Place) -> contextlib.AbstractContextManager[telemetry.Telemetry | None]:
    """Returns the telemetry of the physical GPUs of this process."""
    if place.hosts:
        return telemetry.prepared(0, energy_of="")  # this process does not see the other workers' devices
    if not devices.on_gpu:
        return telemetry.prepared(0, energy_of=telemetry.CPU_PACKAGE)
    return telemetry.prepared(-(-devices.num_devices // devices.virtual_gpus), energy_of=telemetry.GPU_ONLY)


@contextlib.contextmanager
def _interleaved(
    is_possible: bool, step_timeout_seconds: float, steps: int, log: RunLog, team: Team
) -> Iterator[list[Callable[[Phase], None]]]:
    """Yields what to call after each measured step so that another run has its time slices."""
    with time_slices.taken(is_possible, step_timeout_seconds) as own:
        if own is None:
            yield []
            return
        team.expect_nothing()  # from here on this run also waits for the other, with deadlines of its own
        # The shortest step, since the other run was starting up meanwhile.
        shortest = min(log.warmup.step_seconds or log.first.step_seconds)
        own.begin(steps, shortest, startup_seconds=process_age_seconds())
        log.steps_per_slice = own.steps_per_slice

        def after_step(phase: Phase) -> None:
            team.expect_nothing()
            own.after_step()

        yield [after_step]
        own.finish()


def _agreed_steps(steps: int, until: float, log: RunLog, team: Team, steps_per_round: int) -> int:
    """Waits for the other workers, and returns how many steps each takes.

    With a time limit, these are as many whole rounds as all can afford, at least one.
    """
    seconds = statistics.median(log.warmup.step_seconds or log.first.step_seconds)
    affordable = steps if until == math.inf else max(1, int((until - time.perf_counter()) / seconds))
    agreed = min([steps, *team.meet("ready to measure", affordable, patient=True).values()])
    return agreed if agreed == steps else max(1, agreed // steps_per_round) * steps_per_round


def rate_after(training: Training, epochs: Epochs) -> RateAfter:
    """Returns what makes the learning rate from a number of steps of all towers."""
    schedule = training.schedule
    if schedule is None:
        return lambda steps: training.learning_rate
    return lambda steps: schedule.rate(epochs.after(steps))


def facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the text output shows of a run before it starts; `data` describes the input."""
    workload, variables, training = config.workload, config.variables, config.training
    spec = specs.find(workload.model)
    mode = "evaluation" if workload.eval_only else "inference only" if workload.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    parts = placement.get("pipeline")
    batch = f"{workload.batch_per_device} per device, {config.batch_global} global"
    if parts:
        batch += f", in {parts['micro_batches']} micro-batches of {parts['images_per_micro_batch']}"
    seen = " that this worker sees" if config.processes.num_workers > 1 else ""
    rate = training.schedule or f"learning rate {training.learning_rate:g}"
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.computing.precision}, {workload.data_format}",
        "Data": data,
        "Batch size": batch,
        "Devices": placement["devices"],
        "Variables": f"{variables.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables{seen}; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        **(pipeline.stage_facts(parts) if parts else {}),
        "Optimizer": f"{training.optimizer}, {rate}, weight decay {training.weight_decay:g}",
    }
