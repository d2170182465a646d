"""The verb `calibrate`: how much do equal runs differ on this machine, and which drop can it show? No TensorFlow."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from benchmarks.compare import builds, interleaved_rounds
from benchmarks.compare.ab_verb import CALIBRATE_FLAGS, CALIBRATION_DIR, CALIBRATION_ROUNDS, STOPPED
from benchmarks.compare.interleaved_rounds import BASE, CANDIDATE, Configuration, Pair, RoundsPlan
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.machine import hardware
from benchmarks.process.signals import until_stopped
from benchmarks.sweep import grid
from results.gate import noise
from results.gate.decision import NOISE_IN_THRESHOLD, QUIET_THRESHOLD
from results.gate.noise import Noise

# A drop that a gate should not miss, in thresholds.
_CLEAR_DROP = 1.5
_MOST_ROUNDS = 60


def run_calibrate(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs the suite against itself, reports the noise, and stores it.

    Raises:
        UsageError: a value is out of range, nothing can be run, or records or noise cannot be stored.
        DataError: the stored noise of this machine cannot be read.
    """
    count = CALIBRATION_ROUNDS if values["rounds"] is None else values["rounds"]
    cells = [cell for cell in grid.wanted(values, hardware.count_gpus) if cell.runs]
    plan = interleaved_rounds.plan_rounds(values, cells, count, CALIBRATION_DIR)

    def calibrate() -> ExitStatus:
        suite = builds.this_suite()
        configurations = [Configuration(cell) for cell in plan.cells]
        interleaved_rounds.run_rounds(plan, {BASE: suite, CANDIDATE: suite}, configurations, command)
        done = [each for each in configurations if not each.failure]
        for each, title in zip(done, interleaved_rounds.titles(done), strict=True):
            _store(plan, each.pairs, title)
        for each in configurations:
            if each.failure:
                warn(f"{each.what} is not calibrated. {each.failure[1]}")
        return ExitStatus.OK if len(done) == len(configurations) else ExitStatus.RUN_FAILED

    return until_stopped(calibrate, STOPPED.format(plan.output_dir))


def _store(plan: RoundsPlan, pairs: Sequence[Pair], title: str) -> None:
    """Reports the noise of a configuration, and stores it."""
    base, candidate = zip(*(pair.rates for pair in pairs if pair.rates), strict=True)
    first = pairs[0].base
    found = replace(
        noise.estimate(base, candidate),
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        suite_commit=first.identity.suite_commit,
        title=title,
        is_interleaved=first.is_interleaved,
    )
    for line in lines(found):
        say(line)
    path = noise.path_of(plan.baselines_dir, first.identity.hardware_key)
    try:
        noise.save(path, {first.identity.config_key: found})
    except noise.NoiseFileError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--baselines_dir={plan.baselines_dir}: {error.strerror or error}.") from error
    say(f"  stored in {path}; ab uses it for this configuration on this hardware")


def lines(found: Noise) -> list[str]:
    """Returns what noise means for thresholds and rounds, in lines."""
    threshold = found.threshold
    drop = _CLEAR_DROP * threshold
    count = noise.rounds_needed(found.noise, drop=drop, threshold=threshold, most=_MOST_ROUNDS) if drop < 1 else None
    needed = f"up to {count} pairs of rounds" if count else f"more than {_MOST_ROUNDS} pairs of rounds"
    return [
        found.title,
        f"  noise of one round: {_percent(found.noise)} (95 % interval {_percent(found.low)} to {_percent(found.high)}"
        f", {found.rounds} pairs)",
        f"  threshold that this machine supports: {_percent(threshold)}",
        f"  a drop of {_percent(drop)} is found in 95 % of the cases with {needed}",
        f"  {_advice(found)}",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share:.1f} %"


def _advice(found: Noise) -> str:
    if found.threshold > QUIET_THRESHOLD:
        advice = (
            "let the run use all cores" if found.is_interleaved else "give the run fewer threads than there are cores"
        )
        return (
            "Noisy: look for other load (doctor reports how quiet the machine is), measure longer (--num_batches), or "
            f"{advice}; then calibrate again."
        )
    if NOISE_IN_THRESHOLD * found.high > QUIET_THRESHOLD:
        return "Quiet enough for 5 %, but these rounds are too few to be sure: set more --rounds."
    return "Quiet enough for 5 %."


VERB = Verb(
    "calibrate",
    "how much do equal runs differ here, and which drop can be seen?",
    CALIBRATE_FLAGS,
    lambda given, command: run_calibrate(given.values, command),
    takes="lists",
    examples=("calibrate --model=resnet50 --num_gpus=1",),
)
