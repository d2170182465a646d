from __future__ import annotations

import pytest

from benchmarks.topology.cluster import Cluster, Task
from benchmarks.topology.placement import place, trains
from variable_mgr.catalog import IN_GRAPH, MANAGERS
from variable_mgr.place import Place

WORKER_0, WORKER_1 = "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"
TWO_WORKERS = Cluster(ps=("h:1", "h:2"), workers=("h:3", "h:4"), own=Task("worker", 1))
WITH_CONTROLLER = Cluster(ps=(), workers=("h:3", "h:4"), controller="h:5", own=Task("controller", 0))


def test_one_process_names_its_own_devices() -> None:
    here = place("gpu", 2)
    assert here == Place(("/gpu:0", "/gpu:1"), "/cpu:0")
    assert not here.in_cluster
    assert here.towers_in_total == 2
    assert place("cpu", 1, virtual=True, group=7) == Place(("/cpu:0",), "/cpu:0", True, group=7)


def test_a_worker_names_its_own_task_and_the_parameter_servers() -> None:
    here = place("gpu", 2, cluster=TWO_WORKERS, manager="parameter_server", group=3)
    assert here == Place(
        (f"{WORKER_1}/gpu:0", f"{WORKER_1}/gpu:1"),
        f"{WORKER_1}/cpu:0",
        ps=("/job:ps/replica:0/task:0/cpu:0", "/job:ps/replica:0/task:1/cpu:0"),
        workers=2,
        worker=1,
        group=3,
    )
    assert here.in_cluster
    assert here.towers_in_total == 4


def test_a_parameter_server_plans_as_if_it_were_the_first_worker() -> None:
    server = Cluster(ps=TWO_WORKERS.ps, workers=TWO_WORKERS.workers, own=Task("ps", 1))
    assert place("cpu", 1, cluster=server, manager="parameter_server").worker == 0


def test_one_client_names_the_towers_of_all_workers() -> None:
    here = place("cpu", 2, cluster=TWO_WORKERS, manager="distributed_all_reduce")
    assert here.towers == (f"{WORKER_0}/cpu:0", f"{WORKER_0}/cpu:1", f"{WORKER_1}/cpu:0", f"{WORKER_1}/cpu:1")
    assert here.host == f"{WORKER_0}/cpu:0"
    assert here.hosts == (f"{WORKER_0}/cpu:0",) * 2 + (f"{WORKER_1}/cpu:0",) * 2
    assert here.by_worker() == {f"{WORKER_0}/cpu:0": [*here.towers[:2]], f"{WORKER_1}/cpu:0": [*here.towers[2:]]}
    assert here.in_cluster
    assert (here.workers, here.towers_in_total) == (1, 4)


def test_one_worker_whose_towers_another_task_drives_is_a_cluster() -> None:
    alone = Cluster(ps=(), workers=("h:3",), own=Task("worker", 0))
    assert place("cpu", 1, cluster=alone, manager="distributed_all_reduce").in_cluster
    assert not place("cpu", 1, cluster=alone, manager="collective_all_reduce").in_cluster


def test_a_controller_is_the_host() -> None:
    here = place("gpu", 1, cluster=WITH_CONTROLLER, manager="distributed_all_reduce")
    assert here.host == "/job:controller/replica:0/task:0/cpu:0"
    assert here.towers == (f"{WORKER_0}/gpu:0", f"{WORKER_1}/gpu:0")
    assert here.hosts == (f"{WORKER_0}/cpu:0", f"{WORKER_1}/cpu:0")


@pytest.mark.parametrize("manager", MANAGERS)
def test_all_tasks_plan_the_same_for_a_manager_that_one_client_runs(manager: str) -> None:
    places = {
        place("cpu", 1, cluster=Cluster(ps=(), workers=("h:3", "h:4"), own=Task("worker", index)), manager=manager)
        for index in range(2)
    }
    assert len(places) == (1 if manager in IN_GRAPH else 2)


def trainers(cluster: Cluster, manager: str) -> list[str]:
    return [str(task) for task in cluster.tasks if trains(cluster, task, manager)]


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_worker_trains_unless_one_client_drives_them(manager: str) -> None:
    assert trainers(TWO_WORKERS, manager) == (["worker 0"] if manager in IN_GRAPH else ["worker 0", "worker 1"])


def test_where_there_is_a_controller_it_is_the_client() -> None:
    assert trainers(WITH_CONTROLLER, "distributed_all_reduce") == ["controller 0"]
