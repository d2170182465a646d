"""A run as one task of a cluster: joins it, and trains or serves."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf

from benchmarks.cluster.member import ClusterTeam, hello, joined
from benchmarks.config.config import Config
from benchmarks.console import say
from benchmarks.errors import BenchError
from benchmarks.measure.run_log import RunLog
from benchmarks.process.watchdog import Watchdog
from benchmarks.run import session
from benchmarks.run.display import Display
from benchmarks.system.hardware import usable_cores
from benchmarks.topology import devices, placement
from benchmarks.topology.cluster import Cluster
from benchmarks.training import run_graph

# Where processes may differ from each other.
_OWN_AFFAIRS = ("visible_gpus",)


def train(config: Config, cluster: Cluster, log: RunLog, display: Display, watchdog: Watchdog) -> None:
    """Does this task's part of a run.

    Raises:
        BenchError: as of `take_part` and of `execution.execute`.
    """

    def work(team: ClusterTeam) -> None:
        log.started("cluster")
        session.execute(config, log, display, team)

    serves = not placement.trains(cluster, cluster.own, config.variable_update)
    take_part(config, cluster, watchdog, None if serves else work)


def take_part(config: Config, cluster: Cluster, watchdog: Watchdog, work: Callable[[ClusterTeam], None] | None) -> None:
    """Joins the cluster, works or serves, and ends together with all others.

    Args:
        config: what all tasks must agree on.
        cluster: the tasks.
        watchdog: of this process.
        work: what this task does; None if the others only use its server.

    Raises:
        ClusterError: tasks are missing, or one has gone.
        UsageError: tasks do not agree on what to run.
    """
    computes = cluster.own.has_towers
    devices.require_gpus(config.runtime)
    # A parameter server works while the workers wait, so it may have all cores.
    own_devices = run_graph.session_config(config) if computes else devices.session_config("cpu", 1)
    if computes and config.device == "cpu" and not config.num_intra_threads:
        own_devices.intra_op_parallelism_threads = _share_of_cores(cluster)
    with joined(cluster, config.variable_update, watchdog, own_devices, config.start_timeout_seconds) as team:
        try:
            messages = team.agree(hello(cluster, _must_agree(config, cluster), _devices(config, cluster)), 60.0)
            if config.output_format == "text":
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
    if not work and config.output_format == "text":
        say("The others have ended, and so does this task.")


def _share_of_cores(cluster: Cluster) -> int:
    """Returns how many threads an operation gets where workers share a host's cores: a worker's part of them.

    If each took all, they would wait for each other: on 2 cores two workers were 1.15 x as fast with one each. A worker
    that is confined to cores of its own has no need of that; 0 leaves the choice to TensorFlow.
    """
    sharing, cores = cluster.workers_on_this_host, usable_cores()
    return max(1, cores // sharing) if sharing > 1 and cores == os.cpu_count() else 0


def _devices(config: Config, cluster: Cluster) -> str:
    if not cluster.own.has_towers:
        return "CPU"
    return devices.plan(
        config.device, config.num_devices, virtual_gpus=config.virtual_gpus, shared_on=config.shared_on
    ).description


def _must_agree(config: Config, cluster: Cluster) -> dict[str, object]:
    """Returns what the tasks that compute must have in common; parameter servers take part in anything."""
    if cluster.own.job == "ps":
        return {"variable_update": config.variable_update}
    return {name: value for name, value in config.key_fields().items() if name not in _OWN_AFFAIRS} | {
        "num_batches": config.num_batches
    }
