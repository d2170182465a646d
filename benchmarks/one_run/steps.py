"""Takes the steps of a built graph: first, warm-up, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from benchmarks.between_steps.agenda import Agenda
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.input.catalog import DATA_SETS
from benchmarks.measure import injected_delay, telemetry
from benchmarks.measure.async_towers import FreeRunningTowers
from benchmarks.measure.run_log import RunLog, process_age_seconds
from benchmarks.measure.timing import Numbers, Phase, Taken, TakeStep, run_phase, timed
from benchmarks.one_run import time_slices
from benchmarks.one_run.display import FIRST_STEP, Display
from benchmarks.process.deadlines import PREPARATION_FACTOR
from benchmarks.training import pipeline, training_step
from benchmarks.training.run_input import RunInput
from models import specs
from variable_mgr.catalog import IN_GRAPH


@dataclasses.dataclass(frozen=True)
class Stepper:
    """Takes a global step; `forget` discards steps that asynchronous towers completed meanwhile."""

    take: Callable[[], Taken]
    forget: Callable[[], None] = lambda: None


@contextlib.contextmanager
def stepping(
    session: tf.compat.v1.Session,
    step: training_step.Step,
    options: tf.compat.v1.RunOptions,
    rate_after: Callable[[int], float] | None = None,
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
    takes = [injected_delay.slowed(_take(session, loop, options, rate_after, steps_before)) for loop in step.loops]
    if step.loops[0].staleness is None:
        (together,) = takes
        yield Stepper(timed(together))
        return
    with FreeRunningTowers(takes) as towers:
        yield Stepper(towers.take, towers.forget)


def fetches(loop: training_step.Loop) -> list[tf.Tensor | tf.Operation]:
    """Returns what a step of a loop fetches; other fetches would be another graph, which is optimised anew."""
    staleness = [] if loop.staleness is None else [loop.staleness]
    return [loop.loss, *loop.observed.values(), *staleness, loop.operation]


def _take(
    session: tf.compat.v1.Session,
    loop: training_step.Loop,
    options: tf.compat.v1.RunOptions,
    rate_after: Callable[[int], float] | None,
    steps_before: int,
) -> TakeStep:
    """Returns a function that runs a loop once; its staleness is 0 if the loop has none."""
    fed = [] if loop.learning_rate is None else [loop.learning_rate]
    run = session.make_callable(fetches(loop), feed_list=fed, accept_options=True)
    taken = itertools.count(steps_before)

    def take() -> tuple[float, int, Numbers]:
        rates = [rate_after(next(taken))] if rate_after else []
        loss, *values = run(*rates, options=options)
        return loss, values[-2] if loop.staleness is not None else 0, dict(zip(loop.observed, values, strict=False))

    return take


def measure(
    config: Config, steps: int, stepper: Stepper, log: RunLog, display: Display, team: Team, agenda: Agenda
) -> None:
    """Takes the first step, the warm-up and the measured steps; all workers start measuring together.

    Between steps, what is on the agenda is done, which may also end the measurement.
    """
    with prepared_telemetry(config) as log.telemetry:
        age = log.started("variables")
        log.observe(startup_seconds=age)
        until = math.inf if config.time_limit_seconds is None else time.perf_counter() + config.time_limit_seconds - age
        deadline = math.inf if config.cluster else until  # workers agree on a number of steps instead

        def take(name: str, count: int, phase: Phase, *after_step: Callable[[Phase], None]) -> None:
            limit = config.step_timeout_seconds * (PREPARATION_FACTOR if phase is log.first else 1)

            def watched() -> Taken:
                team.expect(f"A step ({name})", limit)
                return stepper.take()

            log.opened_at = time.perf_counter()
            display.phase(name, count)
            between = [display.after_step, agenda.after_step, *after_step]
            run_phase(watched, count, phase, deadline=deadline, after_step=between, is_enough=lambda: agenda.is_enough)

        take(FIRST_STEP, 1, log.first)
        take("warm-up", max(0, config.num_warmup_batches - 1), log.warmup)
        if config.cluster:
            steps = _agreed_steps(steps, until, log, team)
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
    if config.cluster and config.variable_update in IN_GRAPH:
        return telemetry.prepared(0, energy_of="")  # this process does not see the other workers' devices
    on_gpus = config.device == "gpu"
    physical = -(-config.num_devices // config.virtual_gpus) if on_gpus else 0
    return telemetry.prepared(physical, energy_of=telemetry.GPU_ONLY if on_gpus else telemetry.CPU_PACKAGE)


@contextlib.contextmanager
def _interleaved(config: Config, steps: int, log: RunLog, team: Team) -> Iterator[list[Callable[[Phase], None]]]:
    """Yields what to call after each measured step so that another run has its time slices."""
    with time_slices.taken(time_slices.can_interleave(config), config.step_timeout_seconds) as own:
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


def _agreed_steps(steps: int, until: float, log: RunLog, team: Team) -> int:
    """Waits for the other workers, and returns how many steps each takes: with a time limit, what all can afford."""
    seconds = statistics.median(log.warmup.step_seconds or log.first.step_seconds)
    affordable = steps if until == math.inf else max(1, int((until - time.perf_counter()) / seconds))
    return min([steps, *team.meet("ready to measure", affordable, patient=True).values()])


def steps_to_measure(config: Config, tower_input: RunInput) -> int:
    """Returns how many steps are measured; an epoch of synthetic images is as long as one of the real data set."""
    if config.num_batches:
        return config.num_batches
    images = (
        tower_input.source.count() if tower_input.source else DATA_SETS[specs.find(config.model).data_name].train_images
    )
    assert config.num_epochs is not None, "the configuration gives either batches or epochs"
    return max(1, round(config.num_epochs * images / config.batch_global))


def facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the text output shows of a run before it starts; `data` describes the input."""
    spec = specs.find(config.model)
    mode = "inference only" if config.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    parts = placement.get("pipeline")
    batch = f"{config.batch_per_device} per device, {config.batch_global} global"
    if parts:
        batch += f", in {parts['micro_batches']} micro-batches of {parts['images_per_micro_batch']}"
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.precision}, {config.data_format}",
        "Data": data,
        "Batch size": batch,
        "Devices": placement["devices"],
        "Variables": f"{config.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables{' that this worker sees' * (config.num_workers > 1)}; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        **(pipeline.stage_facts(parts) if parts else {}),
        "Optimizer": f"{config.optimizer}, learning rate {config.learning_rate:g}, "
        f"weight decay {config.weight_decay:g}",
    }
