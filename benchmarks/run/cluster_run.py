"""A run in this process, alone or as one task of a cluster, which it joins before it trains or serves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from benchmarks.callbacks.options import Evaluation, Summaries
from benchmarks.checkpoints.options import Checkpoints
from benchmarks.cluster.agreement import hello
from benchmarks.cluster.cluster_spec import Cluster, task_table, training_tasks
from benchmarks.cluster.member import Alone, ClusterTeam, joined
from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.devices import device_plan
from benchmarks.graph import run_graph
from benchmarks.machine.hardware import usable_cores
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.private_network import OPEN_PORTS
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.run import train
from benchmarks.tracing.options import Traces
from variable_mgr.catalog import PYTORCH_LOOPS

# Settings of the GPUs that a worker finds on its host.
_OF_A_HOST = ("visible_gpus", "gpu_memory_fraction")


def join_and_run(config: Config, log: RunLog, display: Display, deadlines: Deadlines) -> None:
    """Does this process' part of a run, alone or in a cluster; raises what `take_part` and `train.run_loop` raise."""
    cluster = config.processes.cluster
    if cluster is None:
        train.run_loop(config, log, display, Alone(deadlines))
        return
    training = training_tasks(cluster, config.variables.variable_update)

    def work(team: ClusterTeam) -> None:
        log.started("cluster")
        log.doubts = team.doubts
        if len(training) > 1:
            display.only_of(str(cluster.own), rate_too=log.asynchronous)
        train.run_loop(config, log, display, team)

    take_part(config, cluster, deadlines, work if cluster.own in training else None)


def take_part(
    config: Config, cluster: Cluster, deadlines: Deadlines, work: Callable[[ClusterTeam], None] | None
) -> None:
    """Joins the cluster, works or serves (without `work`), and ends together with all others.

    Raises:
        ClusterError: a task is missing, or was lost.
        UsageError: tasks do not agree on what to run.
    """
    if cluster.own == cluster.leader and not cluster.local:
        warn(f"The network is not private: {OPEN_PORTS}")
    manager, limit_seconds = config.variables.variable_update, config.processes.start_timeout_seconds
    in_pytorch = manager in PYTORCH_LOOPS  # which takes the GPUs itself
    if not in_pytorch:
        device_plan.require_gpus(config.runtime.devices)
    device_plan.set_arithmetic(config.runtime)
    # A parameter server works while the workers wait, so it may have all cores.
    own, description = Devices(), "CPU"
    server_config = device_plan.session_config(own)
    if cluster.own.has_towers:
        own = config.devices
        description = device_plan.plan(own, shared_on=config.variables.shared_on).description
        if not in_pytorch:
            server_config = run_graph.session_config(own, config.runtime)
            if not own.on_gpu and not own.num_intra_threads:
                server_config.intra_op_parallelism_threads = share_of_cores(cluster)
    with joined(cluster, manager, deadlines, server_config, limit_seconds) as team:
        agreed: Mapping[str, object] = {"variable_update": manager}  # parameter servers serve any run
        if cluster.own.job != "ps":
            fields = {**config.key_fields(), "num_batches": config.length.num_batches}
            agreed = _must_agree(fields, config.checkpoints, config.evaluation, config.summaries, config.traces)
        named = device_plan.with_hardware(description, own)
        messages = team.agree(hello(agreed, named, device_plan.gpus_of_its_own(own)))
        if config.output.output_format == "text":
            devices = {task: messages[str(task)]["devices"] for task in cluster.tasks}
            say(*task_table(cluster.tasks, cluster.own, devices))
        if work:
            work(team)
            team.end()
        else:
            team.serve()
    if not work and config.output.output_format == "text":
        say("The other tasks have ended, so this one ends too.")


def share_of_cores(cluster: Cluster) -> int:
    """Returns how many threads an operation gets if workers share a host's cores; 0 leaves the choice to TensorFlow.

    With all cores each, workers would wait for each other: on 2 cores two workers were 1.15 x as fast with one each. A
    worker confined to its own cores does not need that.
    """
    sharing, cores = cluster.workers_on_this_host, usable_cores()
    return max(1, cores // sharing) if sharing > 1 and cores == os.cpu_count() else 0


def _must_agree(
    fields: Mapping[str, object], *parts: Checkpoints | Evaluation | Summaries | Traces
) -> dict[str, object]:
    """Returns the settings that must be equal in all workers. The choice of GPUs may differ."""
    shared = {name: value for name, value in fields.items() if name not in _OF_A_HOST}
    for part in parts:
        shared |= dataclasses.asdict(part)
    return shared
