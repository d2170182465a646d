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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.console import progress, warn
from benchmarks.process import out_of_memory, silence
from benchmarks.process.signals import signals_held_back

# What a process gets to write its threads' stacks, and to end in order, before it is killed.
_STACKS_SECONDS = 2.0
_GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1
# A run prints one record: ten million steps are 200 MB. A process that writes more into a file is killed.
MOST_OUTPUT_BYTES = 2**28
# An end of file means that the process which could have written a line is dead.
_WHEN_DEAD = 'trap "" HUP INT TERM; read _ || {{ {}; }}'
_KILL_GROUPS = 'kill -s KILL -- "$@"'
# The program itself, to be started anew.
RUN_BENCH = Path(__file__).resolve().parents[2] / "run_bench.py"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        returncode: its exit status; negative for a signal.
        timed_out: whether it was killed because its time was up.
        out_of_memory: whether the kernel killed it because memory ran out.
        seconds: from the start of the first to the end of all.
        wrote_too_much: whether it was killed because its output filled the disk.
        was_silent: whether it was killed because it did nothing while another one waited for it.
    """

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float
    wrote_too_much: bool = False
    was_silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """What is started.

    Attributes:
        words: program and arguments.
        stdout: file for its output; None is our own output.
        stderr: file for its errors; None is our own.
        stdin: `DEVNULL`; the descriptor of a file that it reads; or `PIPE`: left open and empty, so that it closes when
            this process has ended.
        first_to_be_killed: whether the kernel kills it before any other if the host's memory does not suffice; else it
            is as likely to be killed as this process.
        variables: of the environment, beside those of this process.
        hands_over: sockets that it inherits under their numbers, and that are closed here.
        ends_all: asked once it has ended: whether those that still run beside it are killed, as if their time were up.
        waits: asked while it runs: whether it has begun to wait for those beside it. One that has not, and neither
            computes nor writes for `silence.SILENT_SECONDS` while another one waits, is killed.
    """

    words: Sequence[str]
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    stdin: int = subprocess.DEVNULL
    first_to_be_killed: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hands_over: Sequence[socket.socket] = ()
    ends_all: Callable[[], bool] = lambda: False
    waits: Callable[[], bool] = lambda: False


def supervise(*commands: Command, timeout_seconds: float | None) -> list[Ended]:
    """Runs commands, all at once, to their ends; their output goes to files.

    The processes die with this one, and so does what they have started. One that takes too long gets SIGUSR1, at which
    it writes the stacks of its threads (see `run_bench.py`), and is killed with all that it has started, as is one that
    writes more than `MOST_OUTPUT_BYTES`. If this process is interrupted or terminated, they get the same signal, and
    time to end in order.

    Args:
        commands: what to run.
        timeout_seconds: of all together; None for no limit.

    Raises:
        KeyboardInterrupt, Terminated: as they came; the processes have ended.
        OSError: one cannot be started; the others have ended.
    """
    begin = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        try:
            for command in commands:
                with signals_held_back():
                    processes.append(start(command))
            stack.enter_context(if_killed(_KILL_GROUPS, *(f"-{process.pid}" for process in processes)))
            running = dict(zip(processes, commands, strict=True))
            until = math.inf if timeout_seconds is None else begin + timeout_seconds
            excessive, starved, silent = _run_to_the_end(running, until)
            late = list(running)
            _end(late, signal.SIGUSR1, _STACKS_SECONDS)
        except BaseException as error:
            try:
                interrupted = isinstance(error, KeyboardInterrupt)
                _end(processes, signal.SIGINT if interrupted else signal.SIGTERM, _GRACE_SECONDS)
            finally:  # also at a second signal
                for process in processes:
                    _kill_group(process)
            raise
    seconds = time.monotonic() - begin
    return [
        Ended(
            returncode=-signal.SIGKILL if process.returncode is None else process.returncode,
            timed_out=process in late,
            out_of_memory=process in starved,
            seconds=seconds,
            wrote_too_much=process in excessive,
            was_silent=process in silent,
        )
        for process in processes
    ]


@contextlib.contextmanager
def if_killed(script: str, *words: str) -> Iterator[None]:
    """Has a shell run a script, with words as its arguments, if this process is killed before the end of the block.

    Where no process can be started, nothing happens.
    """
    shell: subprocess.Popen[bytes] | None = None
    try:
        with contextlib.suppress(OSError), signals_held_back():
            shell = subprocess.Popen(
                ["/bin/sh", "-c", _WHEN_DEAD.format(script), "sh", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        yield
    finally:
        if shell:
            with signals_held_back():
                shell.communicate(b"\n")


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
            preexec_fn=functools.partial(give_way if command.first_to_be_killed else die_with_parent, os.getpid()),
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


def _run_to_the_end(
    running: dict[subprocess.Popen[bytes], Command], until: float
) -> tuple[list[subprocess.Popen[bytes]], list[subprocess.Popen[bytes]], list[subprocess.Popen[bytes]]]:
    """Waits for processes, and leaves in `running` those that have not ended by then, or when one has ended all.

    Returns:
        Those that were killed because they wrote too much, those that the kernel killed because memory ran out, and
        those that were killed because they did nothing while another one waited.
    """
    excessive, starved, silent = [], [], []
    looks = {process: out_of_memory.Looks(process.pid) for process in running}
    quiet = {
        process: silence.Silence(process.pid, functools.partial(_written_bytes, command))
        for process, command in running.items()
        if len(running) > 1
    }
    while running and (seconds := until - time.monotonic()) > 0:
        _wait(list(running)[:1], min(seconds, _LOOK_SECONDS))
        progress.look()
        if late := _silent_ones({process: quiet[process] for process in running if process in quiet}, running):
            silent += late
            _end(late, signal.SIGUSR1, _STACKS_SECONDS)
        for process, command in list(running.items()):
            if process.poll() is None and _written_bytes(command) > MOST_OUTPUT_BYTES:
                excessive.append(process)
                kill([process])
            elif process.poll() is None:
                looks[process].look()
            elif looks[process].was_killed(process.returncode):
                starved.append(process)
            if process in excessive or process.returncode is not None:
                _kill_group(process)  # what it has started and left behind, which another may wait for
                del running[process]
                until = -math.inf if command.ends_all() else until
    return excessive, starved, silent


def _silent_ones(
    quiet: Mapping[subprocess.Popen[bytes], silence.Silence], running: Mapping[subprocess.Popen[bytes], Command]
) -> list[subprocess.Popen[bytes]]:
    """Returns the processes that have done nothing for long, if another one waits for them and does not compute."""
    for one in quiet.values():
        one.look()
    idle = [process for process, one in quiet.items() if not one.computes]
    if len(idle) < 2 or not any(running[process].waits() for process in idle):
        return []
    return [process for process in idle if not quiet[process].writes and not running[process].waits()]


def _written_bytes(command: Command) -> int:
    """Returns the size of the largest file that a command writes into."""
    return max((os.fstat(file.fileno()).st_size for file in (command.stdout, command.stderr) if file), default=0)


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


def give_way(parent: int) -> None:
    """Makes this new process die with its parent, and before any other if the host's memory is too small."""
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
