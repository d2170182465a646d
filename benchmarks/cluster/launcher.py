"""Starts all tasks of a cluster, waits for them, and kills what is left of them. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from benchmarks.cluster import launch_plan
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.console import log, warn
from benchmarks.errors import ClusterError, ExitStatus, UsageError
from benchmarks.process import private_network, subprocesses
from benchmarks.process.signals import raise_on_termination
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
    report it, and what is left then is killed. A signal goes to the leader alone, which may have a record to save.

    Args:
        cluster: its tasks and their addresses.
        command: starts a task; by ssh, unless the cluster is local.
        logs: the directory of the logs.

    Raises:
        ClusterError: a task cannot be started.
    """
    raise_on_termination()
    name = uuid.uuid4().hex[:8]
    paths = {task: logs / f"{name}-{task.job}-{task.index}.log" for task in cluster.tasks if task != cluster.leader}
    errors = None if cluster.local else _Copied()
    try:
        logs.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            files = {task: stack.enter_context(path.open("wb")) for task, path in paths.items()}
            leaders_stderr = stack.enter_context(errors) if errors else None
            commands = [
                subprocesses.Command(
                    words=command(task, cluster),
                    stdout=files.get(task),
                    stderr=files.get(task, leaders_stderr),
                    stdin=subprocess.PIPE,
                    ends_in_order=task == cluster.leader,
                    signals_by_stdin=not cluster.local,
                    patience=functools.partial(_patience, cluster, task),
                    stopped_seconds=_STOPPED_SECONDS,
                )
                for task in cluster.tasks
            ]
            ended = subprocesses.supervise(*commands, timeout_seconds=None, grace_seconds=_GRACE_SECONDS)
    except OSError as error:
        raise ClusterError(f"The tasks of the cluster cannot be started: {error}.") from error
    failures, of_leader = [], None
    for task, exit_info in zip(cluster.tasks, ended, strict=True):
        status = None if exit_info.was_killed else _status(cluster, exit_info.returncode)
        of_leader = status if task == cluster.leader else of_leader
        if status == 0:
            continue
        is_unreached = status == _SSH_FAILED and not cluster.local
        how = dataclasses.replace(exit_info, returncode=status or 0).in_words()
        if is_unreached:
            last_line = errors.last_line if errors and task not in paths else _last_line(paths[task])
            how = f"could not be reached, or the connection to it broke ({last_line or 'ssh gave no reason'})"
        elif status == _NOT_RUN:
            how = "was not run, though ssh ended with status 0"
        failures.append(f"{task} {how}")
        if task in paths or status not in _REPORTS:  # else the leader has printed its reason
            warn(failures[-1] + (f"; its output: {paths[task]}" if task in paths and not is_unreached else ""))
    reported = of_leader in _REPORTS
    status = ExitStatus(of_leader) if of_leader and reported else ExitStatus.CLUSTER if failures else ExitStatus.OK
    return Outcome(status, reported, failures)


def _status(cluster: Cluster, returncode: int) -> int:
    """Returns a task's exit status, negative for a signal, from that of its process, which may be an ssh."""
    if cluster.local:
        return returncode
    if returncode in (0, launch_plan.SUCCEEDED_OVER_SSH):
        return _NOT_RUN if returncode == 0 else 0
    # A shell adds 128 to the number of a signal.
    return 128 - returncode if returncode not in _REPORTS and 128 < returncode < _SSH_FAILED else returncode


def _patience(cluster: Cluster, task: Task, returncode: int) -> float:
    """Returns for how many seconds the other tasks may go on after one has ended so."""
    status = _status(cluster, returncode)
    if status == 0 and task != cluster.leader:
        return math.inf
    return _VERDICT_SECONDS if status == ExitStatus.CLUSTER else _NOTICE_SECONDS


def _last_line(output: Path) -> str:
    """Returns the last line of the output of a task, which has the reason of an ssh that failed."""
    with contextlib.suppress(OSError):
        lines = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace").split("\n")
        return next((one_line(line) for line in reversed(lines) if line.strip()), "")
    return ""


class _Copied:
    """In a context, copies what is written into a pipe to our stderr. Afterwards `last_line` is what came last."""

    def __enter__(self) -> IO[bytes]:
        self.last_line = ""
        read_end, write_end = os.pipe()
        self._pipe = open(write_end, "wb")
        self._thread = threading.Thread(target=self._copy, args=(read_end,), daemon=True)
        self._thread.start()
        return self._pipe

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._thread.join(_COPYING_SECONDS)

    def _copy(self, read_end: int) -> None:
        with open(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.last_line = one_line(line) if line.strip() else self.last_line
                log(line.rstrip("\r\n"))
