"""Runs a command as a process of its own, with a deadline, so that whatever happens to it does not happen to us."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.display import warn
from benchmarks.errors import Terminated

# What a process gets to write down its threads' stacks, and to end in order, before it is killed.
_STACKS_SECONDS = 2.0
_GRACE_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
# The program itself, to be started anew.
RUN_BENCH = Path(__file__).resolve().parent.parent / "run_bench.py"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        returncode: its exit status; negative for a signal.
        timed_out: whether its time was up, and it was killed for that.
        out_of_memory: whether the kernel has meanwhile killed a process of this container for want of memory.
        seconds: from its start to its end.
    """

    returncode: int
    timed_out: bool
    out_of_memory: bool
    seconds: float


def run(
    command: Sequence[str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    timeout_seconds: float | None,
    *,
    first_to_be_killed: bool = False,
) -> Ended:
    """Runs a command to its end; its output goes to files.

    The process dies with us. If it takes too long, it is told to write down the stacks of its threads (SIGUSR1, see
    `run_bench.py`) and killed, with all that it has started. If we are interrupted or terminated, it is told so, and
    given time to end in order.

    Args:
        command: words.
        stdout: receives the one.
        stderr: receives the other.
        timeout_seconds: None for no limit.
        first_to_be_killed: whether the kernel shall kill it before any other if the host's memory does not suffice;
            else it is as likely to be killed as this process.

    Raises:
        KeyboardInterrupt, Terminated: as they came; the process has ended.
    """
    begin, kills = time.monotonic(), _out_of_memory_kills()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_give_way if first_to_be_killed else die_with_parent,
    )
    timed_out = False
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        _end(process, signal.SIGUSR1, _STACKS_SECONDS)
    except KeyboardInterrupt:
        _end(process, signal.SIGINT, _GRACE_SECONDS)
        raise
    except Terminated:
        _end(process, signal.SIGTERM, _GRACE_SECONDS)
        raise
    kill_group(process)  # whatever it has started and left behind
    returncode = -signal.SIGKILL if process.returncode is None else process.returncode
    return Ended(returncode, timed_out, _out_of_memory_kills() > kills, time.monotonic() - begin)


def _end(process: subprocess.Popen[bytes], signal_number: signal.Signals, grace_seconds: float) -> None:
    """Sends a signal, waits, and kills what is left. A Ctrl-C cuts the waiting short, and is raised in the end."""
    interrupted = False
    try:
        process.send_signal(signal_number)
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        pass
    except KeyboardInterrupt:
        interrupted = True
    kill_group(process)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        warn(f"Process {process.pid} does not end even when killed: a driver may hang. It is left behind.")
    if interrupted:
        raise KeyboardInterrupt


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that was started in a session of its own, and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def die_with_parent() -> None:
    """Is called in a new process, so that it does not outlive this one."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_way() -> None:
    """Is called in a new process: it dies with this one, and before any other if the host's memory does not suffice."""
    die_with_parent()
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
