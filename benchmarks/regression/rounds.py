"""Interleaved rounds of two sides: A B, B A, A B ... so that a machine that drifts does so for both. No TensorFlow.

Where that disturbs neither, both runs of a round are there at once and measure in turn, a few steps each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.console import warn
from benchmarks.errors import UsageError
from benchmarks.record_files import open_store
from benchmarks.regression.sides import Side
from benchmarks.run import time_slices
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.isolated_run import CellRunner, run_in_turn
from benchmarks.sweep.progress import what_is_run
from benchmarks.system.provenance import Provenance
from results.gate.comparability import hardware
from results.gate.rounds import rate, why_failed
from results.record import Record, Status

BASE, CANDIDATE = "base", "candidate"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A round of each side, as they ended."""

    base: Record
    candidate: Record

    @property
    def rates(self) -> tuple[float, float] | None:
        """Returns both rates in images per second; None if one has none."""
        base, candidate = (rate(record) for record in (self.base, self.candidate))
        return None if base is None or candidate is None else (base, candidate)


class Rounds:
    """Runs cells on both sides, each run a process of its own, whose record is kept in the side's directory.

    Args:
        base: one side.
        candidate: the other.
        output_dir: has a directory per side.
        provenance: of all runs.
        timeout_seconds: of one run.

    Attributes:
        notes: sentences on what a reader of the results must know.

    Raises:
        UsageError: results cannot be kept.
    """

    def __init__(
        self, base: Side, candidate: Side, *, output_dir: Path, provenance: Provenance, timeout_seconds: float
    ) -> None:
        self.notes: list[str] = []
        self._count = 0
        self._runners = {
            name: CellRunner(
                program=side.program,
                store=open_store(str(output_dir / name)),
                output_dir=str((output_dir / name).resolve()),  # the program may run elsewhere
                provenance=provenance,
                timeout_seconds=timeout_seconds,
                timeout_flag="--round_timeout_seconds",
            )
            for name, side in ((BASE, base), (CANDIDATE, candidate))
        }

    def pair(self, cell: Cell, number: int, *, in_turn: bool) -> Pair:
        """Runs a cell once on each side, the base first if the number is even. What fails is run again.

        Args:
            cell: what is run.
            number: of the round, from 0.
            in_turn: whether both are started at once, and measure in turn; if one fails, both are run again.

        Raises:
            UsageError: the sides ran on unlike hardware.
        """
        order = (BASE, CANDIDATE) if number % 2 == 0 else (CANDIDATE, BASE)
        pair = _take(self._twice, cell, order, in_turn)
        _refuse_unlike_hardware(pair)
        return pair

    def once(self, cell: Cell, *, in_turn: bool) -> Pair:
        """Runs a cell on each side, whatever comes of it."""
        return _take(self._run, cell, (BASE, CANDIDATE), in_turn)

    def _twice(self, names: Sequence[str], cell: Cell) -> dict[str, Record]:
        ended = self._run(names, cell)
        failed = [name for name in names if rate(ended[name]) is None and ended[name].status is not Status.SKIPPED]
        for name in failed:
            why = why_failed(ended[name])
            self.notes.append(f"{what_is_run(cell)}: a run of the {name} failed, and was run again. {why}")
            warn(self.notes[-1])
        return self._run(names, cell) if failed else ended

    def _run(self, names: Sequence[str], cell: Cell) -> dict[str, Record]:
        """Runs sides, all at once; two measure in turn."""
        runners = [self._runners[name] for name in names]
        records = run_in_turn(runners, cell, self._count) if len(runners) > 1 else [runners[0].run(cell, self._count)]
        self._count += len(runners)
        return dict(zip(names, records, strict=True))


def _take(
    run: Callable[[Sequence[str], Cell], Mapping[str, Record]], cell: Cell, order: tuple[str, str], in_turn: bool
) -> Pair:
    """Runs both sides: started together, or one after the other."""
    if in_turn:
        return Pair(**run(order, cell))
    first, second = order
    return Pair(**run([first], cell), **run([second], cell))


def differences(base: Record, candidate: Record) -> Iterator[str]:
    """Yields in which fields that can move the number the two configurations differ, in words."""
    if base.identity.config_key == candidate.identity.config_key:
        return
    ours, theirs = (_flat(record.config, set(record.config_aside)) for record in (base, candidate))
    for name in dict.fromkeys([*ours, *theirs]):
        if name in ours and name in theirs:
            if ours[name] != theirs[name]:
                yield f"{name} is {ours[name]} for the base and {theirs[name]} for the candidate"
        else:
            value, who = (ours[name], "base") if name in ours else (theirs[name], "candidate")
            yield f"{name} ({value}) is known to the {who} alone"


def _flat(config: object, leave_out: set[str], prefix: str = "") -> dict[str, object]:
    if not isinstance(config, dict):
        return {prefix: config}
    parts = [_flat(value, set(), name) for name, value in config.items() if name not in leave_out]
    return {name: value for part in parts for name, value in part.items()}


def _refuse_unlike_hardware(pair: Pair) -> None:
    if pair.rates is None:
        return
    ours, theirs = hardware(pair.base), hardware(pair.candidate)
    for name in ours:
        recorded = name in pair.base.environment and name in pair.candidate.environment
        if recorded and ours[name] != theirs[name]:
            raise UsageError(
                f"The sides ran on unlike hardware, which cannot be compared: {name} is {ours[name]} for the base and "
                f"{theirs[name]} for the candidate. Let both sides see the same devices and cores."
            )


class TurnTakers:
    """Knows of which cells both sides take turns, once they have been tried out.

    Args:
        wanted: whether there may be any.

    Attributes:
        notes: sentences on those that might, and do not.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.notes: list[str] = []
        self._wanted = wanted
        self._found: set[Cell] = set()

    def try_out(self, cell: Cell, rounds: Rounds) -> None:
        """Runs an uncounted round of a cell; in turn, if that may be, to see whether both sides do so."""
        may = self._wanted and cell.config is not None and time_slices.can_interleave(cell.config)
        pair = rounds.once(cell, in_turn=may)
        if not may or Status.SKIPPED in (pair.base.status, pair.candidate.status):
            return
        sides = (("base", pair.base), ("candidate", pair.candidate))
        if failed := [f"the {who} failed. {why_failed(record)}" for who, record in sides if not rate(record)]:
            self._note(cell, f"started at once, {' '.join(failed)}")
        elif pair.base.in_turn and pair.candidate.in_turn:
            self._found.add(cell)
        else:
            self._note(cell, "a side does not know how to take turns.")

    def take_turns(self, cell: Cell) -> bool:
        """Returns whether both sides of a cell have been seen to take turns."""
        return cell in self._found

    def _note(self, cell: Cell, why: str) -> None:
        self.notes.append(f"{what_is_run(cell)}: whole runs were compared, not steps in turn: {why}")
        warn(self.notes[-1])
