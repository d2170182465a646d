"""Two runs that are there at once and measure in turn, a few steps each, so that both see the machine in the same mood.

Who shares a machine gets more of it in one second than in the next. Whole runs that follow each other are then compared
under unlike conditions; of steps that alternate several times a second, either side gets its share of each.

Whoever starts the runs gives each one end of a pair of sockets, and names it in an environment variable, so that it is
handed on by whatever words start the run, and older versions do without. A side has the turn until it has said so; one
that is gone, or never knew of turns, leaves the other alone. No TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import stat
from collections.abc import Callable, Iterator

from benchmarks.config.config import Config
from results.record import STEPS_PER_TURN

_VARIABLE = "CNN_BENCH_TURNS"
_FIRST = "first"
_SECONDS_PER_TURN = 0.25
# A run of few steps changes hands so often nevertheless.
_FEWEST_TURNS = 10
_GO, _FINISHED = b".", b"!"


@dataclasses.dataclass(frozen=True)
class End:
    """What one of two runs is given: it must inherit the socket, under its number, and the variables."""

    socket: socket.socket
    begins: bool

    def variables(self) -> dict[str, str]:
        """Returns what the environment says to the run."""
        number = self.socket.fileno()
        return {_VARIABLE: f"{number}:{os.fstat(number).st_ino}:{_FIRST if self.begins else 'second'}"}


def pair() -> tuple[End, End]:
    """Returns both ends: that of the run which has the first turn, and the other's."""
    first, second = socket.socketpair()
    return End(first, begins=True), End(second, begins=False)


def is_still(config: Config) -> bool:
    """Returns whether a run does nothing between its steps, so that it can wait beside another one.

    A GPU's memory belongs to one process; readers of images, and towers and workers that wait for nobody, go on.
    """
    is_alone = config.cluster is None and config.num_workers == 1 and config.num_ps == 0
    goes_on = config.input is not None or config.modifiers.asynchronous
    return config.device == "cpu" and is_alone and not goes_on and config.time_limit_seconds is None


def environment(steps_per_turn: int | None) -> dict[str, int]:
    """Returns what tells the record of such a run from that of one on its own."""
    return {} if steps_per_turn is None else {STEPS_PER_TURN: steps_per_turn}


def are_taken(config: Config) -> bool:
    """Returns whether this run is to measure in turn with another, and can."""
    return _asked() is not None and is_still(config)


def _asked() -> tuple[int, bool] | None:
    """Returns the number of the socket, and whether the first turn is ours; None without one.

    Whatever starts this run may not have handed the socket on, and a process that this run starts has not inherited it:
    its number may stand for something else there, whose inode is another.
    """
    number, _, rest = os.environ.get(_VARIABLE, "").partition(":")
    inode, _, place = rest.partition(":")
    try:
        what = os.fstat(int(number))
        is_ours = stat.S_ISSOCK(what.st_mode) and what.st_ino == int(inode)
    except (ValueError, OSError):
        return None
    return (int(number), place == _FIRST) if is_ours else None


class Turns:
    """One run's part of it.

    Args:
        connection: leads to the other run.
        begins: whether this run has the first turn.

    Attributes:
        steps_per_turn: equal on both sides; None until they have met, and if the other has never come.
    """

    def __init__(self, connection: socket.socket, *, begins: bool) -> None:
        self.steps_per_turn: int | None = None
        self._lines = connection.makefile("rb")
        self._connection = connection
        self._is_alone = False
        self._begins = begins
        self._steps = 0

    def begin(self, steps: int, step_seconds: float) -> None:
        """Waits for the other run, and for the first turn.

        Args:
            steps: that this run is going to measure.
            step_seconds: about what one takes.
        """
        self._say(json.dumps([steps, step_seconds]).encode() + b"\n")
        line = self._hear(self._lines.readline)
        if not line.endswith(b"\n"):  # the other has ended, and has not come
            self.leave()
            return
        other_steps, other_seconds = json.loads(line)
        per_turn = _SECONDS_PER_TURN / max(step_seconds, other_seconds)
        self.steps_per_turn = max(1, int(min(per_turn, steps / _FEWEST_TURNS, other_steps / _FEWEST_TURNS)))
        if not self._begins:
            self._await_turn()

    def after_step(self) -> None:
        """Gives the turn away if this was its last step, and waits to have it again."""
        self._steps += 1
        if self.steps_per_turn and self._steps % self.steps_per_turn == 0:
            self._pass_on()

    def finish(self) -> None:
        """Waits, when all steps are taken, until the other's are, too: what comes now would disturb it."""
        if self.steps_per_turn and self._steps % self.steps_per_turn:
            self._pass_on()
        self._say(_FINISHED)
        while not self._is_alone:
            self._await_turn()
        self.leave()

    def leave(self) -> None:
        """Leaves the other alone from now on."""
        self._is_alone = True
        self._lines.close()
        self._connection.close()

    def _pass_on(self) -> None:
        self._say(_GO)
        self._await_turn()

    def _await_turn(self) -> None:
        if self._hear(lambda: self._lines.read(len(_GO))) != _GO:
            self._is_alone = True  # the other has finished, or is gone

    def _say(self, message: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the other is gone, or this one has left
            self._connection.sendall(message)

    def _hear(self, read: Callable[[], bytes]) -> bytes:
        if self._is_alone:
            return b""
        try:
            return read()
        except OSError:
            return b""


@contextlib.contextmanager
def taken(config: Config) -> Iterator[Turns | None]:
    """Yields this run's part while it measures; None if it was started on its own, or cannot wait beside another."""
    if (asked := _asked()) is None:
        yield None
        return
    number, begins = asked
    connection = socket.socket(fileno=number)
    connection.set_inheritable(False)
    turns = Turns(connection, begins=begins)
    if not is_still(config):
        turns.leave()
        yield None
        return
    try:
        yield turns
    finally:
        turns.leave()
