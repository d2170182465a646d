"""Which cells of an A/B comparison have both runs started at once, to measure in turn. No TensorFlow."""

from __future__ import annotations

from benchmarks.ab_rounds import Rounds
from benchmarks.console import warn
from benchmarks.run import time_slices
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.progress import what_is_run
from gate.rounds import rate, why_failed
from results.record import Status


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
        may = self._wanted and cell.config is not None and time_slices.is_still(cell.config)
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
