"""Clusters that one command starts, as flags ask for them: on this host or on others. Imports without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import local_cluster, remote_cluster
from benchmarks.cluster import Cluster
from benchmarks.errors import UsageError


def is_asked_for(given: Mapping[str, Any]) -> bool:
    """Returns whether the flags ask for all tasks to be started, and this process is none of them."""
    return bool(given["local_cluster"] or given["hosts"]) and not given["job_name"]


def is_asked_for_in(arguments: Sequence[str]) -> bool:
    """Returns the same of the words of a command."""
    return any(word.startswith(("--local_cluster=", "--hosts=")) for word in arguments)


def planned(given: Mapping[str, Any], default_port: int) -> Cluster:
    """Returns the cluster that is to be started.

    Raises:
        UsageError: the flags contradict each other, or name no cluster that can be.
    """
    if given["local_cluster"] and given["hosts"]:
        raise UsageError("--local_cluster starts all tasks here, --hosts starts them elsewhere: give one of them.")
    if given["local_cluster"]:
        return local_cluster.on_this_host(given["local_cluster"])
    if not given["ssh"]:
        raise UsageError("--hosts starts tasks on other hosts, and ssh is the way there: say --ssh as well.")
    return remote_cluster.on_hosts(given["hosts"], given["variable_update"], given["server_port"] or default_port)
