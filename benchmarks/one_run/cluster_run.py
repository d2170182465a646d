"""A run as one task of a cluster: joins it, then trains or serves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import tensorflow as tf

from benchmarks.cluster.member import ClusterTeam, hello, joined
from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.errors import BenchError
from benchmarks.measure.run_log import RunLog
from benchmarks.one_run import graph, session
from benchmarks.one_run.display import Display
from benchmarks.process.private_network import OPEN_PORTS
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.process.watchdog import Watchdog
from benchmarks.system.hardware import usable_cores
from benchmarks.topology import devices, placement
from benchmarks.topology.cluster import Cluster

# Settings of the GPUs that a worker finds on its host.
_OF_A_HOST = ("visible_gpus", "gpu_memory_fraction")


def train(config: Config, cluster: Cluster, log: RunLog, display: Display, watchdog: Watchdog) -> None:
    """Does this task's part of a run; raises what `take_part` and `session.execute` raise."""
    training = [task for task in cluster.tasks if placement.trains(cluster, task, config.variables.variable_update)]

    def work(team: ClusterTeam) -> None:
        log.started("cluster")
        if len(training) > 1:
            display.only_of(str(cluster.own), rate_too=log.asynchronous)
        session.execute(config, log, display, team)

    take_part(config, cluster, watchdog, work if cluster.own in training else None)


def take_part(config: Config, cluster: Cluster, watchdog: Watchdog, work: Callable[[ClusterTeam], None] | None) -> None:
    """Joins the cluster, works or serves (without `work`), and ends together with all others.

    Raises:
        ClusterError: a task is missing, or was lost.
        UsageError: tasks do not agree on what to run.
    """
    computes = cluster.own.has_towers
    if cluster.own == cluster.leader and not cluster.local:
        warn(f"The network is not private: {OPEN_PORTS}")
    devices.require_gpus(config.runtime.devices)
    devices.set_arithmetic(config.runtime)
    # A parameter server works while the workers wait, so it may have all cores.
    own_devices = graph.session_config(config) if computes else devices.session_config(Devices())
    if computes and config.devices.device == "cpu" and not config.devices.num_intra_threads:
        own_devices.intra_op_parallelism_threads = _share_of_cores(cluster)
    description = "CPU"
    if computes:
        description = devices.plan(config.devices, shared_on=config.variables.shared_on).description
    with joined(
        cluster, config.variables.variable_update, watchdog, own_devices, config.processes.start_timeout_seconds
    ) as team:
        try:
            messages = team.agree(hello(_must_agree(config, cluster), description), 60.0)
            if config.output.output_format == "text":
                for line in cluster.table({task: messages[str(task)]["devices"] for task in cluster.tasks}):
                    say(line)
            if work:
                work(team)
                team.end()
            else:
                team.serve()
        except tf.errors.OpError as error:
            raise team.explain(error) or error from error
        except BenchError as error:
            team.leave_message(error)
            raise
    if not work and config.output.output_format == "text":
        say("The other tasks have ended, so this one ends too.")


def _share_of_cores(cluster: Cluster) -> int:
    """Returns how many threads an operation gets if workers share a host's cores; 0 leaves the choice to TensorFlow.

    With all cores each, workers would wait for each other: on 2 cores two workers were 1.15 x as fast with one each. A
    worker confined to its own cores does not need that.
    """
    sharing, cores = cluster.workers_on_this_host, usable_cores()
    return max(1, cores // sharing) if sharing > 1 and cores == os.cpu_count() else 0


def _must_agree(config: Config, cluster: Cluster) -> dict[str, object]:
    """Returns the settings that all tasks that compute must share, which see GPUs of their own; servers serve any."""
    if cluster.own.job == "ps":
        return {"variable_update": config.variables.variable_update}
    shared = {name: value for name, value in config.key_fields().items() if name not in _OF_A_HOST}
    parts = (config.checkpoints, config.evaluation, config.summaries)
    callbacks = {name: value for part in parts for name, value in dataclasses.asdict(part).items()}
    callbacks = {name: list(v) if isinstance(v, tuple) else v for name, v in callbacks.items()}
    return {**shared, **callbacks, "num_batches": config.length.num_batches}
