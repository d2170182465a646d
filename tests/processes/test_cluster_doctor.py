"""`doctor` on clusters of real processes."""

from __future__ import annotations

import itertools
import json
import socket

import pytest

from tests.support.clusters import StartCluster, local
from tests.support.commands import RunBench

CPU = ("--device=cpu", "--num_gpus=1")
SECONDS = 300.0


@pytest.mark.row("S2.6")
@pytest.mark.slow
def test_every_pair_of_a_local_cluster_is_measured(run_process: RunBench) -> None:
    done = run_process("doctor", *local("ps:1,worker:2"), *CPU, "--output_format=json").succeeded()
    found = json.loads(done.stdout)
    tasks = ["ps 0", "worker 0", "worker 1"]
    assert [task["task"] for task in found["tasks"]] == tasks
    assert len({task["pid"] for task in found["tasks"]}) == 3
    assert {task["host"] for task in found["tasks"]} == {socket.gethostname()}
    assert all(task["tensorflow"].startswith("2.") and task["devices"] for task in found["tasks"])
    assert [(link["first"], link["second"]) for link in found["links"]] == list(itertools.combinations(tasks, 2))
    rates = [link[way] for link in found["links"] for way in ("there_bytes_per_second", "back_bytes_per_second")]
    assert min(rates) > 0 and min(link["round_trip_seconds"] for link in found["links"]) > 0


@pytest.mark.rotates
def test_tasks_that_are_started_by_hand(start_cluster: StartCluster) -> None:
    tasks = start_cluster("doctor", *CPU)
    assert set(tasks.statuses(SECONDS).values()) == {0}
    lines = tasks.text("worker 0").splitlines()
    for task, address in tasks.addresses.items():
        assert any(line.startswith(f"{task} ") and address in line for line in lines)
        assert str(tasks.processes[task].pid) in tasks.text("ps 0"), "every task shows who is there"
    assert sum(line.startswith(("ps 0      worker", "worker 0  worker 1")) for line in lines) == 3
    assert "worker 0 measures" in tasks.text("worker 1") and "GB/s" not in tasks.text("worker 1")
