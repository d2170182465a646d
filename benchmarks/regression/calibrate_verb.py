"""The verb `calibrate`: how much do equal runs differ on this machine, and which drop can it show? No TensorFlow."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import DataError, ExitStatus, UsageError
from benchmarks.process.signals import until_stopped
from benchmarks.regression import sides
from benchmarks.regression.ab_verb import CALIBRATE_FLAGS, STOPPED, seconds_above_zero
from benchmarks.regression.baseline_verb import BASELINES_DIR
from benchmarks.regression.configuration import titles_by_run
from benchmarks.regression.rounds import Pair, Rounds, TurnTakers
from benchmarks.regression.sides import Side
from benchmarks.sweep import grid
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.progress import what_is_run
from benchmarks.system import hardware
from benchmarks.system.provenance import of_this_run
from results.gate import noise
from results.gate.noise import Noise
from results.record import Record

_ROUNDS = 10
# A drop that a gate should not miss, in thresholds.
_CLEAR_DROP = 1.5
_MOST_ROUNDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run, how often, and where it is kept.

    Attributes:
        cells: every configuration.
        rounds: pairs of each.
        output_dir: where records go.
        baselines_dir: where noise is kept.
        round_timeout_seconds: of one run.
        side: that is compared with itself.
        steps_in_turn: whether both runs of a pair may be started at once, to measure in turn.
    """

    cells: Sequence[Cell]
    rounds: int
    output_dir: Path
    baselines_dir: Path
    round_timeout_seconds: float
    side: Side
    steps_in_turn: bool = True


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Plan:
    """Turns flag values (None: not given) into a plan.

    Raises:
        UsageError: a value that makes no sense, or nothing to run.
    """
    rounds = _ROUNDS if values["rounds"] is None else values["rounds"]
    if rounds < noise.FEWEST_ROUNDS:
        raise UsageError(f"--rounds={rounds}: at least {noise.FEWEST_ROUNDS} are needed to know a spread, better 10.")
    return Plan(
        cells=[cell for cell in grid.wanted(values, count_gpus) if cell.runs],
        rounds=rounds,
        output_dir=Path(values["output_dir"] or "out/calibrate"),
        baselines_dir=Path(values["baselines_dir"] or BASELINES_DIR),
        round_timeout_seconds=seconds_above_zero(values["round_timeout_seconds"]),
        side=sides.this_suite(),
        steps_in_turn=values["steps_in_turn"] is not False,
    )


def run(plan: Plan, command: Sequence[str]) -> ExitStatus:
    """Runs the suite against itself, says how noisy that is, and keeps it.

    Raises:
        UsageError: results or noise cannot be kept.
        DataError: what is kept of this machine cannot be read.
    """

    def calibrate() -> ExitStatus:
        found = _take_rounds(plan, command)
        firsts = [pairs[0].base for pairs in found if pairs]
        titles = titles_by_run(firsts)
        for pairs in found:
            if pairs:
                _conclude(plan, pairs, titles[pairs[0].base.identity.run_id])
        return ExitStatus.OK if all(found) else ExitStatus.RUN_FAILED

    return until_stopped(calibrate, STOPPED.format(plan.output_dir))


def _take_rounds(plan: Plan, command: Sequence[str]) -> list[list[Pair]]:
    """Returns the pairs of each cell; none of one that has failed."""
    on_gpus = any(cell.config and cell.config.device == "gpu" for cell in plan.cells)
    provenance = of_this_run(command, on_gpus=on_gpus, session_id=uuid.uuid4().hex[:12])
    takers = TurnTakers(wanted=plan.steps_in_turn)
    rounds, warmup = (
        Rounds(
            plan.side, plan.side, output_dir=place, provenance=provenance, timeout_seconds=plan.round_timeout_seconds
        )
        for place in (plan.output_dir, plan.output_dir / "warmup")
    )
    found: list[list[Pair]] = [[] for _ in plan.cells]
    failed: set[int] = set()
    for cell in plan.cells:
        takers.try_out(cell, warmup)
    for number in range(plan.rounds):
        for index, cell in enumerate(plan.cells):
            if index in failed:
                continue
            pair = rounds.pair(cell, number, in_turn=takers.take_turns(cell))
            found[index].append(pair)
            if pair.rates is None:
                failed.add(index)
                found[index] = []
            warn(f"round {number + 1} of {plan.rounds}, {what_is_run(cell)}: {_came(pair)}")
    return found


def _came(pair: Pair) -> str:
    if pair.rates:
        return "{:.1f} and {:.1f} images/s".format(*pair.rates)
    return f"failed, and is not calibrated. {pair.base.reason or pair.candidate.reason}"


def _conclude(plan: Plan, pairs: Sequence[Pair], words: str) -> None:
    """Says how noisy a configuration is, and keeps that."""
    rates = [pair.rates for pair in pairs if pair.rates]
    first: Record = pairs[0].base
    found = dataclasses.replace(
        noise.estimate([base for base, _ in rates], [candidate for _, candidate in rates]),
        time_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        suite_commit=first.identity.suite_commit,
        title=words,
        in_turn=first.in_turn,
    )
    for line in lines(found):
        say(line)
    path = noise.path_of(plan.baselines_dir, first.identity.hardware_key)
    try:
        noise.keep(path, {first.identity.config_key: found})
    except noise.NoiseFileError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--baselines_dir={plan.baselines_dir}: {error.strerror or error}.") from error
    say(f"  kept in {path}; ab uses it for this configuration on this hardware")


def lines(found: Noise) -> list[str]:
    """Returns what noise means, in lines."""
    threshold = found.threshold
    drop = _CLEAR_DROP * threshold
    rounds = noise.rounds_needed(found.noise, drop=drop, threshold=threshold, most=_MOST_ROUNDS) if drop < 1 else None
    needed = f"up to {rounds} pairs of rounds" if rounds else f"more than {_MOST_ROUNDS} pairs of rounds"
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
    if found.threshold > noise.QUIET_THRESHOLD:
        return (
            "Noisy: look for other load (doctor says how quiet the machine is), measure longer (--num_batches), or "
            f"{'let the run use all cores' if found.in_turn else 'give the run fewer threads than there are cores'}; "
            "then calibrate again."
        )
    if noise.NOISE_IN_THRESHOLD * found.high > noise.QUIET_THRESHOLD:
        return "Quiet enough for 5 %, as far as so few rounds can tell: more --rounds make it surer."
    return "Quiet enough for 5 %."


VERB = Verb(
    "calibrate",
    "how much do equal runs differ on this machine, and which drop can it show?",
    CALIBRATE_FLAGS,
    lambda given, command: run(resolve(given.values, hardware.count_gpus), command),
    takes="lists",
)
