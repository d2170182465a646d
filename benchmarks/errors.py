"""Errors and their exit statuses. Every message says what was requested, what is wrong, and what to do instead."""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable
from difflib import get_close_matches

from results.record import Status


class ExitStatus(enum.IntEnum):
    """The exit statuses of `run_bench.py`."""

    OK = 0
    REGRESSED = 1
    USAGE = 2
    UNDECIDED = 3
    RUN_FAILED = 4
    DATA = 5
    CLUSTER = 6
    TIMEOUT = 124
    INTERRUPTED = 130
    TERMINATED = 143


class BenchError(Exception):
    """An expected failure: its message is for the user, without a traceback."""

    exit_status = ExitStatus.RUN_FAILED
    record_status = Status.CRASH


class UsageError(BenchError):
    """The command line or the configuration names what does not exist or contradicts itself."""

    exit_status = ExitStatus.USAGE


class DataError(BenchError):
    """The data cannot be used."""

    exit_status = ExitStatus.DATA
    record_status = Status.INVALID


class OutOfMemoryError(BenchError):
    """A device or the host has too little memory for the run."""

    record_status = Status.OUT_OF_MEMORY


class ClusterError(BenchError):
    """Another process of the cluster is missing, has ended, or does not fit."""

    exit_status = ExitStatus.CLUSTER


class OverdueError(BenchError):
    """Something took longer than its limit."""

    exit_status = ExitStatus.TIMEOUT
    record_status = Status.TIMEOUT


class StoppedError(BenchError):
    """Ctrl-C or SIGTERM came while the process could not be interrupted."""

    record_status = Status.INTERRUPTED

    def __init__(self, number: signal.Signals) -> None:
        super().__init__("Interrupted by Ctrl-C." if number is signal.SIGINT else "Ended by SIGTERM.")
        self.exit_status = ExitStatus.INTERRUPTED if number is signal.SIGINT else ExitStatus.TERMINATED


class InvalidRunError(BenchError):
    """The run ended, but its numbers are invalid."""

    record_status = Status.INVALID


class Terminated(BaseException):
    """SIGTERM has come."""


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """Returns ' Did you mean ...?' for the nearest choice, or nothing."""
    near = get_close_matches(value.lower(), list(choices), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


def headline(error: BaseException) -> str:
    """Returns the line of an error's message that names the problem.

    TensorFlow's messages may start with where an operation was made; the error follows after `Node:`. If several
    operations of a step fail, the first line only counts them, and the next is of the first.
    """
    lines = str(getattr(error, "message", error)).strip().splitlines() or [""]
    if lines[0].startswith("Graph execution error"):
        after = [n for n, line in enumerate(lines) if line.startswith("Node: ")]
        lines = lines[after[0] + 1 :] if after and after[0] + 1 < len(lines) else lines
    if lines[0].endswith("root error(s) found.") and len(lines) > 1:
        return lines[1].strip().removeprefix("(0)").strip()
    return lines[0]
