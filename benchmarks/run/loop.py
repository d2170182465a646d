"""The loop of a run: the first step, the warm-up, the measured steps."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable

from benchmarks.callbacks.callback import Callbacks
from benchmarks.cluster.member import Team
from benchmarks.config.config import Config
from benchmarks.config.workload import MOST_STEPS
from benchmarks.graph.epochs import Epochs, Plan, images_per_epoch, plan
from benchmarks.graph.stepper import Stepper
from benchmarks.measure import interleaved_steps
from benchmarks.measure.display import FIRST_STEP, Display
from benchmarks.measure.run_log import RunLog, largest_resident_bytes
from benchmarks.measure.telemetry import prepared_telemetry
from benchmarks.measure.timing import Phase, Taken, run_phase


def measure(
    config: Config, planned: Plan, stepper: Stepper, log: RunLog, display: Display, team: Team, callbacks: Callbacks
) -> None:
    """Takes the first step, the warm-up and the measured steps; all workers start measuring together.

    Callbacks are called between steps, and may end the measurement.
    """
    length, processes = config.length, config.processes
    interleaves = interleaved_steps.inherited() is not None and config.can_interleave
    # Telemetry would include the time and energy of the run that this one is interleaved with.
    if not interleaves:
        log.telemetry = prepared_telemetry(config.devices, config.place)
    age = log.started("variables")
    log.observe(startup_seconds=age)
    until = math.inf
    if length.time_limit_seconds is not None:
        until = time.perf_counter() + length.time_limit_seconds - age
    deadline = math.inf if processes.cluster else until  # workers agree on a number of steps instead

    def take_steps(name: str, count: int, phase: Phase, *after_step: Callable[[Phase], None]) -> None:
        expect_step = team.deadlines.preparation if phase is log.first else team.deadlines.step

        def take() -> Taken:
            expect_step(f"A step ({name})")
            taken = stepper.take()
            log.latest = phase
            return dataclasses.replace(taken, ended_at=taken.ended_at - callbacks.paused_seconds)

        log.opened_at = time.perf_counter() - callbacks.paused_seconds
        display.phase(name, count)
        run_phase(
            take,
            count,
            phase,
            deadline=deadline,
            steps_per_round=config.steps_per_round if phase is log.measured else 1,
            after_step=[display.after_step, callbacks.after_step, *after_step],
            is_enough=lambda: callbacks.is_enough,
        )

    take_steps(FIRST_STEP, 1, log.first)
    take_steps("warm-up", planned.warmup - 1, log.warmup)
    steps = _steps_to_measure(planned.measured, length.at_least_seconds, log, config.steps_per_round)
    if processes.cluster:
        steps = _agreed_steps(steps, until, log, team, config.steps_per_round)
        stepper.forget()
    if length.at_least_seconds is not None:
        display.note(f"Measuring {steps} steps: {config.reasons['num_batches']}.")
    with interleaved_steps.taken(interleaves, team.deadlines) as slices, log.telemetry or contextlib.nullcontext():
        if slices is None:
            take_steps("measuring", steps, log.measured)
        else:
            # The shortest step: the others were slowed down by the start of the other run.
            slices.begin(steps, min(log.warmup.step_seconds or log.first.step_seconds))
            log.steps_per_slice = slices.steps_per_slice
            take_steps("measuring", steps, log.measured, lambda _: slices.after_step())
            slices.finish()
    log.observe(peak_host_memory_bytes=largest_resident_bytes())  # before what follows the steps
    team.deadlines.none()


def measure_reference(config: Config, stepper: Stepper, log: RunLog, display: Display, team: Team) -> None:
    """Measures a reference loop, with nothing between its steps; then its variables are to be checked."""
    epochs = Epochs(images_per_epoch(config.workload.model, None), config.batch_global)
    measure(config, plan(config.length, epochs, config.steps_per_round), stepper, log, display, team, Callbacks(team))
    team.deadlines.preparation("Checking the variables after the run")


def _steps_to_measure(planned: int, at_least_seconds: float | None, log: RunLog, steps_per_round: int) -> int:
    """Returns the planned steps, or as many whole rounds as take so long by the median step of the warm-up.

    They are not less than planned, and at most `MOST_STEPS` in whole rounds.
    """
    if at_least_seconds is None:
        return planned
    steps = min(at_least_seconds / _expected_seconds(log), MOST_STEPS)
    return max(planned, math.ceil(steps / steps_per_round) * steps_per_round)


def _expected_seconds(log: RunLog) -> float:
    return statistics.median(log.warmup.step_seconds or log.first.step_seconds)


def _agreed_steps(steps: int, until: float, log: RunLog, team: Team, steps_per_round: int) -> int:
    """Waits for the other workers, and returns how many steps each takes.

    With a time limit, these are as many whole rounds as all can afford, at least one.
    """
    affordable = steps
    if until != math.inf:
        affordable = min(steps, max(1, int((until - time.perf_counter()) / _expected_seconds(log))))
    agreed = min([*team.meet("ready to measure", affordable, patient=True).values()])
    return agreed if agreed == steps else max(1, agreed // steps_per_round) * steps_per_round
