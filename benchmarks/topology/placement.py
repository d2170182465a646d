"""The devices of towers, under TensorFlow's names, in one process or in a cluster. Imports without TensorFlow."""

from __future__ import annotations

from benchmarks.topology.cluster import Cluster, Task
from variable_mgr.catalog import IN_GRAPH
from variable_mgr.place import Place

HOST = "/cpu:0"


def place(
    kind: str, count: int, *, virtual: bool = False, cluster: Cluster | None = None, manager: str = "", group: int = 1
) -> Place:
    """Names the towers that one process drives, and the devices around them.

    Args:
        kind: `cpu` or `gpu`.
        count: towers of one worker.
        virtual: whether they share physical devices.
        cluster: the tasks; None for a single process.
        manager: the variable manager, which decides which task drives which towers.
        group: see `Place`.
    """
    own = [f"/{kind}:{index}" for index in range(count)]
    if cluster is None:
        return Place(tuple(own), HOST, virtual, group=group)
    servers = tuple(Task("ps", index).device + HOST for index in range(cluster.num_ps))
    if manager in IN_GRAPH:
        workers = [Task("worker", index).device for index in range(cluster.num_workers)]
        return Place(
            tuple(worker + device for worker in workers for device in own),
            workers[0] + HOST if cluster.controller is None else cluster.leader.device + HOST,
            virtual,
            ps=servers,
            hosts=tuple(worker + HOST for worker in workers for _ in own),
            group=group,
        )
    prefix = cluster.own.device
    return Place(
        tuple(prefix + device for device in own),
        prefix + HOST,
        virtual,
        ps=servers,
        workers=cluster.num_workers,
        worker=cluster.own.index if cluster.own.has_towers else 0,
        group=group,
    )


def trains(cluster: Cluster, task: Task, manager: str) -> bool:
    """Returns whether a task takes steps of its own; the others only serve."""
    return task == cluster.leader if manager in IN_GRAPH else task.has_towers
