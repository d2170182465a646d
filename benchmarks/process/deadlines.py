"""Deadlines of a measurement, and its record if it does not end by itself. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from benchmarks.console import progress
from benchmarks.errors import BenchError, UsageError, stopped
from benchmarks.process.signals import signals_ignored
from benchmarks.process.watchdog import Watchdog, watched

# Building a graph may take so many times as long as a step, and so may the first step, which includes its optimisation.
PREPARATION_FACTOR = 3
# Limits of what is not this suite's work: a directory that must answer, whose lock may take a minute, and an import
# from a slow file system.
OPENING_SECONDS = 120.0
IMPORT_SECONDS = 1800.0
# To list a directory or an archive, or to write small images. The work on many files has a limit without progress.
DATA_SET_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Deadlines:
    """Sets the deadline of what comes next, which replaces the last one; none if the watchdog has not been started.

    What is not measured is shown as progress, too, unless they are `silent`: a run's display shows that.
    """

    watchdog: Watchdog = dataclasses.field(default_factory=Watchdog)
    step_timeout_seconds: float = 600.0
    shows_progress: bool = True

    def silent(self) -> Deadlines:
        """Returns the same without progress."""
        return dataclasses.replace(self, shows_progress=False)

    def step(self, what: str, *, repeated_seconds: float = 0.0) -> None:
        """Expects a step, or steps that are repeated for some seconds."""
        if self.shows_progress:
            progress.measure()
        self.watchdog.expect(what, self.step_timeout_seconds + repeated_seconds)

    def preparation(self, what: str) -> None:
        """Expects what may take as long as building a graph or a first step: three times as long as a step."""
        self.within(PREPARATION_FACTOR * self.step_timeout_seconds, what)

    def opening(self, what: str) -> None:
        """Expects a file system or a driver to answer."""
        self.within(OPENING_SECONDS, what)

    def data_set(self, what: str) -> None:
        """Expects work on a data set as a whole."""
        self.within(DATA_SET_SECONDS, what)

    def importing(self) -> None:
        """Expects the import of TensorFlow."""
        self.within(IMPORT_SECONDS, "Importing TensorFlow")

    def within(self, seconds: float, what: str) -> None:
        """Expects what has a limit of its own."""
        if self.shows_progress:
            progress.begin(what)
        self.watchdog.expect(what, seconds)

    def none(self) -> None:
        """Removes the deadline."""
        if self.shows_progress:
            progress.end()
        self.watchdog.expect_nothing()


NO_DEADLINES = Deadlines()


@contextlib.contextmanager
def recorded(step_timeout_seconds: float, save: Callable[[BenchError], object]) -> Iterator[Deadlines]:
    """Watches a measurement. If it fails, hangs or is stopped, `save` saves a record with the error."""
    try:
        with watched(save) as watchdog:
            yield Deadlines(watchdog, step_timeout_seconds)
    except UsageError:  # nothing was measured
        raise
    except BenchError as error:
        save(error)
        raise
    except KeyboardInterrupt as error:
        with signals_ignored():
            save(stopped(error))
        raise
