"""Plans the cluster that one command starts, on this host or on others. Imports without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.cluster_spec import LAST_PORT, Cluster, Task, one_spelling, require_common_names, why_no_host
from benchmarks.errors import UsageError
from variable_mgr.catalog import uses_servers

_FORM = "give the number of tasks of each job, such as --local_cluster=ps:1,worker:2"
_MOST_TASKS = 64
_PART = re.compile(r"\s*(ps|worker)\s*[:=]\s*([0-9]{1,4})\s*", re.ASCII | re.IGNORECASE)
# Of a task whose port is chosen when it is started.
_NO_ADDRESS = "127.0.0.1:PORT"
# The status of ssh if the task succeeded: another one than that of an ssh that ran no task and ended well.
SUCCEEDED_OVER_SSH = 99
# That of a shell which does not find the directory, or the program.
NOT_FOUND_OVER_SSH = 127
# Runs a command in a directory until it ends or our connection does: without a terminal, ssh would leave it running. A
# line on standard input names a signal for it. A task that has not ended 30 s after its signal is killed.
_WATCHED = (
    'exec 3<&0; cd "$0" || exit 127; "$@" </dev/null 3<&- & p=$!; '
    '(read -r n <&3; kill -s "${n:-TERM}" "$p"; sleep 30; kill -s KILL "$p") </dev/null >/dev/null 2>&1 & w=$!; '
    f'wait "$p"; s=$?; kill "$w" 2>/dev/null; [ "$s" -ne 0 ] || s={SUCCEEDED_OVER_SSH}; exit "$s"'
)
# A shell has the commands that it starts in the background ignore Ctrl-C; this undoes it.
_HEEDS_CTRL_C = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
# A host that does not answer ends the connection after 30 s at the start, and after 45 s later.
_SSH = (
    "ssh",
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=3"),
    "--",
)


def is_asked_for(given: Mapping[str, Any]) -> bool:
    """Returns whether this process is to start all tasks, and is not one of them."""
    starts_on_hosts = given["hosts"] and (given["ssh"] or given["cluster"] != "mpi")
    return bool(given["local_cluster"] or starts_on_hosts) and not given["job_name"]


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
        instead = "leave it out, since Slurm names the hosts" if given["cluster"] == "slurm" else "give --ssh as well"
        raise UsageError(f"--hosts starts tasks on other hosts over ssh: {instead}.")
    return on_hosts(given["hosts"], given["variable_update"], given["server_port"] or default_port)


def on_this_host(text: str) -> Cluster:
    """Returns the cluster of a text such as `ps:1,worker:2`; its addresses are chosen when it is started.

    Raises:
        UsageError: the text names no cluster.
    """
    counts = {"ps": 0, "worker": 0}
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(f"--local_cluster={text}: '{part}' is not part of a cluster: {_FORM}.")
        counts[match[1].lower()] += int(match[2])
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


def with_free_ports(cluster: Cluster) -> Cluster:
    """Returns a planned cluster with addresses at which nothing listens."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in cluster.tasks:
            trial = stack.enter_context(socket.socket())
            trial.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{trial.getsockname()[1]}")
    return dataclasses.replace(
        cluster, ps=tuple(addresses[: cluster.num_ps]), workers=tuple(addresses[cluster.num_ps :])
    )


def on_hosts(hosts: str, manager: str | None, port: int) -> Cluster:
    """Returns the cluster of one worker per host, and one parameter server per host if the manager needs them.

    `port` is that of the parameter servers; workers have the next one. A `manager` of None is the default one.

    Raises:
        UsageError: see `host_names`; or there is no next port.
    """
    names = host_names(hosts)
    if port >= LAST_PORT:
        raise UsageError(f"--server_port={port}: workers have the next port, so give at most {LAST_PORT - 1}.")
    servers = uses_servers(manager)
    return Cluster(
        ps=tuple(f"{name}:{port}" for name in names) if servers else (),
        workers=tuple(f"{name}:{port + 1}" for name in names),
        own=Task("worker", 0),
    )


def host_names(hosts: str) -> list[str]:
    """Returns the hosts of a text with commas between them.

    Raises:
        UsageError: one is no host, is listed twice, or is no name for the others.
    """
    names = [name.strip() for name in hosts.split(",")]
    if not all(names):
        raise UsageError(f"--hosts={hosts}: entry {names.index('') + 1} is empty: give a host there, or drop the ','.")
    for name in names:
        why_not = why_no_host(name)
        if why_not:
            raise UsageError(
                f"--hosts={hosts}: {name!r} is no host: {why_not}. Write --hosts=host_0,host_1; users and ports of ssh "
                "belong in ~/.ssh/config."
            )
    if len(set(map(one_spelling, names))) < len(names):
        raise UsageError(f"--hosts={hosts}: name each host once, such as --hosts=host_0,host_1.")
    require_common_names(names, f"--hosts={hosts}")
    return names


def over_ssh(task: Task, cluster: Cluster, command: Sequence[str]) -> list[str]:
    """Returns the words that run a command on the host of a task, in the current directory.

    The command ends when the connection does. Its standard input must stay open until then; a line there, such as
    INT, is a signal for it. Success has the status `SUCCEEDED_OVER_SSH`.
    """
    host = cluster.tasks[task].rpartition(":")[0].strip("[]")
    remote = ["sh", "-c", _WATCHED, str(Path.cwd()), sys.executable, "-c", _HEEDS_CTRL_C, *command]
    return [*_SSH, host, shlex.join(remote)]
