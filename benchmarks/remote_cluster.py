"""Clusters that one command starts on several hosts, over ssh. Imports without TensorFlow."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import Cluster, Task
from benchmarks.errors import UsageError

_NEED_SERVERS = ("parameter_server", "distributed_replicated", "staged")
# Runs a command until it ends or our connection does: without a terminal, ssh would leave it running.
_WATCHED = (
    'exec 3<&0; cd "$0" || exit 2; "$@" </dev/null & p=$!; '
    '(cat <&3 >/dev/null 2>&1; kill "$p" 2>/dev/null) & w=$!; wait "$p"; s=$?; kill "$w" 2>/dev/null; exit "$s"'
)


def on_hosts(hosts: str, manager: str | None, port: int) -> Cluster:
    """Returns the cluster of one worker per host, and under a manager that wants them, one parameter server.

    Args:
        hosts: names or addresses, with commas between.
        manager: the variable manager; None is the default one.
        port: of the parameter servers; workers have the next one.

    Raises:
        UsageError: a host is empty, or there twice.
    """
    names = [name.strip() for name in hosts.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"--hosts={hosts}: name each host once, such as --hosts=host_0,host_1.")
    servers = (manager or "parameter_server") in _NEED_SERVERS
    return Cluster(
        ps=tuple(f"{name}:{port}" for name in names) if servers else (),
        workers=tuple(f"{name}:{port + 1}" for name in names),
        own=Task("worker", 0),
    )


def over_ssh(task: Task, cluster: Cluster, command: Sequence[str]) -> list[str]:
    """Returns the words that run a command on the host of a task, in the directory in which we are.

    The command ends when the connection does. Its standard input must stay open until then.
    """
    host = cluster.tasks[task].rpartition(":")[0].strip("[]")
    remote = ["sh", "-c", _WATCHED, str(Path.cwd()), *command]
    return ["ssh", "-o", "BatchMode=yes", host, shlex.join(remote)]
