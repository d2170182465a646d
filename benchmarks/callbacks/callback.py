"""What is done between steps, and which steps are taken without being measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.cluster.member import Team
from benchmarks.measure.timing import Phase


class Interlude(Protocol):
    """Something that is done between two steps: a checkpoint is saved, the weights are evaluated.

    Attributes:
        name: as a noun phrase, such as `a checkpoint`.
    """

    name: str

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether it is done after that many steps; `last`: no more follow."""

    def do(self, steps: int) -> bool:
        """Does it after that many steps, in the leader's process. Returns whether training has reached its aim."""


class Aside(Protocol):
    """Takes some steps in a way of its own, such as with a profiler: they train, but are not measured."""

    def wants(self, step: int) -> bool:
        """Returns whether it takes this step, counted from 1. All workers must give the same answer."""

    def take(self, step: int) -> None:
        """Takes a step of all towers."""


class Agenda:
    """Counts the steps of a training, and does between them what is due. All workers stop for it together.

    Steps are counted from the first of the training, which an earlier run may have begun. Not for asynchronous towers,
    which never pause: for those only `end` may have something to do. `paused_seconds` is what all that took so far.

    Args:
        team: the processes that train together.
        steps: that were taken before this run.
        interludes: in the order in which they are done.
        asides: may take steps.
        ends_at: the number of steps, those of asides included, at which training ends; None: measured steps decide.
    """

    def __init__(
        self,
        team: Team,
        *,
        steps: int = 0,
        interludes: Sequence[Interlude] = (),
        asides: Sequence[Aside] = (),
        ends_at: int | None = None,
    ) -> None:
        self._team = team
        self._interludes, self._asides = interludes, asides
        self._ends_at = ends_at
        self.steps = steps
        self.is_enough = False
        self.paused_seconds = 0.0

    def after_step(self, _: Phase) -> None:
        """Counts a step, and does what is due. To be called after every step."""
        begin = time.perf_counter()
        self._count()
        while not self.is_enough and (aside := next((a for a in self._asides if a.wants(self.steps + 1)), None)):
            aside.take(self.steps + 1)
            self._count()
        self.paused_seconds += time.perf_counter() - begin

    def end(self) -> None:
        """Does what is due after the last step."""
        self._do(last=True)

    def _count(self) -> None:
        self.steps += 1
        self._do(last=False)
        self.is_enough |= self._ends_at is not None and self.steps >= self._ends_at

    def _do(self, *, last: bool) -> None:
        for interlude in self._interludes:
            if not interlude.is_due(self.steps, last=last):
                continue
            self._team.expect_nothing()
            reached = interlude.do(self.steps) if self._team.is_leader else False
            messages: Any = self._team.meet(f"{interlude.name} after step {self.steps}", reached, patient=True)
            self.is_enough |= any(messages.values())
