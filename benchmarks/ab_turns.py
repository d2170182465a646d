"""Which runs of an A/B comparison measure in turn, both there at once, and which are compared whole. No TensorFlow."""

from __future__ import annotations

from benchmarks.config import Config
from benchmarks.display import warn
from benchmarks.grid import Cell
from benchmarks.sweep_display import what_is_run


class TurnTakers:
    """The cells whose two runs are started at once, to measure in turn.

    Args:
        wanted: whether there may be any.

    Attributes:
        notes: sentences on those that were found not to do so.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.notes: list[str] = []
        self._wanted = wanted
        self._dropped: set[Cell] = set()

    def include(self, cell: Cell) -> bool:
        """Returns whether a cell's runs measure in turn, as far as is known."""
        if not self._wanted or cell.config is None or cell in self._dropped:
            return False
        return _is_still_between_steps(cell.config)

    def drop(self, cell: Cell, why: str) -> None:
        """Has a cell's runs follow each other from now on."""
        self._dropped.add(cell)
        self.notes.append(f"{what_is_run(cell)}: whole runs were compared, not steps in turn: {why}")
        warn(self.notes[-1])


def _is_still_between_steps(config: Config) -> bool:
    """Returns whether a run leaves the machine to others while it waits: its time, its memory, and what it computes.

    A GPU's memory belongs to one run; readers of data, towers and workers that wait for nobody go on meanwhile.
    """
    is_alone = config.cluster is None and config.num_workers == 1 and config.num_ps == 0
    reads = config.input is not None or config.modifiers.asynchronous
    return config.device == "cpu" and is_alone and not reads and config.time_limit_seconds is None
