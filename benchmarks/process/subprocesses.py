"""Runs commands as processes of their own, with a deadline, so that what happens to them does not happen to us."""

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

# What a process gets to write down its threads' stacks, and to end in order, before it is killed.
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
        timed_out: whether its time was up, and it was killed for that.
        out_of_memory: whether the kernel has meanwhile killed a process of this container for want of memory.
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
        stdout: receives the one.
        stderr: receives the other.
        first_to_be_killed: whether the kernel shall kill it before any other if the host's memory does not suffice;
            else it is as likely to be killed as this process.
        variables: of the environment, beside those of this process.
        hands_over: these sockets are inherited under their numbers, and no longer this process' own.
    """

    words: Sequence[str]
    stdout: IO[bytes]
    stderr: IO[bytes]
    first_to_be_killed: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hands_over: Sequence[socket.socket] = ()


def run(*commands: Command, timeout_seconds: float | None) -> list[Ended]:
    """Runs commands, all at once, to their ends; their output goes to files.

    The processes die with us. One that takes too long is told to write down the stacks of its threads (SIGUSR1, see
    `run_bench.py`) and killed, with all that it has started. If we are interrupted or terminated, they are told so, and
    given time to end in order.

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
                processes.append(_start(command))
        late = _run_to_the_end(processes, math.inf if timeout_seconds is None else begin + timeout_seconds)
        _end(late, signal.SIGUSR1, _STACKS_SECONDS)
    except BaseException as error:
        try:
            interrupted = isinstance(error, KeyboardInterrupt)
            _end(processes, signal.SIGINT if interrupted else signal.SIGTERM, _GRACE_SECONDS)
        finally:  # whenever somebody is impatient
            for process in processes:
                kill_group(process)
        raise
    without_memory, seconds = _out_of_memory_kills() > kills, time.monotonic() - begin
    return [
        Ended(-signal.SIGKILL if p.returncode is None else p.returncode, p in late, without_memory, seconds)
        for p in processes
    ]


def _start(command: Command) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.words,
            stdin=subprocess.DEVNULL,
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


def _run_to_the_end(processes: Sequence[subprocess.Popen[bytes]], until: float) -> list[subprocess.Popen[bytes]]:
    """Waits for processes, and returns those that have not ended by then."""
    running = list(processes)
    while running and (seconds := until - time.monotonic()) > 0:
        _wait(running[:1], min(seconds, _LOOK_SECONDS))
        for process in [process for process in running if process.poll() is not None]:
            kill_group(process)  # whatever it has started and left behind, which another may wait for
            running.remove(process)
    return running


def _end(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals, grace_seconds: float) -> None:
    """Sends a signal, waits, and kills what is left. A signal cuts the waiting short, and is raised in the end."""
    try:
        for process in processes:
            process.send_signal(number)
        _wait(processes, grace_seconds)
    finally:
        for process in processes:
            kill_group(process)
        for process in _wait(processes, _GRACE_SECONDS):
            warn(f"Process {process.pid} does not end even when killed: a driver may hang. It is left behind.")


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[subprocess.Popen[bytes]]:
    """Waits so long for all together, and returns those that have not ended."""
    until = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    return [process for process in processes if process.returncode is None]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that was started in a session of its own, and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def die_with_parent(parent: int) -> None:
    """Is called in a new process, so that it does not outlive the one that has started it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was dead before
        os.kill(os.getpid(), signal.SIGKILL)


def _give_way(parent: int) -> None:
    """Is called in a new process: it dies with its parent, and before any other if the host's memory is too small."""
    die_with_parent(parent)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        pass


def _out_of_memory_kills() -> int:
    """Returns how many processes of this container the kernel has killed for want of memory; 0 if it does not say."""
    try:
        events = Path("/sys/fs/cgroup/memory.events").read_text(encoding="ascii").split()
        return int(dict(zip(events[::2], events[1::2], strict=True))["oom_kill"])
    except (OSError, KeyError, ValueError):
        return 0
