"""Callbacks: what is done between steps, and which steps are taken without being measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.cluster.member import Team
from benchmarks.measure.timing import Phase


class Callback(Protocol):
    """Is called between two steps, such as to save a checkpoint.

    Attributes:
        name: as a noun phrase, such as `a checkpoint`, which no other callback has: workers meet under it.
    """

    name: str

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether it is called after that many steps; `last`: no more follow. All workers must answer alike."""

    def after_step(self, steps: int) -> bool:
        """Is called in the leader's process. Returns whether training has reached its aim."""


class UnmeasuredSteps(Protocol):
    """Takes some steps itself, such as with a profiler: they train, but are not measured."""

    def wants(self, step: int) -> bool:
        """Returns whether it takes this step, counted from 1. All workers must answer alike."""

    def take(self, step: int) -> None:
        """Takes a step of all towers."""

    def after_run(self) -> None:
        """Is called when no more steps follow, perhaps before it has taken all that it wants."""


class Callbacks:
    """Counts the steps of a training, and calls what is due between them. All workers stop for it together.

    Steps are counted from the first of the training, which an earlier run may have begun. Asynchronous towers never
    pause: with them only `after_run` may have something to call.

    Args:
        team: the processes that train together.
        steps: that were taken before this run.
        callbacks: in the order in which they are called.
        unmeasured: may take steps.
        ends_at: the number of steps, unmeasured ones included, at which training ends; None: measured steps decide.

    Attributes:
        is_enough: whether training ends here.
        paused_seconds: that the callbacks and unmeasured steps took so far.
    """

    def __init__(
        self,
        team: Team,
        *,
        steps: int = 0,
        callbacks: Sequence[Callback] = (),
        unmeasured: Sequence[UnmeasuredSteps] = (),
        ends_at: int | None = None,
    ) -> None:
        self._team = team
        self._callbacks, self._unmeasured = callbacks, unmeasured
        self._ends_at = ends_at
        self.steps = steps
        self.is_enough = False
        self.paused_seconds = 0.0

    def after_step(self, _: Phase) -> None:
        """Counts a step, calls what is due, and has the unmeasured steps taken that follow."""
        begin = time.perf_counter()
        self._count()
        while not self.is_enough and (taker := next((u for u in self._unmeasured if u.wants(self.steps + 1)), None)):
            taker.take(self.steps + 1)
            self._count()
        self.paused_seconds += time.perf_counter() - begin

    def after_run(self) -> None:
        """Calls what is due after the last step."""
        for taker in self._unmeasured:
            taker.after_run()
        self._call(last=True)

    def _count(self) -> None:
        self.steps += 1
        self._call(last=False)
        self.is_enough |= self._ends_at is not None and self.steps >= self._ends_at

    def _call(self, *, last: bool) -> None:
        for callback in self._callbacks:
            if not callback.is_due(self.steps, last=last):
                continue
            self._team.deadlines.none()
            reached = callback.after_step(self.steps) if self._team.is_leader else False
            messages: Any = self._team.meet(f"{callback.name} after step {self.steps}", reached, patient=True)
            self.is_enough |= any(messages.values())
