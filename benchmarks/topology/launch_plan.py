"""Plans the cluster that one command starts, on this host or on others. Imports without TensorFlow."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.topology.cluster import Cluster, Task
from variable_mgr.catalog import uses_servers

_FORM = "give the number of tasks of each job, such as --local_cluster=ps:1,worker:2"
_MOST_TASKS = 64
# A task whose port is still to be chosen.
_NO_ADDRESS = "127.0.0.1:0"
# Runs a command until it ends or our connection does: without a terminal, ssh would leave it running.
_WATCHED = (
    'exec 3<&0; cd "$0" || exit 2; "$@" </dev/null & p=$!; '
    '(cat <&3 >/dev/null 2>&1; kill "$p" 2>/dev/null) & w=$!; wait "$p"; s=$?; kill "$w" 2>/dev/null; exit "$s"'
)


def is_asked_for(given: Mapping[str, Any]) -> bool:
    """Returns whether this process is to start all tasks, and is not one of them."""
    return bool(given["local_cluster"] or given["hosts"]) and not given["job_name"]


def is_asked_for_in(arguments: Sequence[str]) -> bool:
    """Returns whether the words of a command ask for that."""
    return any(word.startswith(("--local_cluster=", "--hosts=")) for word in arguments)


def planned(given: Mapping[str, Any], default_port: int) -> Cluster:
    """Returns the cluster that is to be started.

    Raises:
        UsageError: the flags contradict each other, or name no possible cluster.
    """
    if given["local_cluster"] and given["hosts"]:
        raise UsageError("--local_cluster starts all tasks here, --hosts starts them elsewhere: give one of them.")
    if given["local_cluster"]:
        return on_this_host(given["local_cluster"])
    if not given["ssh"]:
        raise UsageError("--hosts starts tasks on other hosts over ssh: give --ssh as well.")
    return on_hosts(given["hosts"], given["variable_update"], given["server_port"] or default_port)


def on_this_host(text: str) -> Cluster:
    """Returns the cluster of a text such as `ps:1,worker:2`; its addresses are chosen when it is started.

    Raises:
        UsageError: the text names no cluster.
    """
    counts = {"ps": 0, "worker": 0}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(ps|worker)\s*[:=]\s*(\d{1,4})\s*", part)
        if not match:
            raise UsageError(f"--local_cluster={text}: '{part}' is not part of a cluster: {_FORM}.")
        counts[match[1]] += int(match[2])
    if not counts["worker"]:
        raise UsageError(f"--local_cluster={text} has no worker, and nothing else trains: {_FORM}.")
    if sum(counts.values()) > _MOST_TASKS:
        raise UsageError(f"--local_cluster={text} asks for more than {_MOST_TASKS} processes on one host: {_FORM}.")
    return Cluster(
        ps=(_NO_ADDRESS,) * counts["ps"],
        workers=(_NO_ADDRESS,) * counts["worker"],
        own=Task("worker", 0),
        local=True,
    )


def is_planned(cluster: Cluster) -> bool:
    """Returns whether the cluster is still to be started."""
    return _NO_ADDRESS in cluster.workers


def with_free_ports(cluster: Cluster) -> Cluster:
    """Returns a planned cluster with addresses at which nothing listens."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in cluster.tasks:
            trial = stack.enter_context(socket.socket())
            trial.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{trial.getsockname()[1]}")
    return Cluster(
        ps=tuple(addresses[: cluster.num_ps]),
        workers=tuple(addresses[cluster.num_ps :]),
        own=cluster.own,
        local=True,
    )


def on_hosts(hosts: str, manager: str | None, port: int) -> Cluster:
    """Returns the cluster of one worker per host, and one parameter server per host if the manager needs them.

    Args:
        hosts: names or addresses, with commas between.
        manager: the variable manager; None is the default one.
        port: of the parameter servers; workers have the next one.

    Raises:
        UsageError: a host is empty or listed twice.
    """
    names = [name.strip() for name in hosts.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"--hosts={hosts}: name each host once, such as --hosts=host_0,host_1.")
    servers = uses_servers(manager)
    return Cluster(
        ps=tuple(f"{name}:{port}" for name in names) if servers else (),
        workers=tuple(f"{name}:{port + 1}" for name in names),
        own=Task("worker", 0),
    )


def over_ssh(task: Task, cluster: Cluster, command: Sequence[str]) -> list[str]:
    """Returns the words that run a command on the host of a task, in the current directory.

    The command ends when the connection does. Its standard input must stay open until then.
    """
    host = cluster.tasks[task].rpartition(":")[0].strip("[]")
    remote = ["sh", "-c", _WATCHED, str(Path.cwd()), *command]
    return ["ssh", "-o", "BatchMode=yes", host, shlex.join(remote)]
