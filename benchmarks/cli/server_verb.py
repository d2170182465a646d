"""The verb `server`: a bare TensorFlow server, for the sessions of any client. Imports TensorFlow late."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.config import config
from benchmarks.config.config import Config
from benchmarks.config.run_flags import RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.process.signals import raise_on_termination
from benchmarks.system.hardware import count_gpus
from benchmarks.topology import discovery, launch_plan
from benchmarks.topology.start import start


def resolve(values: Mapping[str, Any], count_gpus: Callable[[], int]) -> Config:
    """Turns flag values (None: not given) into a configuration.

    Raises:
        UsageError: the flags do not name a task of a cluster.
    """
    cluster, _ = discovery.resolve(values, os.environ)
    if cluster is None or launch_plan.is_asked_for(values):
        raise UsageError(
            "server starts one task of a cluster: name it, such as server --cluster_spec='ps|h0:50000,worker|"
            "h0:50001;h1:50001' --job_name=worker --task_index=0."
        )
    return config.resolve({**values, "variable_update": discovery.manager_for(cluster)}, count_gpus)


def run(config: Config) -> ExitStatus:
    """Serves until Ctrl-C or SIGTERM.

    Raises:
        ClusterError: the port is taken.
    """
    cluster = config.cluster
    assert cluster is not None, "resolve has refused this"
    _, options = start(config.runtime)
    from benchmarks.cluster import member

    raise_on_termination()
    server = member.start_server(cluster, options)
    for line in cluster.table():
        say(line)
    say(f"A client may open a session on {server.target.replace('localhost', '127.0.0.1')}; Ctrl-C ends the server.")
    warn("Any client that reaches this port can execute code here: docs/howto/several-hosts.md#security.")
    threading.Event().wait()
    return ExitStatus.OK


VERB = Verb(
    "server",
    "a bare TensorFlow server: one task of a cluster",
    {name: RUN_FLAGS[name] for name in ("Several processes", "Devices")},
    lambda given, command: run(resolve(given.values, count_gpus)),
    details="Any client may open a session on it.",
    examples=("server --cluster_spec='worker|h0:50001;h1:50001' --job_name=worker --task_index=0",),
)
