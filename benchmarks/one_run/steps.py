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
from benchmarks.errors import UsageError
from benchmarks.input.catalog import data_set_of
from benchmarks.measure import injected_delay, telemetry
from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.timing import Numbers, Phase, Taken, run_phase, timed
from benchmarks.one_run import time_slices
from benchmarks.one_run.display import FIRST_STEP, Display
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.training import pipeline, training_step
from benchmarks.training.run_input import RunInput
from models import specs
from variable_mgr.catalog import IN_GRAPH

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
    rate_after: RateAfter | None = None,
    steps_before: int = 0,
) -> Iterator[Stepper]:
    """Yields the stepper of a step in a session.

    Args:
        session: in which the graph was initialised.
        step: of the graph.
        options: of each step.
        rate_after: returns the learning rate after a number of steps of all towers; None if it is constant.
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
        rate_after: RateAfter | None,
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
        return [self._rate_after(next(self._taken))] if self._rate_after else []

    def _numbers(self, fetched: Sequence[Any]) -> tuple[float, int, Numbers]:
        loss, *values = fetched
        staleness = values[-2] if self._loop.staleness is not None else 0
        return loss, staleness, dict(zip(self._loop.observed, values, strict=False))


def measure(
    config: Config, steps: int, stepper: Stepper, log: RunLog, display: Display, team: Team, agenda: Agenda
) -> None:
    """Takes the first step, the warm-up and the measured steps; all workers start measuring together.

    Between steps, what is on the agenda is done, which may also end the measurement.
    """
    with prepared_telemetry(config) as log.telemetry:
        age = log.started("variables")
        log.observe(startup_seconds=age)
        until = (
            math.inf
            if config.length.time_limit_seconds is None
            else time.perf_counter() + config.length.time_limit_seconds - age
        )
        deadline = math.inf if config.processes.cluster else until  # workers agree on a number of steps instead

        def take(name: str, count: int, phase: Phase, *after_step: Callable[[Phase], None]) -> None:
            limit = config.processes.step_timeout_seconds * (PREPARATION_FACTOR if phase is log.first else 1)

            def watched() -> Taken:
                team.expect(f"A step ({name})", limit)
                taken = stepper.take()
                log.latest = phase
                return dataclasses.replace(taken, ended_at=taken.ended_at - agenda.paused_seconds)

            log.opened_at = time.perf_counter() - agenda.paused_seconds
            display.phase(name, count)
            between = [display.after_step, agenda.after_step, *after_step]
            run_phase(
                watched,
                count,
                phase,
                deadline=deadline,
                steps_per_round=config.steps_per_round if phase is log.measured else 1,
                after_step=between,
                is_enough=lambda: agenda.is_enough,
            )

        take(FIRST_STEP, 1, log.first)
        take("warm-up", max(0, config.length.num_warmup_batches - 1), log.warmup)
        if config.processes.cluster:
            steps = _agreed_steps(steps, until, log, team, config.steps_per_round)
            stepper.forget()
        interleaved = _interleaved(config, steps, log, team)
        with interleaved as after_step, log.telemetry or contextlib.nullcontext():
            take("measuring", steps, log.measured, *after_step)
    team.expect_nothing()


def prepared_telemetry(config: Config) -> contextlib.AbstractContextManager[telemetry.Telemetry | None]:
    """Returns the telemetry of the physical GPUs of this process.

    There is none if the run is interleaved with another: it would include the other's time and energy.
    """
    if time_slices.inherited() and time_slices.can_interleave(config):
        return contextlib.nullcontext()
    if config.processes.cluster and config.variables.variable_update in IN_GRAPH:
        return telemetry.prepared(0, energy_of="")  # this process does not see the other workers' devices
    on_gpus = config.devices.device == "gpu"
    physical = -(-config.devices.num_devices // config.devices.virtual_gpus) if on_gpus else 0
    return telemetry.prepared(physical, energy_of=telemetry.GPU_ONLY if on_gpus else telemetry.CPU_PACKAGE)


@contextlib.contextmanager
def _interleaved(config: Config, steps: int, log: RunLog, team: Team) -> Iterator[list[Callable[[Phase], None]]]:
    """Yields what to call after each measured step so that another run has its time slices."""
    with time_slices.taken(time_slices.can_interleave(config), config.processes.step_timeout_seconds) as own:
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


def plan(
    config: Config,
    tower_input: RunInput,
    steps_before: int = 0,
    images_before: int = 0,
    ends_at_step: int | None = None,
) -> tuple[Config, int]:
    """Returns the configuration, with a warm-up that leaves a step to measure, and how many steps are measured.

    With `--train_dir` a number of epochs is that of the whole training: of earlier runs, which trained on
    `images_before` images in `steps_before` steps, and of the warm-up. A run that an attempt before it has begun ends
    where that was to end, `ends_at_step`, or after two steps.

    Raises:
        UsageError: earlier runs have trained as much.
    """
    if ends_at_step is not None:
        return _with_warmup_in(config, ends_at_step - steps_before)
    if config.length.num_batches:
        return config, config.length.num_batches
    assert config.length.num_epochs is not None, "the configuration gives either batches or epochs"
    images = config.length.num_epochs * images_per_epoch(config, tower_input)
    if config.checkpoints.train_dir is None or config.workload.forward_only:
        rounds = -(-max(1, round(images / config.batch_global)) // config.steps_per_round)
        return config, rounds * config.steps_per_round
    left = round((images - images_before) / config.batch_global)
    if left <= 0 and steps_before:
        raise UsageError(
            f"--num_epochs={config.length.num_epochs:g}: {config.checkpoints.train_dir} has a training of {steps_before} steps, "
            "which are as many epochs. Pass more epochs, another --train_dir, or --num_batches for more steps."
        )
    return _with_warmup_in(config, left)


def _with_warmup_in(config: Config, left: int) -> tuple[Config, int]:
    """Divides the steps that are left between the warm-up and the measurement, at least one for each."""
    warmup = min(max(1, config.length.num_warmup_batches), max(1, left - 1))
    return dataclasses.replace(config, length=dataclasses.replace(config.length, num_warmup_batches=warmup)), max(
        1, left - warmup
    )


def images_per_epoch(config: Config, tower_input: RunInput) -> int:
    """Returns the images of the data set; an epoch of synthetic images is as long as one of the real data set."""
    if tower_input.source:
        return tower_input.source.count()
    return data_set_of(specs.find(config.workload.model).data_name).train_images


def rate_after(
    config: Config, tower_input: RunInput, steps_before: int = 0, images_before: int = 0
) -> Callable[[int], float] | None:
    """Returns what makes the learning rate from a number of steps of all towers; None if the rate is constant.

    Earlier runs took `steps_before` steps on `images_before` images; their batches may have had another size.
    """
    if config.training.schedule is None:
        return None
    rate, per_epoch = config.training.schedule.rate, images_per_epoch(config, tower_input)
    return lambda steps: rate((images_before + (steps - steps_before) * config.batch_global) / per_epoch)


def facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the text output shows of a run before it starts; `data` describes the input."""
    spec = specs.find(config.workload.model)
    mode = (
        "evaluation" if config.workload.eval_only else "inference only" if config.workload.forward_only else "training"
    )
    per_device = placement["variable_bytes_per_device"].items()
    parts = placement.get("pipeline")
    batch = f"{config.workload.batch_per_device} per device, {config.batch_global} global"
    if parts:
        batch += f", in {parts['micro_batches']} micro-batches of {parts['images_per_micro_batch']}"
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.computing.precision}, {config.workload.data_format}",
        "Data": data,
        "Batch size": batch,
        "Devices": placement["devices"],
        "Variables": f"{config.variables.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables{' that this worker sees' * (config.processes.num_workers > 1)}; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        **(pipeline.stage_facts(parts) if parts else {}),
        "Optimizer": f"{config.training.optimizer}, {config.training.schedule or f'learning rate {config.training.learning_rate:g}'}, "
        f"weight decay {config.training.weight_decay:g}",
    }
