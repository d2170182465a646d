"""The verb `server`: a bare TensorFlow server, for the sessions of any client. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.cluster import discovery
from benchmarks.cluster.cluster_spec import Task, task_table, tasks_of
from benchmarks.cluster.discovery import Found
from benchmarks.config import config
from benchmarks.config.run_flags import RUN_FLAGS, unset
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.devices.start_tensorflow import start
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.machine.hardware import count_gpus
from benchmarks.process.signals import raise_on_termination
from benchmarks.process.tensorflow_setup import Runtime


def server_options(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> tuple[Found, Task, Runtime]:
    """Returns the cluster, the task that this server is, and its devices; a parameter server has one CPU device.

    Raises:
        UsageError: the flags (None: not given) do not name a task of a cluster.
    """
    found = discovery.find_cluster(values, os.environ)
    if found is None or found.is_launcher:
        raise UsageError(
            "server starts one task of a cluster: name it, such as server --cluster_spec='ps|h0:50000,worker|"
            "h0:50001;h1:50001' --job_name=worker --task_index=0."
        )
    if found.own is None:
        raise UsageError(found.own_is_missing)
    own_devices = {flag.name: values[flag.name] for flag in RUN_FLAGS["Devices"]}
    if found.own.job == "ps":
        own_devices = {"device": "cpu"}
    runtime = config.resolve(unset(own_devices), count_gpus, environ={}).runtime
    return found, found.own, dataclasses.replace(runtime, peers=tuple(tasks_of(found.hosts).values()))


def run_server(values: Mapping[str, Any]) -> ExitStatus:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        UsageError: see `server_options`.
        ClusterError: the port is taken.
    """
    found, own, runtime = server_options(values, count_gpus)
    warn(*found.notices)
    _, options = start(runtime)
    from benchmarks.cluster import member

    raise_on_termination()
    server = member.start_server(found.hosts, own, options)
    say(*task_table(tasks_of(found.hosts), own))
    say(f"A client may open a session on {server.target.replace('localhost', '127.0.0.1')}; Ctrl-C ends the server.")
    warn("Any client that reaches this port can execute code here: docs/howto/several-hosts.md#security.")
    threading.Event().wait()
    return ExitStatus.OK


VERB = Verb(
    "server",
    {name: RUN_FLAGS[name] for name in ("Several processes", "Devices")},
    lambda given, command: run_server(given.values),
    details="Any client that reaches its port runs graphs as this user: see Security in docs/howto/several-hosts.md. "
    "Jobs may have any names.",
    examples=(
        "server --cluster_spec='worker|h0:50001;h1:50001' --job_name=worker --task_index=0",
        "server --cluster_spec='local|localhost:2222' --job_name=local --task_id=0",
    ),
)
