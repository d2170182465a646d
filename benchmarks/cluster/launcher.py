"""Starts all tasks of a cluster, waits for them, and kills what is left of them. No TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.console import warn
from benchmarks.errors import ExitStatus, Terminated, UsageError
from benchmarks.process import private_network, subprocesses
from benchmarks.process.signals import raise_on_sigterm, signals_held_back
from benchmarks.topology import launch_plan
from benchmarks.topology.cluster import Cluster, Task
from results.text import counted

# How long the others may take to notice that one has failed, and to report it: they need 40 s at most.
_NOTICE_SECONDS = 50.0
# A leader that cannot handle signals ends by itself after 15 s, and then writes its record. The process that has
# started us, such as a sweep, waits for 30 s.
_GRACE_SECONDS = 25.0
_POLL_SECONDS = 0.05


def enter_private_network(command: Sequence[str]) -> None:
    """Replaces this process by the same command in a private network, if that is permitted. Does not return."""
    os.execv(sys.executable, [sys.executable, private_network.__file__, str(subprocesses.RUN_BENCH), *command])


@dataclasses.dataclass
class Started:
    """A task's process, and where its output goes; None for our own output."""

    task: Task
    process: subprocess.Popen[bytes]
    log: Path | None


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
            f"{cluster.num_workers} workers with {counted(per_worker, 'GPU')} each need {needed}, and "
            f"{len(usable)} may be used here. Ask for fewer, or use --device=cpu."
        )
    return {
        Task("worker", index): ",".join(map(str, usable[index * per_worker : (index + 1) * per_worker]))
        for index in range(cluster.num_workers)
    }


def run(cluster: Cluster, command: Command, logs: Path) -> ExitStatus:
    """Runs all tasks of a planned cluster to their end.

    The leader's output is ours; each other task writes a log. When one fails, the others get time to notice and to
    report it, and what is left then is killed.

    Args:
        cluster: planned; where ports are still to be chosen, they are chosen here.
        command: starts a task.
        logs: the directory of the logs.

    Returns:
        OK if all tasks ended so, else the leader's status; cluster failure where it did not fail, or was killed.
    """
    if launch_plan.is_planned(cluster):
        cluster = launch_plan.with_free_ports(cluster)
    raise_on_sigterm()
    with _started(cluster, command, logs) as tasks:
        _wait(tasks)
        _warn_of_failures(tasks)
        codes = {started.task: started.process.poll() for started in tasks}
    if not any(code != 0 for code in codes.values()):
        return ExitStatus.OK
    own = codes[cluster.leader]
    return ExitStatus(own) if own in set(ExitStatus) and own else ExitStatus.CLUSTER


@contextlib.contextmanager
def _started(cluster: Cluster, command: Command, logs: Path) -> Iterator[list[Started]]:
    """Starts all tasks, and ends with none left. A signal goes to the leader first, which may have a record to save."""
    tasks: list[Started] = []
    name = uuid.uuid4().hex[:8]
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for task in cluster.tasks:
            log = None if task == cluster.leader else logs / f"{name}-{task.job}-{task.index}.log"
            words = command(task, cluster)
            with signals_held_back(), log.open("wb") if log else contextlib.nullcontext() as output:
                process = subprocesses.Command(words=words, stdout=output, stderr=output, stdin=subprocess.PIPE)
                tasks.append(Started(task, subprocesses.start(process), log))
        yield tasks
    except (KeyboardInterrupt, Terminated) as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        for leader in (started for started in tasks if started.log is None):  # it may not have been started yet
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, Terminated):
                leader.process.send_signal(number)
                leader.process.wait(_GRACE_SECONDS)
        raise
    finally:
        subprocesses.kill([started.process for started in tasks])
        for started in tasks:
            if started.process.stdin:
                started.process.stdin.close()


def _wait(tasks: Sequence[Started]) -> None:
    """Waits until all have ended, or some time after the first has failed or the leader has ended."""
    until: float | None = None
    while None in (codes := [started.process.poll() for started in tasks]):
        leader_has_ended = any(c is not None and s.log is None for c, s in zip(codes, tasks, strict=True))
        if until is None and (any(codes) or leader_has_ended):
            until = time.monotonic() + _NOTICE_SECONDS
        if until is not None and time.monotonic() > until:
            return
        time.sleep(_POLL_SECONDS)


def _warn_of_failures(tasks: Sequence[Started]) -> None:
    for started in tasks:
        code = started.process.poll()
        if code == 0 or started.log is None and (code or 0) > 0:  # the leader has reported its own failure
            continue
        where = f"; its output: {started.log}" if started.log else ""
        warn(f"{started.task} {_how_it_ended(code)}{where}")


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "did not end, and was killed"
    if code > 0:
        return f"ended with status {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
