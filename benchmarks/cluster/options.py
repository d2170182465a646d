"""The processes of a run, and the flags that name them. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.cluster.cluster_spec import JOBS, LAST_PORT, Cluster
from benchmarks.cluster.discovery import DEFAULT_SERVER_PORT
from benchmarks.option import Flag, decided, filled, flags_of, option
from benchmarks.process.deadlines import PREPARATION_FACTOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """The part of a configuration on processes.

    Attributes:
        num_workers, num_ps, num_hosts: of the cluster; 1, 0 and 1 for a single process.
        cluster: its tasks and their addresses; None for a single process.
    """

    num_workers: int = 1
    num_ps: int = 0
    num_hosts: int = 1
    cluster: Cluster | None = decided(default=None, in_key=False)
    start_timeout_seconds: float = option(
        "maximum time for all processes to start", default=300.0, in_key=False, above=0
    )
    step_timeout_seconds: float = option(
        "end the run with status 124 if a step takes longer", default=600.0, in_key=False, above=0
    )

    @property
    def leads(self) -> bool:
        """Whether this process saves the record: it is alone, or the leader of its cluster."""
        return self.cluster is None or self.cluster.own == self.cluster.leader

    @property
    def preparation_seconds(self) -> float:
        """How long building a graph may take, and the first step."""
        return PREPARATION_FACTOR * self.step_timeout_seconds


CLUSTER_FLAGS = (
    Flag("local_cluster", str, "start a cluster on this host, such as ps:1,worker:2; also ps=1,worker=2"),
    Flag(
        "private_network",
        bool,
        "run a --local_cluster in a network that no other host can reach; fails where that is impossible",
        default=True,
    ),
    Flag(
        "hosts",
        str,
        "hosts of the cluster; with --ssh: start a worker on each, and a parameter server if the manager needs "
        "them; with --cluster=mpi: the hosts of the ranks, in rank order",
    ),
    Flag(
        "ssh",
        bool,
        "start the tasks on --hosts by ssh; needs the same directory and Python there, and a login without a password",
    ),
    Flag("job_name", str, "job of this process; for `server`, any job of --cluster_spec", known=JOBS, unset=""),
    Flag("task_index", int, "index of this process in its job", at_least=0),
    Flag("task_id", int, "the same as --task_index", same_as="task_index"),
    Flag("ps_hosts", str, "addresses of the parameter servers, such as host_0:50000,host_1:50000", unset=""),
    Flag("worker_hosts", str, "addresses of the workers, such as host_0:50001,host_1:50001", unset=""),
    Flag("controller_host", str, "address of the client that drives all towers, if it is not a worker", unset=""),
    Flag("cluster_spec", str, "all addresses in one flag, such as 'ps|h0:50000,worker|h0:50001;h1:50001'"),
    Flag(
        "cluster",
        str,
        "launcher of the tasks; slurm: take addresses and job from srun; mpi: take the rank from mpirun, and the "
        "addresses from --hosts or --worker_hosts unless all ranks are on one host",
        ("slurm", "mpi"),
        default="TF_CONFIG, if set",
    ),
    Flag("num_ps", int, "number of parameter servers among the tasks of --cluster", default=0, at_least=0),
    Flag(
        "server_port",
        int,
        "port of the first task of each host, with --cluster or --hosts",
        default=DEFAULT_SERVER_PORT,
        at_least=1,
        at_most=LAST_PORT,
    ),
    Flag("server_protocol", str, "protocol between processes", ("grpc",), default="grpc"),
    *flags_of(Processes),
)


def decide(given: Mapping[str, Any], cluster: Cluster | None) -> Processes:
    """Returns the processes of a run from flag values by name, of which None is not given."""
    sizes = {name: getattr(cluster, name) for name in ("num_workers", "num_ps", "num_hosts")} if cluster else {}
    return filled(Processes, given, cluster=cluster, **sizes)
