"""A process beside this one that acts if this one is killed, and so cannot act itself. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from benchmarks.errors import UsageError
from benchmarks.machine import linux
from benchmarks.process import out_of_memory, signals

# Variables of a child whose end this process records: it has no sentinel.
RECORDED_BY_PARENT = {"CNN_BENCH_RECORDED_BY_PARENT": "1"}
_LOOK_SECONDS = 1.0
# Limit for what is done about a death, since the sentinel holds our output open. A lock may take a minute of it.
_ACT_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Death:
    """How a process ended that was not dismissed.

    Attributes:
        signal: what has killed it; None if that is not known.
        held_bytes: of memory, with what it had started, in its last seconds.
        limit_bytes: what it could have had.
        out_of_memory: whether the kernel killed it because memory ran out.
    """

    signal: int | None
    held_bytes: int
    limit_bytes: int
    out_of_memory: bool


@contextlib.contextmanager
def unless_dismissed(act: Callable[[Death], object], *, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """Has a forked process call `act` if this one leaves the block, or dies in it, before it dismisses the other.

    A UsageError dismisses it too, and so does a signal that is raised as an exception.

    To be used before this process has threads, and before it imports TensorFlow; else, and where no process can be
    forked, nothing happens. The sentinel has a session of its own, so it survives a signal to this process' group.

    Yields:
        What dismisses the sentinel; any thread may call it, more than once.
    """
    is_early = threading.active_count() == 1 and "tensorflow" not in sys.modules
    is_recorded = RECORDED_BY_PARENT.keys() & os.environ.keys()
    ends = [_fork(act)] if wanted and is_early and not is_recorded else []

    def dismiss() -> None:
        with contextlib.suppress(IndexError, OSError):
            with ends.pop() as end:
                end.write(b".")

    try:
        yield dismiss
    except (UsageError, KeyboardInterrupt):
        dismiss()
        raise
    finally:
        for end in ends:
            end.close()


def _fork(act: Callable[[Death], object]) -> IO[bytes]:
    """Forks the sentinel, detached from this process, and returns a pipe to it; if a fork fails, a pipe to nothing."""
    process, (reader, writer) = os.getpid(), os.pipe()
    with signals.signals_held_back(), contextlib.suppress(OSError):
        child = os.fork()
        if child == 0:
            try:
                signals.ignore()
                os.setsid()
                if os.fork() == 0:
                    _stand_by(reader, process, act)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    os.close(reader)
    return os.fdopen(writer, "wb", buffering=0)


def _stand_by(reader: int, process: int, act: Callable[[Death], object]) -> None:
    """Waits for the end of a process, and acts unless it has dismissed this one."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, reader}:  # such as the pipe's other end
        with contextlib.suppress(OSError):
            os.close(descriptor)
    looks = out_of_memory.Looks(process)
    while not select.select([reader], [], [], _LOOK_SECONDS)[0]:
        looks.look()
    # At once, before its parent asks for it: then the kernel no longer knows the signal.
    words = (linux.text(Path(f"/proc/{process}/stat")) or "0").split()
    number = int(words[-1]) & 0x7F or None
    if os.read(reader, 1):
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends what no exception can: a dead file system
    signal.alarm(_ACT_SECONDS)
    killed_for_memory = looks.was_killed(None if number is None else -number)
    act(Death(number, looks.held_bytes, out_of_memory.limit_bytes(), killed_for_memory))
