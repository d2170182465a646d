"""Checkpoints that are saved between steps, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.console import warn
from benchmarks.errors import UnsavedError


class Saving:
    """The interlude that saves checkpoints. Training goes on if one cannot be saved.

    Args:
        save: saves one after a number of steps.
        steps_before: of the training, which an earlier run has saved.
        every_steps: a checkpoint follows every so many steps; 0: only the last does.
        every_seconds: and so many seconds after the one before; 0: none does. Only in a process that decides alone.
        clock: in seconds.
    """

    name = "a checkpoint"

    def __init__(
        self,
        save: Callable[[int], object],
        *,
        steps_before: int = 0,
        every_steps: int = 0,
        every_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._save, self._saved = save, steps_before
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._clock, self._at = clock, clock()
        self.problem: UnsavedError | None = None

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether a checkpoint follows, which this process counts as saved."""
        now = self._clock()
        by_steps = bool(self._every_steps) and steps % self._every_steps == 0
        by_time = bool(self._every_seconds) and now - self._at >= self._every_seconds
        if steps == self._saved or not (last or by_steps or by_time):
            return False
        self._saved, self._at = steps, now
        return True

    def do(self, steps: int) -> bool:
        """Saves a checkpoint. `problem` is why the last one could not be saved."""
        try:
            self._save(steps)
            self.problem = None
        except UnsavedError as error:
            warn(str(error))
            self.problem = error
        return False
