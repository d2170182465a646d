"""The verb `cluster`: which tasks a command line and the environment name. Imports no TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster import discovery
from benchmarks.cluster.cluster_spec import task_table, tasks_of
from benchmarks.config.run_flags import CLUSTER_FLAGS, RUN_FLAGS
from benchmarks.config.verb import Verb
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus, UsageError
from benchmarks.option import Groups, only

_WORDS = ("show",)


def run_cluster(words: Sequence[str], values: Mapping[str, Any]) -> ExitStatus:
    """Prints the specification of the cluster and its tasks, without starting any.

    Raises:
        UsageError: nothing names a cluster, or an impossible one; or another word than `show`.
    """
    if tuple(words) != _WORDS:
        given = f", and not '{' '.join(words)}'" if words else ""
        raise UsageError(
            f"cluster takes the word show{given}: run_bench.py cluster show --cluster_spec='worker|h0:50001'."
        )
    found = discovery.find_cluster(values, os.environ)
    if found is None:
        raise UsageError(
            "Nothing names a cluster, so a run is one process: pass --worker_hosts (and --ps_hosts), --cluster_spec, "
            "--local_cluster, --hosts or --cluster=slurm, or set TF_CONFIG."
        )
    for notice in found.notices:
        warn(notice)
    hosts = found.hosts
    if values["local_cluster"] and found.is_launcher:
        hosts = {job: ("127.0.0.1:PORT",) * len(addresses) for job, addresses in hosts.items()}
        warn("--local_cluster chooses free ports when it starts.")
    if values["output_format"] == "json":
        rows = [
            {"job": task.job, "index": task.index, "address": address, "device": task.device}
            for task, address in tasks_of(hosts).items()
        ]
        own = found.own and {"job": found.own.job, "index": found.own.index}
        say(json.dumps({"cluster": hosts, "tasks": rows, "own": own, "notices": found.notices}))
        return ExitStatus.OK
    spec = ",".join(f"{job}|{';'.join(addresses)}" for job, addresses in hosts.items())
    say(f"--cluster_spec='{spec}'")
    for line in task_table(tasks_of(hosts), found.own):
        say(line)
    return ExitStatus.OK


_FLAGS: Groups = {
    "Several processes": CLUSTER_FLAGS,
    "Variables and gradients": only(RUN_FLAGS["Variables and gradients"], "variable_update"),
    "Output": only(RUN_FLAGS["Output"], "output_format"),
}
VERB = Verb(
    "cluster",
    "show which tasks flags or the environment name",
    _FLAGS,
    lambda given, command: run_cluster(given.words, given.values),
    takes="words",
    words="show",
    known_words=_WORDS,
    details="Starts nothing. A star marks the task that this process would be, if anything names it.",
    examples=("cluster show --cluster_spec='ps|h0:50000,worker|h0:50001;h1:50001'",),
)
