"""Taking the steps of a built graph: first, warm-up, measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.input.catalog import DATA_SETS
from benchmarks.measure import injected_delay, telemetry
from benchmarks.measure.async_towers import FreeRunningTowers, TakeTowerStep
from benchmarks.measure.run_log import RunLog
from benchmarks.measure.timing import (
    AnyOf,
    Deadline,
    FixedSteps,
    Observed,
    Phase,
    StoppingRule,
    Taken,
    run_phase,
    timed,
)
from benchmarks.run import time_slices
from benchmarks.run.display import Display
from benchmarks.run.team import Team
from benchmarks.training import training_step
from benchmarks.training.run_input import RunInput
from models import specs
from variable_mgr.catalog import IN_GRAPH

# The first step pays for graph optimisation and memory growth, and initialising for fetching many values.
FIRST_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Stepper:
    """What takes a global step, and what forgets steps that were completed meanwhile, where towers run freely."""

    take: Callable[[], Taken]
    forget: Callable[[], None] = lambda: None


@contextlib.contextmanager
def stepping(
    session: tf.compat.v1.Session, step: training_step.Step, options: tf.compat.v1.RunOptions
) -> Iterator[Stepper]:
    """Yields what takes a global step, as long as it is needed."""
    takes = [injected_delay.slowed(_take(session, loop, options)) for loop in step.loops]
    if step.loops[0].staleness is None:
        (take,) = takes

        def together() -> tuple[float, Observed]:
            loss, _, observed = take()
            return loss, observed

        yield Stepper(timed(together))
        return
    with FreeRunningTowers(takes) as towers:
        yield Stepper(towers.take, towers.forget)


def _take(session: tf.compat.v1.Session, loop: training_step.Loop, options: tf.compat.v1.RunOptions) -> TakeTowerStep:
    """Returns what runs a loop once, and returns its loss, its staleness (0 if it has none), and what was observed."""
    staleness = [] if loop.staleness is None else [loop.staleness]
    fetches = [loop.loss, *loop.observed.values(), *staleness, loop.operation]
    run = session.make_callable(fetches, accept_options=True)

    def take() -> tuple[float, int, Observed]:
        loss, *values = run(options=options)
        return loss, values[-2] if staleness else 0, dict(zip(loop.observed, values, strict=False))

    return take


def measure(config: Config, steps: int, stepper: Stepper, log: RunLog, display: Display, team: Team) -> None:
    """Takes the first step, the warm-up and the measured steps; the window of these opens for all workers at once."""
    with prepared_telemetry(config) as log.telemetry:
        log.startup_seconds = log.started("variables")
        _take_phases(config, steps, stepper, log, display, team)
    team.expect_nothing()


def prepared_telemetry(config: Config) -> contextlib.AbstractContextManager[telemetry.Telemetry | None]:
    """Returns what looks at the physical GPUs that this process uses, however they are split.

    In turn with another run, the time and the energy of both would be told.
    """
    if time_slices.are_taken(config):
        return contextlib.nullcontext()
    if config.cluster and config.variable_update in IN_GRAPH:
        return telemetry.prepared(0, energy_of="")  # what the other workers use is not seen from here
    on_gpus = config.device == "gpu"
    physical = -(-config.num_devices // config.virtual_gpus) if on_gpus else 0
    return telemetry.prepared(physical, energy_of=telemetry.GPU_ONLY if on_gpus else telemetry.CPU_PACKAGE)


def _take_phases(config: Config, steps: int, stepper: Stepper, log: RunLog, display: Display, team: Team) -> None:
    age = log.startup_seconds or 0.0
    until = math.inf if config.time_limit_seconds is None else time.perf_counter() + config.time_limit_seconds - age
    deadline: list[StoppingRule] = [] if config.cluster else [Deadline(until)]
    plan = (
        ("first step", 1, log.first),
        ("warm-up", max(0, config.num_warmup_batches - 1), log.warmup),
        ("measuring", steps, log.measured),
    )
    for name, count, phase in plan:
        if config.cluster and phase is log.measured:
            count = _agreed_steps(steps, until, log, team)
            stepper.forget()
        limit = config.step_timeout_seconds * (FIRST_STEPS if phase is log.first else 1)

        def watched(limit: float = limit, name: str = name) -> Taken:
            team.expect(f"A step ({name})", limit)
            return stepper.take()

        with contextlib.ExitStack() as stack:
            after_step: list[Callable[[Phase], None]] = [display.after_step]
            if phase is log.measured:
                after_step.extend(stack.enter_context(_in_turn(config, count, log, team)))
                stack.enter_context(log.telemetry or contextlib.nullcontext())
            log.opened_at = time.perf_counter()
            display.phase(name, count)
            run_phase(watched, AnyOf([FixedSteps(count), *deadline]), phase, after_step=after_step)


@contextlib.contextmanager
def _in_turn(config: Config, steps: int, log: RunLog, team: Team) -> Iterator[list[Callable[[Phase], None]]]:
    """Yields what is to be done after each measured step so that another run has its turn; nothing if there is none."""
    with time_slices.taken(config) as own:
        if own is None:
            yield []
            return
        team.expect_nothing()  # what is waited for from here on is the other run
        # The shortest step, for the other run was getting ready meanwhile.
        own.begin(steps, min(log.warmup.step_seconds or log.first.step_seconds))
        log.steps_per_turn = own.steps_per_turn

        def after_step(phase: Phase) -> None:
            team.expect_nothing()
            own.after_step()

        yield [after_step]
        own.finish()


def _agreed_steps(steps: int, until: float, log: RunLog, team: Team) -> int:
    """Waits for the other workers, and returns how many steps each takes.

    Those that step together must take equally many, so with a time limit each takes what all can afford.
    """
    seconds = statistics.median(log.warmup.step_seconds or log.first.step_seconds)
    affordable = steps if until == math.inf else max(1, int((until - time.perf_counter()) / seconds))
    return min([steps, *team.meet("ready to measure", affordable, patient=True).values()])


def steps_to_measure(config: Config, tower_input: RunInput) -> int:
    """Returns how many steps are measured; an epoch of synthetic images is as long as the real one."""
    if config.num_batches:
        return config.num_batches
    images = (
        tower_input.source.count() if tower_input.source else DATA_SETS[specs.find(config.model).data_name].train_images
    )
    assert config.num_epochs is not None, "the configuration gives either batches or epochs"
    return max(1, round(config.num_epochs * images / config.batch_global))


def facts(config: Config, data: str, placement: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a person should know of the run before it starts.

    Args:
        config: of the run.
        data: the input in words.
        placement: see `benchmarks.training.placement_table`.
    """
    spec = specs.find(config.model)
    mode = "inference only" if config.forward_only else "training"
    per_device = placement["variable_bytes_per_device"].items()
    return {
        "TensorFlow": tf.__version__,
        "Model": f"{spec.name} ({spec.title}), {mode}, {config.precision}, {config.data_format}",
        "Data": data,
        "Batch size": f"{config.batch_per_device} per device, {config.batch_global} global",
        "Devices": placement["devices"],
        "Variables": f"{config.variable_update}: {placement['manager']}",
        "Placement": f"{placement['variables']} variables; "
        + ", ".join(f"{size / 1e6:.1f} MB on {device}" for device, size in per_device),
        "Optimizer": f"{config.optimizer}, learning rate {config.learning_rate:g}, "
        f"weight decay {config.weight_decay:g}",
    }
