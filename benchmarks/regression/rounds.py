"""Interleaved rounds of two builds: A B, B A, A B ..., so that a drift of the machine affects both. No TensorFlow.

Where possible, both runs of a round start at once and interleave their steps in time slices, see `run.time_slices`.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.console import warn
from benchmarks.errors import UsageError
from benchmarks.record_files import open_store
from benchmarks.regression.builds import Build
from benchmarks.run import time_slices
from benchmarks.sweep.grid import Cell, require_positive
from benchmarks.sweep.isolated_run import DEFAULT_TIMEOUT_SECONDS, CellRunner, run_together
from benchmarks.sweep.progress import what_is_run
from benchmarks.system.provenance import Provenance, of_this_run
from results.gate.baselines import BASELINES_DIR
from results.gate.comparability import differences, hardware, listed
from results.gate.rounds import rate, why_failed
from results.record import Record, Status

BASE, CANDIDATE = "base", "candidate"
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
        base, candidate = rate(self.base), rate(self.candidate)
        return None if base is None or candidate is None else (base, candidate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundsPlan:
    """What is run in rounds, and how.

    Attributes:
        cells: the configurations.
        max_rounds: pairs per configuration.
        output_dir: gets a directory of records per side.
        baselines_dir: contains the noise files of calibrate.
        warmup_round: whether an uncounted round goes before.
        interleave_steps: whether both runs of a pair may start at once and interleave their steps.
        round_timeout_seconds: of one run.
    """

    cells: Sequence[Cell]
    max_rounds: int
    output_dir: Path
    baselines_dir: Path
    warmup_round: bool = True
    interleave_steps: bool = True
    round_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def resolve(values: Mapping[str, Any], cells: Sequence[Cell], max_rounds: int, output_dir: str) -> RoundsPlan:
    """Turns flag values (None: not given) into a plan; `output_dir` is the default.

    Raises:
        UsageError: a value is out of range.
    """
    require_positive(values, "round_timeout_seconds")
    return RoundsPlan(
        cells=cells,
        max_rounds=max_rounds,
        output_dir=Path(values["output_dir"] or output_dir),
        baselines_dir=Path(values["baselines_dir"] or BASELINES_DIR),
        warmup_round=values.get("warmup_round") is not False,
        interleave_steps=values["steps_in_turn"] is not False,
        round_timeout_seconds=values["round_timeout_seconds"] or DEFAULT_TIMEOUT_SECONDS,
    )


class Configuration(Protocol):
    """A configuration that takes pairs of rounds until it is over."""

    cell: Cell

    @property
    def is_over(self) -> bool:
        """Returns whether no further round is needed."""

    @property
    def what(self) -> str:
        """Returns what is run, in few words."""

    def take(self, pair: Pair) -> str:
        """Takes a pair of rounds, and returns its result in words."""


def run(
    plan: RoundsPlan, builds: Mapping[str, Build], configurations: Sequence[Configuration], command: Sequence[str]
) -> list[str]:
    """Runs all configurations in rounds until each is over.

    Args:
        plan: how to run them.
        builds: of BASE and CANDIDATE.
        configurations: of the plan's cells.
        command: the words of the command line, for records of runs that left none.

    Returns:
        Notes for the reader of the results.

    Raises:
        UsageError: records cannot be stored, or the sides ran on different hardware.
    """
    on_gpus = any(cell.config and cell.config.device == "gpu" for cell in plan.cells)
    provenance = of_this_run(command, on_gpus=on_gpus, session_id=uuid.uuid4().hex[:12])
    open_runner = functools.partial(
        _PairRunner, builds, provenance=provenance, timeout_seconds=plan.round_timeout_seconds
    )
    runner = open_runner(directory=plan.output_dir)
    notes: list[str] = []
    interleaved: set[Cell] = set()
    if plan.warmup_round:
        warmup = open_runner(directory=plan.output_dir / "warmup")
        for configuration in configurations:
            cell = configuration.cell
            may_interleave = plan.interleave_steps and cell.config is not None and time_slices.is_still(cell.config)
            pair = warmup.run(cell, (BASE, CANDIDATE), interleaved=may_interleave)
            if not may_interleave or Status.SKIPPED in (pair.base.status, pair.candidate.status):
                continue
            if why := _why_not_interleaved(pair):
                notes.append(f"{what_is_run(cell)}: whole runs were compared instead of interleaved steps: {why}")
                warn(notes[-1])
            else:
                interleaved.add(cell)
    for number in range(plan.max_rounds):
        order = (BASE, CANDIDATE) if number % 2 == 0 else (CANDIDATE, BASE)
        for configuration in [each for each in configurations if not each.is_over]:
            cell = configuration.cell
            pair = runner.run(cell, order, interleaved=cell in interleaved, repeat_failures=True)
            _refuse_unlike_hardware(pair)
            words = configuration.take(pair)
            warn(f"round {number + 1} of at most {plan.max_rounds}, {configuration.what}: {words}")
    return [*notes, *runner.notes]


def _why_not_interleaved(pair: Pair) -> str:
    """Returns why the runs of a warm-up pair, started at once, did not interleave their steps; empty if they did."""
    sides = ((BASE, pair.base), (CANDIDATE, pair.candidate))
    if failed := [f"the {side} failed. {why_failed(record)}" for side, record in sides if not rate(record)]:
        return f"started at once, {' '.join(failed)}"
    return "" if pair.base.in_turn and pair.candidate.in_turn else "a side does not know how to interleave steps."


def _refuse_unlike_hardware(pair: Pair) -> None:
    ours, theirs = hardware(pair.base), hardware(pair.candidate)
    recorded = [name for name in ours if name in theirs]
    found = differences({name: ours[name] for name in recorded}, {name: theirs[name] for name in recorded}, SIDES)
    if found and pair.rates:
        raise UsageError(
            f"The sides ran on different hardware, which cannot be compared: {listed(found)}. Give both sides the same "
            "devices and cores."
        )


class _PairRunner:
    """Runs cells on both builds, each run in its own process, and stores the records in a directory per side.

    Attributes:
        notes: on runs that were repeated.

    Raises:
        UsageError: records cannot be stored.
    """

    def __init__(
        self, builds: Mapping[str, Build], *, directory: Path, provenance: Provenance, timeout_seconds: float
    ) -> None:
        self.notes: list[str] = []
        self._count = 0
        self._runners = {
            side: CellRunner(
                program=build.program,
                store=open_store(str(directory / side)),
                output_dir=str((directory / side).resolve()),  # the program may run in another directory
                provenance=provenance,
                timeout_seconds=timeout_seconds,
                timeout_flag="--round_timeout_seconds",
            )
            for side, build in builds.items()
        }

    def run(self, cell: Cell, order: Sequence[str], *, interleaved: bool, repeat_failures: bool = False) -> Pair:
        """Runs a cell once on each side: in that order, or with interleaved steps, of which the first side begins."""
        records: dict[str, Record] = {}
        for sides in [order] if interleaved else [order[:1], order[1:]]:
            ended = self._start(sides, cell)
            failed = [side for side in sides if rate(ended[side]) is None and ended[side].status is not Status.SKIPPED]
            if failed and repeat_failures:
                for side in failed:
                    why = why_failed(ended[side])
                    self.notes.append(f"{what_is_run(cell)}: a run of the {side} failed, and was run again. {why}")
                    warn(self.notes[-1])
                ended = self._start(sides, cell)
            records |= ended
        return Pair(**records)

    def _start(self, sides: Sequence[str], cell: Cell) -> dict[str, Record]:
        records = run_together([self._runners[side] for side in sides], cell, self._count)
        self._count += len(sides)
        return dict(zip(sides, records, strict=True))
