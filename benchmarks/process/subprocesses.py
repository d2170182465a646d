"""Starts, watches and ends processes, so that what happens to them does not happen to this one."""

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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmarks.console import progress, warn
from benchmarks.errors import stopped
from benchmarks.process import out_of_memory
from benchmarks.process.signals import signal_in_words, signals_held_back

# What a process gets to write its threads' stacks, and to end in order, before it is killed.
_STACKS_SECONDS = 2.0
_GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.25
_PR_SET_PDEATHSIG = 1
# A run prints one record: ten million steps are 200 MB. A process that writes more into a file is killed.
MOST_OUTPUT_BYTES = 2**28
_TAIL_BYTES = 2**16
# An end of file means that the process which could have written a line is dead.
_WHEN_DEAD = 'trap "" HUP INT TERM; read _ || {{ {}; }}'
_KILL_GROUPS = 'kill -s KILL -- "$@"'
# The program itself, to be started anew.
RUN_BENCH = Path(__file__).resolve().parents[2] / "run_bench.py"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass
class ExitInfo:
    """How a process ended; of one that runs, what is known so far.

    Attributes:
        returncode: its exit status; negative for a signal.
        timed_out: whether it was killed because its time was up.
        out_of_memory: whether the kernel killed it because memory ran out.
        seconds: from the start of the first to the end of all.
        wrote_too_much: whether it was killed because its output filled the disk.
        was_stopped: whether it was killed after it had been stopped, as by SIGSTOP.
    """

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float
    wrote_too_much: bool = False
    was_stopped: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether this process has killed it."""
        return self.timed_out or self.wrote_too_much or self.was_stopped

    def in_words(self) -> str:
        """Returns the predicate of a sentence on the process."""
        if self.was_stopped:
            return "was stopped, as by SIGSTOP, and then killed"
        if self.timed_out:
            return "did not end, and was killed"
        if self.wrote_too_much:
            return f"wrote more than {MOST_OUTPUT_BYTES / 2**20:.0f} MiB of output, and was killed"
        if self.out_of_memory:
            return "was killed by the kernel because memory ran out"
        if self.returncode < 0:
            return f"ended by {signal_in_words(-self.returncode)}"
        return f"ended with status {self.returncode}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """What is started.

    Attributes:
        words: program and arguments.
        stdout: file for its output; None is our own output.
        stderr: file for its errors; None is our own.
        stdin: `DEVNULL`, or the descriptor of a file that it reads.
        first_to_be_killed: whether the kernel kills it before any other if the host's memory does not suffice; else it
            is as likely to be killed as this process.
        variables: of the environment, beside those of this process.
        directory: in which it starts; None: that of this process.
        hands_over: sockets that it inherits under their numbers, and that are closed here.
        ends_in_order: whether a signal to this process is passed on to it, so that it ends in order; else it is killed
            once the others have ended.
        signals_by_stdin: its stdin is a pipe instead, which closes when this process has ended; a signal is the line
            `INT`, `TERM` or `HUP` there.
        patience: asked with its status once it has ended: for how many seconds those beside it may go on before they
            are killed, as if their time were up. If it was stopped, these seconds count from then.
        stopped_seconds: it is killed once it has been stopped, as by SIGSTOP, for so long.
    """

    words: Sequence[str]
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None
    stdin: int = subprocess.DEVNULL
    first_to_be_killed: bool = False
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    directory: Path | None = None
    hands_over: Sequence[socket.socket] = ()
    ends_in_order: bool = True
    signals_by_stdin: bool = False
    patience: Callable[[int], float] = lambda status: math.inf
    stopped_seconds: float = math.inf


def supervise(
    *commands: Command, timeout_seconds: float | None, grace_seconds: float = _GRACE_SECONDS
) -> list[ExitInfo]:
    """Runs commands, all at once, to their ends; their output goes to files.

    The processes die with this one, and so does what they have started. One that takes too long gets SIGUSR1 if it has
    a file for its errors, where it writes the stacks of its threads (see `run_bench.py`), and is killed with all that
    it has started, as is one that writes more than `MOST_OUTPUT_BYTES`. If this process is interrupted or terminated,
    they get the same signal, and time to end in order.

    `timeout_seconds` are those of all together, `grace_seconds` what they get after a signal to this process.

    Raises:
        KeyboardInterrupt: as it came; the processes have ended.
        OSError: one cannot be started; the others have ended.
    """
    begin = time.monotonic()
    children: list[_Child] = []
    try:
        for command in commands:
            with signals_held_back():
                children.append(_Child(command, _start(command)))
        with if_killed(_KILL_GROUPS, *(f"-{child.process.pid}" for child in children)):
            running = _run_to_the_end(children, math.inf if timeout_seconds is None else begin + timeout_seconds)
            for child in running:
                child.info.timed_out, child.info.was_stopped = True, child.is_stopped()
            _end(running, signal.SIGUSR1, _STACKS_SECONDS)
    except KeyboardInterrupt as error:
        _end([child for child in children if child.command.ends_in_order], stopped(error).number, grace_seconds)
        raise
    finally:  # also at a second signal
        _kill(children)
        for child in children:
            if child.process.stdin:
                child.process.stdin.close()
    for child in children:
        child.info.seconds = time.monotonic() - begin
        if child.process.returncode is not None:
            child.info.returncode = child.process.returncode
    return [child.info for child in children]


def captured(words: Sequence[str], timeout_seconds: float, **how: Any) -> tuple[ExitInfo, bytes]:
    """Runs a command as `supervise` does; returns how it ended, and what it printed to stdout and stderr together."""
    with tempfile.TemporaryFile() as output:
        command = Command(words=words, stdout=output, stderr=output, **how)
        (ended,) = supervise(command, timeout_seconds=timeout_seconds)
        output.seek(0)
        return ended, output.read()


def tail(file: IO[bytes] | None) -> str:
    """Returns the end of a file, whose position stays: a process that writes into it shares that."""
    if file is None:
        return ""
    file.flush()
    number = file.fileno()
    return os.pread(number, _TAIL_BYTES, max(0, os.fstat(number).st_size - _TAIL_BYTES)).decode(errors="replace")


def replace_by(words: list[str]) -> NoReturn:
    """Replaces this process by a program with arguments. Raises OSError, with its name, if it cannot be started."""
    try:
        os.execv(words[0], words)
    except OSError as error:  # Python does not name the program
        raise OSError(error.errno, error.strerror, words[0]) from error


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


class _Child:
    """A process that was started."""

    def __init__(self, command: Command, process: subprocess.Popen[bytes]) -> None:
        self.command, self.process = command, process
        self.memory = out_of_memory.Looks(process.pid)
        self.stopped_at = math.inf
        self.info = ExitInfo(-signal.SIGKILL, timed_out=False, out_of_memory=False, seconds=0.0)

    def written_bytes(self) -> int:
        """Returns the size of the largest file that it writes into."""
        files = (self.command.stdout, self.command.stderr)
        return max((os.fstat(file.fileno()).st_size for file in files if file), default=0)

    def is_stopped(self) -> bool:
        """Returns whether it was stopped, as by SIGSTOP, and not continued since."""
        with contextlib.suppress(ChildProcessError):  # it has ended
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def send(self, number: int) -> None:
        if number == signal.SIGUSR1 and (self.command.stderr is None or self.command.signals_by_stdin):
            return  # it has no file for its stacks
        if self.process.stdin is None:
            self.process.send_signal(number)
        else:
            with contextlib.suppress(OSError):  # the connection has ended
                self.process.stdin.write(signal.Signals(number).name.removeprefix("SIG").encode() + b"\n")
                self.process.stdin.close()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _start(command: Command) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, which dies with this process. To be called with signals held back."""
    try:
        return subprocess.Popen(
            command.words,
            stdin=subprocess.PIPE if command.signals_by_stdin else command.stdin,
            stdout=command.stdout,
            stderr=command.stderr,
            env={**os.environ, **command.variables},
            cwd=command.directory,
            pass_fds=[end.fileno() for end in command.hands_over],
            start_new_session=True,
            preexec_fn=functools.partial(_die_with_parent, os.getpid(), first=command.first_to_be_killed),
        )
    finally:
        for end in command.hands_over:
            end.close()


def _run_to_the_end(children: Sequence[_Child], until: float) -> list[_Child]:
    """Waits for processes, and returns those that have not ended by then, or when the end of one has ended all."""
    running = list(children)
    while running and (seconds := until - time.monotonic()) > 0:
        _wait(running[:1], min(seconds, _LOOK_SECONDS))
        progress.look()
        now = time.monotonic()
        for child in list(running):
            status = child.process.poll()
            if status is None:
                child.memory.look()
                child.stopped_at = min(child.stopped_at, now) if child.is_stopped() else math.inf
                child.info.was_stopped = now > child.stopped_at + child.command.stopped_seconds
                child.info.wrote_too_much = child.written_bytes() > MOST_OUTPUT_BYTES
                if child.info.was_killed:
                    _kill([child])
            else:
                child.info.out_of_memory = child.memory.was_killed(status)
            if status is not None or child.info.was_killed:
                child.kill_group()  # what it has started and left behind, which another may wait for
                running.remove(child)
                until = min(until, min(now, child.stopped_at) + child.command.patience(child.process.returncode or 0))
    return running


def _end(children: Sequence[_Child], number: int, grace_seconds: float) -> None:
    """Sends a signal, waits, and kills what is left. A signal to this process ends the wait and is raised then."""
    try:
        for child in children:
            child.send(number)
        _wait(children, grace_seconds)
    finally:
        _kill(children)


def _kill(children: Sequence[_Child]) -> None:
    """Kills processes with all that they have started, and waits until they are gone."""
    for child in children:
        child.kill_group()
    for child in _wait(children, _GRACE_SECONDS):
        warn(f"Process {child.process.pid} does not end even when killed: a driver may hang. It is left behind.")


def _wait(children: Sequence[_Child], seconds: float) -> list[_Child]:
    """Waits so long for all together, and returns those that have not ended."""
    until = time.monotonic() + seconds
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, until - time.monotonic()))
    return [child for child in children if child.process.returncode is None]


def _die_with_parent(parent: int, *, first: bool = False) -> None:
    """Makes this new process die with its parent; `first`: and before any other if the host's memory is too small."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was dead before
        os.kill(os.getpid(), signal.SIGKILL)
    if first:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
