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
from collections.abc import Callable, Iterator

from results.record import Record

_VARIABLE = "CNN_BENCH_TURNS"
_FIRST = "first"
FIELD = "steps_per_turn"
_SECONDS_PER_TURN = 0.25
# A run of few steps changes hands so often nevertheless.
_FEWEST_TURNS = 10
_GO = b"."


@dataclasses.dataclass(frozen=True)
class End:
    """What one of two runs is given: it must inherit the socket, under its number, and the variables."""

    socket: socket.socket
    begins: bool

    def variables(self) -> dict[str, str]:
        """Returns what the environment says to the run."""
        return {_VARIABLE: f"{self.socket.fileno()}:{_FIRST if self.begins else 'second'}"}


def pair() -> tuple[End, End]:
    """Returns both ends: that of the run which has the first turn, and the other's."""
    first, second = socket.socketpair()
    return End(first, begins=True), End(second, begins=False)


def were_taken(record: Record) -> bool:
    """Returns whether a run measured in turn with another."""
    return FIELD in record.environment


def environment(steps_per_turn: int | None) -> dict[str, int]:
    """Returns what tells the record of such a run from that of one on its own."""
    return {} if steps_per_turn is None else {FIELD: steps_per_turn}


def are_asked_for() -> bool:
    """Returns whether this run is to measure in turn with another."""
    return _VARIABLE in os.environ


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
        self._connection: socket.socket | None = connection
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
        """Waits, when all steps are taken, for the other's last turn: what comes now would disturb it."""
        if self.steps_per_turn and self._steps % self.steps_per_turn:
            self._pass_on()
        self.leave()

    def leave(self) -> None:
        """Leaves the other alone from now on."""
        if self._connection is not None:
            self._lines.close()
            self._connection.close()
            self._connection = None

    def _pass_on(self) -> None:
        self._say(_GO)
        self._await_turn()

    def _await_turn(self) -> None:
        self._hear(lambda: self._lines.read(len(_GO)))

    def _say(self, message: bytes) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the other is gone
                self._connection.sendall(message)

    def _hear(self, read: Callable[[], bytes]) -> bytes:
        if self._connection is None:
            return b""
        try:
            return read()
        except OSError:
            return b""


@contextlib.contextmanager
def taken() -> Iterator[Turns | None]:
    """Yields this run's part while it measures; None if it was started on its own."""
    descriptor, _, place = os.environ.get(_VARIABLE, "").partition(":")
    try:
        connection = socket.socket(fileno=int(descriptor))
    except (ValueError, OSError):  # not asked for, or what started this run has not handed it on
        yield None
        return
    turns = Turns(connection, begins=place == _FIRST)
    try:
        yield turns
    finally:
        turns.leave()
