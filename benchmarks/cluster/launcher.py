"""Starts all tasks of a cluster, waits for them, and kills what is left of them. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.console import log, warn
from benchmarks.errors import ClusterError, ExitStatus, Terminated, UsageError
from benchmarks.process import private_network, subprocesses
from benchmarks.process.signals import raise_on_termination, signals_held_back
from results.text import counted, one_line

# How long the others may take to notice that a task has failed, and to report it: they need 40 s at most.
_NOTICE_SECONDS = 50.0
# After the first has reported that another is lost: the others notice it within seconds, and then have 15 s to end.
_VERDICT_SECONDS = 25.0
# After a task was stopped: the others notice that after 18 s at most, and then have 15 s to end.
_STOPPED_SECONDS = 40.0
# A leader that cannot handle signals ends by itself after 15 s, and then writes its record. The process that has
# started us, such as a sweep, waits for 30 s.
_GRACE_SECONDS = 25.0
_POLL_SECONDS = 0.05
# With these a run ends by itself, after its leader has saved its record.
_REPORTS = set(ExitStatus) - {ExitStatus.REGRESSED, ExitStatus.UNDECIDED}
# In place of the status of an ssh that ended well and ran nothing; no process has it.
_NOT_RUN = 256
_SSH_FAILED = 255
# Of the end of a task's output, where ssh's last line is; and how long the rest of it takes to be copied.
_LAST_BYTES = 4096
_COPYING_SECONDS = 2.0


def enter_private_network(command: Sequence[str]) -> None:
    """Replaces this process by the same command in a private network, if that is permitted. Does not return."""
    words = in_private_network(command)
    os.execv(words[0], words)


def in_private_network(command: Sequence[str]) -> list[str]:
    """Returns the words that run a command in a private network."""
    return [sys.executable, private_network.__file__, str(subprocesses.RUN_BENCH), *command]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a cluster ended.

    Attributes:
        status: OK if all tasks ended so, else the leader's; cluster failure where it did not fail, or was killed.
        leader_reported: whether the leader ended by itself, so that it has saved a record where it runs.
        failures: which tasks failed, and how, in words.
    """

    status: ExitStatus
    leader_reported: bool
    failures: list[str]


@dataclasses.dataclass
class Started:
    """A task's process, which may be an ssh, and where its output goes; None for our own output.

    `errors` copies the stderr of an ssh to ours.
    """

    task: Task
    process: subprocess.Popen[bytes]
    log: Path | None
    over_ssh: bool
    errors: _Copied | None = None

    def poll(self) -> int | None:
        """Returns the task's exit status, negative for a signal; None while it runs."""
        code = self.process.poll()
        if code is None or not self.over_ssh:
            return code
        if code in (0, launch_plan.SUCCEEDED_OVER_SSH):
            return _NOT_RUN if code == 0 else 0
        # A shell adds 128 to the number of a signal.
        return 128 - code if code not in _REPORTS and 128 < code < _SSH_FAILED else code

    def is_stopped(self) -> bool:
        """Returns whether it was stopped, as by SIGSTOP, and not continued since."""
        with contextlib.suppress(ChildProcessError):  # it has ended
            return os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def send(self, number: signal.Signals) -> None:
        """Sends the task a signal; ssh itself would end at once, and leave the task without time to end in order."""
        if not self.over_ssh:
            self.process.send_signal(number)
        elif self.process.stdin:
            with contextlib.suppress(OSError):  # the connection has ended
                self.process.stdin.write(number.name.removeprefix("SIG").encode() + b"\n")
                self.process.stdin.close()

    def how_it_ended(self, code: int | None) -> str:
        """Returns how the task ended with this status, in words; one that still runs is about to be killed."""
        if code is None:
            return "was stopped, and then killed" if self.is_stopped() else "did not end, and was killed"
        if code == _NOT_RUN:
            return "was not run, though ssh ended with status 0"
        if code == _SSH_FAILED and self.over_ssh:
            return f"could not be reached, or the connection to it broke ({self._last_words() or 'ssh gave no reason'})"
        if code > 0:
            return f"ended with status {code}"
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"

    def _last_words(self) -> str:
        """Returns the last line of the task's output, with the reason of an ssh that failed."""
        if self.errors:
            return one_line(self.errors.last_line())
        with contextlib.suppress(OSError):
            lines = self.log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").split("\n") if self.log else []
            return next((one_line(line) for line in reversed(lines) if line.strip()), "")
        return ""


class _Copied:
    """Copies what a process writes into a pipe to our stderr, and keeps the last line."""

    def __init__(self) -> None:
        read_end, write_end = os.pipe()
        self.pipe = open(write_end, "wb")
        self._last = ""
        self._thread = threading.Thread(target=self._copy, args=(read_end,), daemon=True)

    def start(self) -> None:
        """Begins once the process has the pipe."""
        self.pipe.close()
        self._thread.start()

    def last_line(self) -> str:
        """Returns the last line that is not empty; a process that has ended wrote all it had."""
        self._thread.join(_COPYING_SECONDS)
        return self._last

    def _copy(self, read_end: int) -> None:
        with open(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._last = line if line.strip() else self._last
                log(line.rstrip("\r\n"))


# From a task and its cluster's hosts to the words that start it.
Command = Callable[[Task, Cluster], Sequence[str]]


def local_command(arguments: Sequence[str], gpus_of: Mapping[Task, str]) -> Command:
    """Returns how a task is started on this host.

    Args:
        arguments: of run_bench, without its role.
        gpus_of: the GPUs of each worker, as `--gpus` has them; may be empty.
    """

    def command(task: Task, cluster: Cluster) -> list[str]:
        role = [f"--job_name={task.job}", f"--task_index={task.index}", f"--worker_hosts={','.join(cluster.workers)}"]
        servers = [f"--ps_hosts={','.join(cluster.ps)}"] if cluster.ps else []
        gpus = [f"--gpus={gpus_of[task]}"] if task in gpus_of else []
        return [sys.executable, str(subprocesses.RUN_BENCH), *arguments, *role, *servers, *gpus]

    return command


def divide_gpus(cluster: Cluster, per_worker: int, usable: Sequence[int]) -> dict[Task, str]:
    """Gives each worker GPUs of its own.

    Raises:
        UsageError: there are too few.
    """
    needed = per_worker * cluster.num_workers
    if needed > len(usable):
        raise UsageError(
            f"{counted(cluster.num_workers, 'worker')} with {counted(per_worker, 'GPU')} each need {needed}, and "
            f"{len(usable)} may be used here. Ask for fewer, or use --device=cpu."
        )
    return {
        Task("worker", index): ",".join(map(str, usable[index * per_worker : (index + 1) * per_worker]))
        for index in range(cluster.num_workers)
    }


def launch(cluster: Cluster, command: Command, logs: Path) -> Outcome:
    """Runs all tasks of a cluster to their end.

    The leader's output is ours; each other task writes a log. When one fails, the others get time to notice and to
    report it, and what is left then is killed.

    Args:
        cluster: its tasks and their addresses.
        command: starts a task; by ssh, unless the cluster is local.
        logs: the directory of the logs.

    Raises:
        ClusterError: a task cannot be started.
    """
    raise_on_termination()
    with _started(cluster, command, logs) as tasks:
        _wait(tasks)
        codes = {started.task: started.poll() for started in tasks}
        failures = []
        for started in tasks:
            code = codes[started.task]
            if started.errors and code is not None:
                started.errors.last_line()  # so that all of it precedes what follows
            if code == 0:
                continue
            failures.append(f"{started.task} {started.how_it_ended(code)}")
            if started.log or code not in _REPORTS:  # else the leader has printed its reason
                elsewhere = started.log and not (started.over_ssh and code == _SSH_FAILED)
                warn(failures[-1] + (f"; its output: {started.log}" if elsewhere else ""))
    own = codes[cluster.leader]
    reported = own in _REPORTS
    status = ExitStatus(own) if own and reported else ExitStatus.CLUSTER if failures else ExitStatus.OK
    return Outcome(status, reported, failures)


@contextlib.contextmanager
def _started(cluster: Cluster, command: Command, logs: Path) -> Iterator[list[Started]]:
    """Starts all tasks, and ends with none left. A signal goes to the leader first, which may have a record to save."""
    tasks: list[Started] = []
    try:
        _start(cluster, command, logs, tasks)
        yield tasks
    except (KeyboardInterrupt, Terminated) as error:
        number = error.number if isinstance(error, Terminated) else signal.SIGINT
        for leader in (started for started in tasks if started.log is None):  # it may not have been started yet
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, Terminated):
                leader.send(number)
                leader.process.wait(_GRACE_SECONDS)
        raise
    finally:
        subprocesses.kill([started.process for started in tasks])
        for started in tasks:
            if started.process.stdin:
                started.process.stdin.close()


def _start(cluster: Cluster, command: Command, logs: Path, tasks: list[Started]) -> None:
    """Starts all tasks, and adds each to `tasks` before a signal may come."""
    name = uuid.uuid4().hex[:8]
    try:
        logs.mkdir(parents=True, exist_ok=True)
        for task in cluster.tasks:
            its_log = None if task == cluster.leader else logs / f"{name}-{task.job}-{task.index}.log"
            words = command(task, cluster)
            errors = _Copied() if its_log is None and not cluster.local else None
            with signals_held_back(), its_log.open("wb") if its_log else contextlib.nullcontext() as output:
                process = subprocesses.Command(
                    words=words, stdout=output, stderr=errors.pipe if errors else output, stdin=subprocess.PIPE
                )
                tasks.append(Started(task, subprocesses.start(process), its_log, not cluster.local, errors))
                if errors:
                    errors.start()
    except OSError as error:
        raise ClusterError(f"The tasks of the cluster cannot be started: {error}.") from error


def _wait(tasks: Sequence[Started]) -> None:
    """Waits until all have ended, or some time after one has failed or was stopped, or the leader has ended."""
    until = math.inf
    stopped_at: dict[Task, float] = {}
    while None in (codes := [started.poll() for started in tasks]):
        now = time.monotonic()
        for code, started in zip(codes, tasks, strict=True):
            if code or (code == 0 and started.log is None):
                patience = _VERDICT_SECONDS if code == ExitStatus.CLUSTER else _NOTICE_SECONDS
                until = min(until, now + patience)
        stopped_at = {started.task: stopped_at.get(started.task, now) for started in tasks if started.is_stopped()}
        if now > min([until, *(since + _STOPPED_SECONDS for since in stopped_at.values())]):
            return
        time.sleep(_POLL_SECONDS)
