"""Interleaved rounds of two builds: A B, B A, A B ..., so that a drift of the machine affects both. No TensorFlow.

Where possible, both runs of a round start at once and interleave their steps in time slices, see `interleaved_steps`.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.builds import Build
from benchmarks.console import in_words, warn
from benchmarks.errors import UsageError
from benchmarks.machine.provenance import Provenance
from benchmarks.measure import interleaved_steps
from benchmarks.option import Flag, filled, flags_of, option
from benchmarks.sweep import grid
from benchmarks.sweep.grid import SUITE_FLAG, Cell
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS, CellRunner, new_session, run_together
from benchmarks.sweep.progress import in_few_words, what_is_run
from benchmarks.trackers import tracker_list
from results.environment import differences, hardware, listed
from results.gate.baselines import BASELINES_DIR
from results.gate.findings import Finding, Verdict
from results.gate.rounds import group, why_failed
from results.gate.trial import Trial
from results.record import Record, Status

BASE, CANDIDATE = "base", "candidate"
STOPPED = "Stopped before the end. The finished runs are in {}."
# The sides in sentences.
SIDES = ("the base", "the candidate")


@dataclasses.dataclass(frozen=True)
class Pair:
    """The records of one round, one of each side."""

    base: Record
    candidate: Record

    @property
    def rates(self) -> tuple[float, float] | None:
        """Returns both rates in images per second; None if a run has no valid one."""
        base, candidate = self.base.rate, self.candidate.rate
        return None if base is None or candidate is None else (base, candidate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundsPlan:
    """What is run in rounds, and how.

    Attributes:
        max_repeats: of each configuration, a pair of runs each.
        output_dir: gets a directory of records per side.
        warmup: whether an uncounted repeat goes before.
    """

    cells: Sequence[Cell]
    max_repeats: int
    output_dir: Path
    warmup: bool
    interleave_steps: bool = option(
        "interleave the steps of both runs of a repeat in time slices of 0.25 s; on CPUs with synthetic images; else "
        "one run follows the other",
        default=True,
    )
    run_timeout_seconds: float = option(
        "kill a run that takes longer; interleaved runs may take twice as long",
        default=DEFAULT_TIMEOUT_SECONDS,
        above=0,
    )
    baselines_dir: str = option(
        "directory of the noise that `track calibrate` measured", default=BASELINES_DIR, path="directory"
    )


def plan_rounds(values: Mapping[str, Any], cells: Sequence[Cell], max_repeats: int, output_dir: str) -> RoundsPlan:
    """Turns flag values (None: not given) into a plan; `output_dir` is the default.

    Raises:
        UsageError: the runs would be sent to trackers, or continue one training.
    """
    grid.refuse_shared_trainings(cells, 2 * max_repeats)
    directory = Path(values["output_dir"] or output_dir)
    words = (word for cell in cells for word in cell.arguments)
    to_trackers = tuple(f"--{name}=" for name in tracker_list.FLAGS)
    if sends := next((word for word in words if word.startswith(to_trackers)), None):
        raise UsageError(
            f"{sends}: runs that are compared in pairs are not sent to trackers. Omit it, and send their records "
            f"afterwards: report {directory / CANDIDATE} {sends}"
        )
    is_warm = values.get("warmup") is not False
    return filled(RoundsPlan, values, cells=cells, max_repeats=max_repeats, output_dir=directory, warmup=is_warm)


class Configuration:
    """One configuration: takes pairs of rounds until one fails, or until its trial decides.

    Args:
        cell: what is run.
        make_trial: makes a trial for the first pair of rounds; None if nothing is to be decided.

    Attributes:
        pairs: in the order in which they ran.
        failure: verdict and reason if a side did not run.
        is_over: whether no further round is needed.
    """

    def __init__(self, cell: Cell, make_trial: Callable[[Pair], Trial] | None = None) -> None:
        self.cell = cell
        self.pairs: list[Pair] = []
        self.failure: tuple[Verdict, str] | None = None
        self.is_over = False
        self._make_trial = make_trial
        self._trial: Trial | None = None

    @property
    def refusal(self) -> str:
        """Returns why this suite and both sides refuse to run this; empty if one of them does not."""
        if self.cell.config is not None or not self.pairs:
            return ""
        first = self.pairs[0]
        return first.base.reason if first.base.status is first.candidate.status is Status.SKIPPED else ""

    @property
    def what(self) -> str:
        """Returns what the sides ran, in few words: their commands may contain flags of their own."""
        last = (self.pairs[-1].base, self.pairs[-1].candidate) if self.pairs and self.pairs[-1].rates else ()
        return " against ".join(dict.fromkeys(in_few_words(record.config) for record in last)) or what_is_run(self.cell)

    def take(self, pair: Pair) -> str:
        """Takes a pair of rounds, and returns its rates, or why it failed, in words."""
        self.pairs.append(pair)
        if pair.rates is None:
            base_ran = pair.base.rate is not None or interleaved_steps.waited_in_vain(pair.base.reason)
            side, record = (CANDIDATE, pair.candidate) if base_ran else (BASE, pair.base)
            reason = f"The {side} did not run in repeat {len(self.pairs)}: {why_failed(record)}"
            self.failure = (Verdict.FAILED if base_ran else Verdict.INCONCLUSIVE), reason
            self.is_over = True
            return reason
        words = f"base {pair.rates[0]:.1f}, candidate {pair.rates[1]:.1f} images/s"
        if self._make_trial is None:
            return words
        self._trial = self._trial or self._make_trial(pair)
        self._trial.add(*pair.rates)
        self.is_over = self._trial.is_over
        return f"{words}; {self._trial.progress}"

    def finding(self, words: str) -> Finding:
        """Returns the result of the trial under that title, after at least one pair."""
        assert self._make_trial is not None, "there is something to decide"
        trial = self._trial or self._make_trial(self.pairs[0])
        decision = trial.decision
        if self.failure:
            decision = dataclasses.replace(decision, verdict=self.failure[0], reason=self.failure[1])
        rates = [pair.rates for pair in self.pairs if pair.rates]
        means = [statistics.geometric_mean(side) for side in zip(*rates, strict=True)] or (None, None)
        sides = [(mean, len(rates)) for mean in means]
        return decision.finding(words, [pair.base for pair in self.pairs], trial.threshold, *sides)


def titles(configurations: Sequence[Configuration]) -> list[str]:
    """Returns what each configuration is, in few words that differ from the others'; each has at least one pair."""
    firsts = [configuration.pairs[0].base for configuration in configurations]
    by_run = {record.identity.run_id: of.title for of in group(firsts).values() for record in of.records}
    return [
        by_run[first.identity.run_id] if first.config_not_in_key else what_is_run(configuration.cell)
        for first, configuration in zip(firsts, configurations, strict=True)
    ]


def run_rounds(
    plan: RoundsPlan, builds: Mapping[str, Build], configurations: Sequence[Configuration], command: Sequence[str]
) -> list[str]:
    """Runs all configurations of a plan's cells in rounds until each is over; returns notes for the reader.

    Raises:
        UsageError: records cannot be stored, or the sides ran on different hardware.
    """
    on_gpus = any(cell.config and cell.config.devices.on_gpu for cell in plan.cells)
    provenance = new_session(command, on_gpus=on_gpus)
    runners = _runners(plan, builds, plan.output_dir, provenance)
    notes: list[str] = []
    interleaved: set[Cell] = set()
    if plan.warmup:
        warmup = _runners(plan, builds, plan.output_dir / "warmup", provenance)
        for configuration in configurations:
            cell = configuration.cell
            together = plan.interleave_steps and cell.config is not None and cell.config.can_interleave
            pair = _run_pair(warmup, cell, (BASE, CANDIDATE), f"warm-up, {what_is_run(cell)}", interleaved=together)
            if not together or Status.SKIPPED in (pair.base.status, pair.candidate.status):
                continue
            if why := _why_not_interleaved(pair):
                notes.append(f"{what_is_run(cell)}: whole runs were compared instead of interleaved steps: {why}")
                warn(notes[-1])
            else:
                interleaved.add(cell)
    begun = time.monotonic()
    for number in range(plan.max_repeats):
        rest = (time.monotonic() - begun) * (plan.max_repeats / number - 1) if number else None
        left = "" if rest is None else f", {in_words(rest)} left at most"
        order = (BASE, CANDIDATE) if number % 2 == 0 else (CANDIDATE, BASE)
        for configuration in [each for each in configurations if not each.is_over]:
            cell, which = configuration.cell, f"repeat {number + 1} of at most {plan.max_repeats}"
            what = f"{which}, {configuration.what}{left}"
            pair = _run_pair(runners, cell, order, what, interleaved=cell in interleaved)
            _refuse_unlike_hardware(pair)
            words = configuration.take(pair)
            warn(f"{which}, {configuration.what}: {words}")
    return notes


def _why_not_interleaved(pair: Pair) -> str:
    sides = ((BASE, pair.base), (CANDIDATE, pair.candidate))
    if failed := [f"the {side} failed. {why_failed(record)}" for side, record in sides if not record.rate]:
        return f"started at once, {' '.join(failed)}"
    both_did = pair.base.is_interleaved and pair.candidate.is_interleaved
    return "" if both_did else "a side does not know how to interleave steps."


def _refuse_unlike_hardware(pair: Pair) -> None:
    ours, theirs = hardware(pair.base), hardware(pair.candidate)
    suites = {(side.identity.suite_version, side.identity.suite_commit) for side in (pair.base, pair.candidate)}
    # One of two suites may be older, and record less of it.
    compared = ours.keys() | theirs.keys() if len(suites) == 1 else ours.keys() & theirs.keys()
    ours, theirs = ({name: side[name] for name in side if name in compared} for side in (ours, theirs))
    unlike = differences(ours, theirs, SIDES)
    if unlike and pair.rates:
        raise UsageError(
            f"The sides ran on different hardware, which cannot be compared: {listed(unlike)}. Give both sides the "
            "same devices and cores."
        )


def _runners(
    plan: RoundsPlan, builds: Mapping[str, Build], directory: Path, origin: Provenance
) -> dict[str, CellRunner]:
    """Returns what runs cells on each side, each run in its own process, and stores its records below a directory."""
    return {
        side: CellRunner(
            program=build.program,
            directory=build.directory,
            variables=build.variables,
            output_dir=os.path.realpath(directory / side),  # the program may run in another directory
            provenance=origin,
            timeout_seconds=plan.run_timeout_seconds,
            timeout_flag="--run_timeout_seconds",
        )
        for side, build in builds.items()
    }


def _run_pair(
    runners: Mapping[str, CellRunner], cell: Cell, order: Sequence[str], what: str, *, interleaved: bool
) -> Pair:
    """Runs a cell once on each side: in that order, or with interleaved steps, of which the first side begins.

    `what` is shown meanwhile.
    """
    records: dict[str, Record] = {}
    for sides in [order] if interleaved else [order[:1], order[1:]]:
        ended = run_together([runners[side] for side in sides], [cell] * len(sides), what)
        records |= zip(sides, ended, strict=True)
    return Pair(**records)


def plan_flags(output_dir: str) -> tuple[Flag, ...]:
    """Returns the flags of a `RoundsPlan`; `output_dir` is the default."""
    meaning = "directory of base/, candidate/ and warmup/, with records and logs"
    return (
        SUITE_FLAG,
        *flags_of(RoundsPlan),
        Flag("output_dir", str, meaning, default=output_dir, path="directory"),
    )
