from __future__ import annotations

import dataclasses

import pytest

from benchmarks.cluster.cluster_spec import Cluster, Task, place, task_table, training_tasks
from variable_mgr.catalog import IN_GRAPH, MANAGERS
from variable_mgr.place import Place

TWO_AND_TWO = Cluster(ps=("h1:1", "h2:1"), workers=("h1:22", "h2:22"), own=Task("worker", 1))


def test_tasks_have_addresses_in_a_fixed_order() -> None:
    cluster = dataclasses.replace(TWO_AND_TWO, controller="h3:1")
    assert [str(task) for task in cluster.tasks] == ["ps 0", "ps 1", "worker 0", "worker 1", "controller 0"]
    assert list(cluster.tasks.values()) == ["h1:1", "h2:1", "h1:22", "h2:22", "h3:1"]
    assert cluster.address == "h2:22"
    assert list(cluster.peers) == [Task("ps", 0), Task("ps", 1), Task("worker", 0), Task("controller", 0)]
    assert (cluster.num_ps, cluster.num_workers) == (2, 2)
    assert (str(cluster.leader), str(TWO_AND_TWO.leader)) == ("controller 0", "worker 0")


@pytest.mark.parametrize(
    ("addresses", "local", "hosts"),
    [
        (("h1:1", "h2:1"), False, 2),
        (("h1:1", "H1:2"), False, 1),
        (("h1.:1", "h1:2"), False, 1),
        (("localhost:1", "127.0.0.1:2"), False, 1),
        (("127.0.0.2:1", "ip6-localhost:2"), False, 1),
        (("[FE80::0:1%eth0]:1", "[fe80::1%eth0]:2"), False, 1),
        (("[fe80::1%eth0]:1", "[fe80::1%eth1]:2"), False, 2),
        (("[::1]:1", "[::2]:1"), False, 2),
        (("127.0.0.1:1", "127.0.0.2:1"), True, 1),
    ],
)
def test_hosts_are_counted_by_address(addresses: tuple[str, ...], local: bool, hosts: int) -> None:
    cluster = Cluster(ps=(), workers=addresses, own=Task("worker", 0), local=local)
    assert cluster.num_hosts == cluster.num_worker_hosts == hosts
    assert cluster.is_alone_on_this_host == (hosts == 2)
    served = dataclasses.replace(cluster, ps=("h9:1",))
    assert (served.num_worker_hosts, served.num_hosts) == (hosts, hosts + (not local))


def test_the_spec_has_only_jobs_with_tasks() -> None:
    assert Cluster(ps=(), workers=("h1:1",), own=Task("worker", 0)).spec() == {"worker": ["h1:1"]}


def test_the_table_is_aligned_and_marks_this_process() -> None:
    devices = {Task("worker", 0): "1 GPU", Task("worker", 1): "2 GPUs"}
    assert task_table(TWO_AND_TWO.tasks, TWO_AND_TWO.own, devices) == [
        "   job     task  address  devices",
        "   ps      0     h1:1     -",
        "   ps      1     h2:1     -",
        "   worker  0     h1:22    1 GPU",
        "*  worker  1     h2:22    2 GPUs",
    ]
    names = task_table(TWO_AND_TWO.tasks, None)
    assert names[0].split() == ["job", "task", "address", "name", "in", "TensorFlow"]
    assert names[-1].split() == ["worker", "1", "h2:22", "/job:worker/replica:0/task:1"]


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
    server = dataclasses.replace(TWO_WORKERS, own=Task("ps", 1))
    assert place("cpu", 1, cluster=server, manager="parameter_server").worker == 0, "as if it were the first worker"


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


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_worker_trains_unless_one_client_drives_them(manager: str) -> None:
    workers = [Task("worker", 0), Task("worker", 1)]
    assert training_tasks(TWO_WORKERS, manager) == (workers[:1] if manager in IN_GRAPH else workers)
    assert manager not in IN_GRAPH or training_tasks(WITH_CONTROLLER, manager) == [Task("controller", 0)]
