"""Clusters that one command starts on this host: how many tasks of which job. Imports without TensorFlow."""

from __future__ import annotations

import contextlib
import re
import socket

from benchmarks.cluster import Cluster, Task
from benchmarks.errors import UsageError

_FORM = "say how many tasks of each job, such as --local_cluster=ps:1,worker:2"
_MOST_TASKS = 64
# A task whose port is still to be chosen.
_NO_ADDRESS = "127.0.0.1:0"


def on_this_host(text: str) -> Cluster:
    """Returns the cluster that a text such as `ps:1,worker:2` asks for; its addresses are chosen when it is started.

    Raises:
        UsageError: the text asks for no cluster.
    """
    counts = {"ps": 0, "worker": 0}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(ps|worker)\s*[:=]\s*(\d{1,4})\s*", part)
        if not match:
            raise UsageError(f"--local_cluster={text}: '{part}' is no part of a cluster: {_FORM}.")
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
