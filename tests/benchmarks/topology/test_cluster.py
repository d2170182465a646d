from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from benchmarks.topology.cluster import Cluster, Task

TWO_AND_TWO = Cluster(ps=("h1:1", "h2:1"), workers=("h1:22", "h2:22"), own=Task("worker", 1))


def test_a_task_is_named_for_people_and_for_tensorflow() -> None:
    assert str(Task("worker", 0)) == "worker 0"
    assert Task("ps", 3).device == "/job:ps/replica:0/task:3"
    assert sorted([Task("worker", 1), Task("worker", 0), Task("ps", 1)])[0] == Task("ps", 1)


def test_tasks_have_addresses_in_a_fixed_order() -> None:
    cluster = dataclasses.replace(TWO_AND_TWO, controller="h3:1")
    assert [str(task) for task in cluster.tasks] == ["ps 0", "ps 1", "worker 0", "worker 1", "controller 0"]
    assert list(cluster.tasks.values()) == ["h1:1", "h2:1", "h1:22", "h2:22", "h3:1"]
    assert cluster.address == "h2:22"
    assert list(cluster.peers) == [Task("ps", 0), Task("ps", 1), Task("worker", 0), Task("controller", 0)]
    assert (cluster.num_ps, cluster.num_workers) == (2, 2)


@pytest.mark.parametrize(("controller", "leader"), [(None, "worker 0"), ("h3:1", "controller 0")])
def test_the_controller_leads_if_there_is_one(controller: str | None, leader: str) -> None:
    assert str(dataclasses.replace(TWO_AND_TWO, controller=controller).leader) == leader


@pytest.mark.parametrize(
    ("addresses", "local", "hosts"),
    [
        (("h1:1", "h2:1"), False, 2),
        (("h1:1", "H1:2"), False, 1),
        (("[::1]:1", "[::2]:1"), False, 2),
        (("127.0.0.1:1", "127.0.0.2:1"), True, 1),
    ],
)
def test_hosts_are_counted_by_address(addresses: tuple[str, ...], local: bool, hosts: int) -> None:
    cluster = Cluster(ps=(), workers=addresses, own=Task("worker", 0), local=local)
    assert cluster.num_hosts == cluster.num_worker_hosts == hosts
    served = dataclasses.replace(cluster, ps=("h9:1",))
    assert (served.num_worker_hosts, served.num_hosts) == (hosts, hosts + (not local))


def test_the_spec_has_only_jobs_with_tasks_and_the_signature_has_all() -> None:
    cluster = Cluster(ps=(), workers=("h1:1",), own=Task("worker", 0))
    assert cluster.spec() == {"worker": ["h1:1"]}
    assert cluster.signature() == {"ps": [], "worker": ["h1:1"], "controller": []}


def test_all_tasks_have_the_same_signature() -> None:
    signatures = [dataclasses.replace(TWO_AND_TWO, own=task).signature() for task in TWO_AND_TWO.tasks]
    assert all(json.loads(json.dumps(signature)) == signatures[0] for signature in signatures)
    assert dataclasses.replace(TWO_AND_TWO, workers=("h2:22", "h1:22")).signature() != signatures[0]


def test_it_is_json() -> None:
    assert json.loads(json.dumps(dataclasses.asdict(TWO_AND_TWO))) == {
        "ps": ["h1:1", "h2:1"],
        "workers": ["h1:22", "h2:22"],
        "controller": None,
        "own": {"job": "worker", "index": 1},
        "local": False,
    }


def test_the_table_is_aligned_and_marks_this_process() -> None:
    assert TWO_AND_TWO.table({Task("worker", 0): "1 GPU", Task("worker", 1): "2 GPUs"}) == [
        "   job     task  address  devices",
        "   ps      0     h1:1     -",
        "   ps      1     h2:1     -",
        "   worker  0     h1:22    1 GPU",
        "*  worker  1     h2:22    2 GPUs",
    ]
    assert TWO_AND_TWO.table()[0].split() == ["job", "task", "address", "devices"]


def test_it_needs_no_tensorflow() -> None:
    script = "import sys, benchmarks.topology.discovery; assert not {'tensorflow', 'keras'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
