"""How much equal runs differ on this machine, and which drop `ab` can find here: `track calibrate`."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.compare import builds, interleaved_rounds
from benchmarks.compare.interleaved_rounds import BASE, CANDIDATE, Configuration, Pair, RoundsPlan
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, writing
from benchmarks.machine import hardware
from benchmarks.option import Flag, Groups, only
from benchmarks.process.signals import until_stopped
from benchmarks.sweep import grid
from results.gate import noise
from results.gate.decision import FEWEST_ROUNDS
from results.gate.noise import Noise

_REPEATS = 10
_OUTPUT_DIR = "out/calibrate"
# A drop that a gate should not miss, in thresholds.
_CLEAR_DROP = 1.5
_MOST_NEEDED = 60


def run_calibrate(values: Mapping[str, Any], command: Sequence[str]) -> ExitStatus:
    """Runs the suite against itself, reports the noise, and stores it.

    Raises:
        UsageError: a value is out of range, nothing can be run, or records or noise cannot be stored.
        DataError: the stored noise of this machine cannot be read.
    """
    count = _REPEATS if values["repeats"] is None else values["repeats"]
    as_json = values["output_format"] == "json"
    cells = [cell for cell in grid.wanted(values, hardware.count_gpus) if cell.runs]
    plan = interleaved_rounds.plan_rounds(values, cells, count, _OUTPUT_DIR)
    with _writing(plan):  # found out before the runs
        Path(plan.baselines_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=plan.baselines_dir).close()

    def calibrate() -> ExitStatus:
        suite = builds.this_suite()
        configurations = [Configuration(cell) for cell in plan.cells]
        interleaved_rounds.run_rounds(plan, {BASE: suite, CANDIDATE: suite}, configurations, command)
        done = [each for each in configurations if not each.failure]
        stored = [
            _store_noise(plan, each.pairs, title, as_text=not as_json)
            for each, title in zip(done, interleaved_rounds.titles(done), strict=True)
        ]
        if as_json:
            say(json.dumps(stored))
        for each in configurations:
            if each.failure:
                warn(f"{each.what} is not calibrated. {each.failure[1]}")
        return ExitStatus.OK if len(done) == len(configurations) else ExitStatus.RUN_FAILED

    return until_stopped(calibrate, interleaved_rounds.STOPPED.format(plan.output_dir))


def _writing(plan: RoundsPlan) -> AbstractContextManager[None]:
    return writing(f"--baselines_dir={plan.baselines_dir}", "directory that can be written")


def _store_noise(plan: RoundsPlan, pairs: Sequence[Pair], title: str, *, as_text: bool) -> dict[str, Any]:
    """Reports the noise of a configuration, stores it, and returns it as JSON can hold it."""
    base, candidate = zip(*(pair.rates for pair in pairs if pair.rates), strict=True)
    first = pairs[0].base
    result = replace(
        noise.estimate(base, candidate),
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        suite_commit=first.identity.suite_commit,
        title=title,
        is_interleaved=first.is_interleaved,
    )
    path, keys = noise.path_of(Path(plan.baselines_dir), first.identity.hardware_key), first.identity
    if as_text:
        say(*noise_lines(result))
    try:
        with _writing(plan):
            noise.save(path, {first.identity.config_key: result})
    except noise.NoiseFileError as error:
        raise DataError(str(error)) from error
    if as_text:
        say(f"  stored in {path}; `ab` uses it for this configuration on this hardware")
    stored = {"config_key": keys.config_key, "hardware_key": keys.hardware_key, "threshold": result.threshold}
    return {**msgspec.to_builtins(result), **stored}


def noise_lines(result: Noise) -> list[str]:
    """Returns what noise means for thresholds and rounds, in lines."""
    threshold = result.threshold
    drop = _CLEAR_DROP * threshold
    count = noise.rounds_needed(result.noise, drop=drop, threshold=threshold, most=_MOST_NEEDED) if drop < 1 else None
    often = f"found in 95 % of the cases with up to {count}" if count else f"not found reliably with {_MOST_NEEDED}"
    interval = f"{_percent(result.low)} to {_percent(result.high)}"
    return [
        result.title,
        f"  noise of one repeat: {_percent(result.noise)} (95 % interval {interval}, {result.rounds} repeats)",
        f"  threshold that this machine supports: {_percent(threshold)}",
        f"  a drop of {_percent(min(drop, 1))} is {often} repeats",
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share:.1f} %"


CALIBRATE_FLAGS: Groups = {
    "The calibration": (
        Flag(
            "repeats",
            int,
            "repeats of each configuration, a pair of runs each",
            default=_REPEATS,
            at_least=FEWEST_ROUNDS,
        ),
        *interleaved_rounds.plan_flags(_OUTPUT_DIR),
        *only(RUN_FLAGS["Output"], "output_format"),
    ),
}
