"""The processes that train together, as one of them sees it; here, the one that is alone. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.errors import BenchError
from benchmarks.process.watchdog import Watchdog


class Team(Protocol):
    """What a run asks of the others. Nothing of it is timed.

    Attributes:
        target: which session to open; empty for one in this process.
        device: where everything is that the graph does not place elsewhere; empty for this process.
        is_leader: whether this process initialises what is shared, and reports for all.
        collective_key: equal in all processes whose collectives meet; 0 if none do.
    """

    target: str
    device: str
    is_leader: bool
    collective_key: int

    def configure(self, session_config: Any) -> None:
        """Adds to the session's configuration what the team needs."""

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        """Waits until all that train have come here; returns everyone's message by the name of the task.

        `patient` where they may come late, since each has its own work before it, and its own deadlines.
        """

    def expect(self, what: str, within_seconds: float) -> None:
        """Says what must be over soon, or the process is ended."""

    def expect_nothing(self) -> None:
        """What was expected has come."""

    def explain(self, error: Exception) -> BenchError | None:
        """Returns why the team brought this error about, if it did."""


class Alone:
    """The team of a single process."""

    target = device = ""
    is_leader = True
    collective_key = 0

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._watchdog = watchdog

    def configure(self, session_config: Any) -> None:
        """Adds nothing."""

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        """Returns the own message at once."""
        return {"": message}

    def expect(self, what: str, within_seconds: float) -> None:
        """Tells the watchdog."""
        if self._watchdog:
            self._watchdog.expect(what, within_seconds)

    def expect_nothing(self) -> None:
        """Tells the watchdog."""
        if self._watchdog:
            self._watchdog.expect_nothing()

    def explain(self, error: Exception) -> BenchError | None:
        """Returns None: there is nobody else."""
        self.expect_nothing()  # what is to be found out about the error takes its time
        return None
