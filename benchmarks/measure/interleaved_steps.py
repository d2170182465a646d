"""Interleaves the steps of two runs in short time slices, so that both run under the same load.

The process that starts the runs gives each one end of a pair of sockets, and names it in an environment variable. So
any command may start a run, and versions without interleaving ignore it. Each side takes its slice, then passes on; a
side that has ended, or ignores the socket, leaves the other alone. A side that is only silent, since its process is
stopped for example, ends the other after a time. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator

from benchmarks.console import in_words, warn
from benchmarks.errors import OverdueError
from benchmarks.process.deadlines import NO_DEADLINES, PREPARATION_FACTOR, Deadlines
from results.record import STEPS_PER_SLICE

_VARIABLE = "CNN_BENCH_TIME_SLICES"
_FIRST = "first"
_SECONDS_PER_SLICE = 0.25
# Runs with few steps alternate this often nevertheless.
_FEWEST_SLICES = 10
_GO, _FINISHED = b".", b"!"
# The other run gets --step_timeout_seconds for a slice, and for its start as much as building a graph; but at least:
_LEAST_START_SECONDS, _LEAST_SLICE_SECONDS = 900.0, 60.0
_WAITED_IN_VAIN = "The other run of this pair has not taken its time slice for "


@dataclasses.dataclass(frozen=True)
class RunSocket:
    """One run's end of the connection. The run must inherit the socket, under its number, and the variables."""

    socket: socket.socket
    begins: bool

    def variables(self) -> dict[str, str]:
        """Returns the environment variables that name the socket to the run."""
        number = self.socket.fileno()
        return {_VARIABLE: f"{number}:{os.fstat(number).st_ino}:{_FIRST if self.begins else 'second'}"}


def pair() -> tuple[RunSocket, RunSocket]:
    """Returns both ends: that of the run with the first time slice, and the other's."""
    first, second = socket.socketpair()
    return RunSocket(first, begins=True), RunSocket(second, begins=False)


def environment(steps_per_slice: int | None) -> dict[str, int]:
    """Returns what marks the record of an interleaved run."""
    return {} if steps_per_slice is None else {STEPS_PER_SLICE: steps_per_slice}


def waited_in_vain(said: str) -> bool:
    """Returns whether a run ended because the other one was silent, from its output or its reason."""
    return _WAITED_IN_VAIN in said


def inherited() -> tuple[int, bool] | None:
    """Returns the number of the socket, and whether the first time slice is ours; None without one.

    The command that started this run may have closed the socket, and a process that this run starts does not inherit
    it. The number may then belong to another file, which has another inode.
    """
    number, _, rest = os.environ.get(_VARIABLE, "").partition(":")
    inode, _, order = rest.partition(":")
    try:
        status = os.fstat(int(number))
        is_ours = stat.S_ISSOCK(status.st_mode) and status.st_ino == int(inode)
    except (ValueError, OSError):
        return None
    return (int(number), order == _FIRST) if is_ours else None


class TimeSlices:
    """One run's side, connected to the other run's; `begins` is that with the first time slice.

    Each method raises OverdueError if the other run is silent for too long. While it waits there is no other deadline.

    Attributes:
        steps_per_slice: steps of a slice, equal on both sides; None before `begin`, and if the other never came.
    """

    def __init__(self, connection: socket.socket, *, begins: bool, deadlines: Deadlines = NO_DEADLINES) -> None:
        self.steps_per_slice: int | None = None
        self._lines = connection.makefile("rb")
        self._connection = connection
        self._deadlines = deadlines
        self._is_alone = False
        self._begins = begins
        self._steps = 0

    def begin(self, steps: int, step_seconds: float) -> None:
        """Waits for the other run, and for the first of the slices of this one's `steps`, each of about so long."""
        self._deadlines.none()
        self._send(json.dumps([steps, step_seconds]).encode() + b"\n")
        limit = max(_LEAST_START_SECONDS, PREPARATION_FACTOR * self._deadlines.step_timeout_seconds)
        warn(f"Waiting for the other run of this pair to be ready, for at most {in_words(limit)}.")
        self._wait_at_most(limit)
        line = self._heard(self._lines.readline)
        if not line.endswith(b"\n"):  # the other has ended without beginning
            self.leave()
            return
        other_steps, other_seconds = json.loads(line)
        of_time = _SECONDS_PER_SLICE / max(step_seconds, other_seconds)
        self.steps_per_slice = max(1, int(min(of_time, steps / _FEWEST_SLICES, other_steps / _FEWEST_SLICES)))
        self._wait_at_most(max(_LEAST_SLICE_SECONDS, self._deadlines.step_timeout_seconds))
        if not self._begins:
            self._await_slice()

    def after_step(self) -> None:
        """At the end of a slice, passes on and waits for the next one."""
        self._deadlines.none()
        self._steps += 1
        if self.steps_per_slice and self._steps % self.steps_per_slice == 0:
            self._pass_on()

    def finish(self) -> None:
        """Waits, after all steps, until the other's are done too: what follows would disturb them."""
        if self.steps_per_slice and self._steps % self.steps_per_slice:
            self._pass_on()
        self._send(_FINISHED)
        while not self._is_alone:
            self._await_slice()
        self.leave()

    def leave(self) -> None:
        """Disconnects: the other continues alone."""
        self._is_alone = True
        self._lines.close()
        self._connection.close()

    def _pass_on(self) -> None:
        self._send(_GO)
        self._await_slice()

    def _await_slice(self) -> None:
        if not self._is_alone:
            self._is_alone = self._heard(lambda: self._lines.read(len(_GO))) != _GO  # it has finished, or is gone

    def _wait_at_most(self, seconds: float) -> None:
        with contextlib.suppress(OSError):  # the socket is closed: there is nothing to wait for
            self._connection.settimeout(seconds)

    def _heard(self, read: Callable[[], bytes]) -> bytes:
        """Returns what the other run sends; nothing if it is gone."""
        try:
            return read()
        except TimeoutError as error:
            seconds = self._connection.gettimeout()
            raise OverdueError(f"{_WAITED_IN_VAIN}{seconds:g} s (its process may be stopped).") from error
        except OSError:
            return b""

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the other is gone, or this one has left
            self._connection.sendall(message)


@contextlib.contextmanager
def taken(possible: bool, deadlines: Deadlines) -> Iterator[TimeSlices | None]:
    """Yields this run's side while it measures; None if it was started alone, or interleaving is not `possible`."""
    found = inherited()
    if found is None:
        yield None
        return
    number, begins = found
    connection = socket.socket(fileno=number)
    connection.set_inheritable(False)
    own = TimeSlices(connection, begins=begins, deadlines=deadlines)
    try:
        if not possible:
            own.leave()
        yield own if possible else None
    finally:
        own.leave()
