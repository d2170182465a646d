"""Starts, supervises and ends processes, with a deadline, so that what happens to them does not happen to this one."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.console import warn
from benchmarks.process.signals import signals_held_back

# What a process gets to write its threads' stacks, and to end in order, before it is killed.
_STACKS_SECONDS = 2.0
_GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1
# The program itself, to be started anew.
RUN_BENCH = Path(__file__).resolve().parents[2] / "run_bench.py"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        returncode: its exit status; negative for a signal.
        timed_out: whether it was killed because its time was up.
        out_of_memory: whether the kernel has meanwhile killed a process of this container because memory ran out.
        seconds: from the start of the first to the end of all.
    """

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """What is started.

    Attributes:
        words: program and arguments.
        stdout: file for its output; None is our own output.
        stderr: file for its errors; None is our own.
        stdin: `DEVNULL`; or `PIPE`: left open and empty, so that it closes when this process has ended.
        first_to_be_killed: whether the kernel kills it before any other if the host's memory does not suffice; else it
            is as likely to be killed as this process.
        variables: of the environment, beside those of this process.
        hands_over: sockets that it inherits under their numbers, and that are closed here.
    """

    words: Sequence[str]
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    stdin: int = subprocess.DEVNULL
    first_to_be_killed: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hands_over: Sequence[socket.socket] = ()


def run(*commands: Command, timeout_seconds: float | None) -> list[Ended]:
    """Runs commands, all at once, to their ends; their output goes to files.

    The processes die with this one. One that takes too long gets SIGUSR1, at which it writes the stacks of its threads
    (see `run_bench.py`), and is killed with all that it has started. If this process is interrupted or terminated, they
    get the same signal, and time to end in order.

    Args:
        commands: what to run.
        timeout_seconds: of all together; None for no limit.

    Raises:
        KeyboardInterrupt, Terminated: as they came; the processes have ended.
    """
    begin, kills = time.monotonic(), _out_of_memory_kills()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with signals_held_back():
                processes.append(start(command))
        late = _run_to_the_end(processes, math.inf if timeout_seconds is None else begin + timeout_seconds)
        _end(late, signal.SIGUSR1, _STACKS_SECONDS)
    except BaseException as error:
        try:
            interrupted = isinstance(error, KeyboardInterrupt)
            _end(processes, signal.SIGINT if interrupted else signal.SIGTERM, _GRACE_SECONDS)
        finally:  # also at a second signal
            for process in processes:
                _kill_group(process)
        raise
    without_memory, seconds = _out_of_memory_kills() > kills, time.monotonic() - begin
    return [
        Ended(-signal.SIGKILL if p.returncode is None else p.returncode, p in late, without_memory, seconds)
        for p in processes
    ]


def start(command: Command) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, which dies with this process. To be called with signals held back."""
    try:
        return subprocess.Popen(
            command.words,
            stdin=command.stdin,
            stdout=command.stdout,
            stderr=command.stderr,
            env={**os.environ, **command.variables},
            pass_fds=[end.fileno() for end in command.hands_over],
            start_new_session=True,
            preexec_fn=functools.partial(_give_way if command.first_to_be_killed else die_with_parent, os.getpid()),
        )
    finally:
        for end in command.hands_over:
            end.close()


def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills processes with all that they have started, and waits until they are gone."""
    for process in processes:
        _kill_group(process)
    for process in _wait(processes, _GRACE_SECONDS):
        warn(f"Process {process.pid} does not end even when killed: a driver may hang. It is left behind.")


def _run_to_the_end(processes: Sequence[subprocess.Popen[bytes]], until: float) -> list[subprocess.Popen[bytes]]:
    """Waits for processes, and returns those that have not ended by then."""
    running = list(processes)
    while running and (seconds := until - time.monotonic()) > 0:
        _wait(running[:1], min(seconds, _LOOK_SECONDS))
        for process in [process for process in running if process.poll() is not None]:
            _kill_group(process)  # what it has started and left behind, which another may wait for
            running.remove(process)
    return running


def _end(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals, grace_seconds: float) -> None:
    """Sends a signal, waits, and kills what is left. A signal to this process ends the wait and is raised then."""
    try:
        for process in processes:
            process.send_signal(number)
        _wait(processes, grace_seconds)
    finally:
        kill(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Waits so long for all together, and returns those that have not ended."""
    until = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    return [process for process in processes if process.returncode is None]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def die_with_parent(parent: int) -> None:
    """Makes this new process die when the one that has started it dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was dead before
        os.kill(os.getpid(), signal.SIGKILL)


def _give_way(parent: int) -> None:
    """Makes this new process die with its parent, and before any other if the host's memory is too small."""
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _out_of_memory_kills() -> int:
    """Returns how many processes of this container the kernel has killed because memory ran out; 0 if not known."""
    try:
        events = Path("/sys/fs/cgroup/memory.events").read_text(encoding="ascii").split()
        return int(dict(zip(events[::2], events[1::2], strict=True))["oom_kill"])
    except (OSError, KeyError, ValueError):
        return 0
