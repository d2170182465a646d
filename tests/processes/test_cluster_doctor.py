"""`doctor` on clusters of real processes, and whether its numbers are of what they claim to be."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys

import pytest

from tests.processes import linked_workers
from tests.support.clusters import StartCluster, local
from tests.support.commands import ROOT, USER_ENVIRONMENT, RunBench

CPU = ("--device=cpu", "--num_gpus=1")
SECONDS = 300.0


@pytest.mark.slow
def test_what_two_workers_measure_is_what_it_claims_to_be() -> None:
    """Under a clock that counts bytes."""
    command = [sys.executable, "-m", "tests.processes.linked_workers"]
    done = subprocess.run(command, cwd=ROOT, env=USER_ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout)
    round_trip, *rates = measured["link"]
    assert rates == pytest.approx(linked_workers.RATES, rel=0.01)
    assert 0 < round_trip < 4096 / min(linked_workers.RATES), "a few hundred bytes, and no tensor"
    for times, sent in zip(linked_workers.CARRIED_TIMES, measured["sent_bytes"], strict=True):
        assert 0 <= sent - times * linked_workers.CARRIED_BYTES < 2**20, "the whole tensor crosses in that direction"
    assert measured["additions"] == measured["received"] == 2 * linked_workers.ROUND_TRIPS, "every hop is taken"


@pytest.mark.row("S2.6")
@pytest.mark.slow
def test_every_pair_of_a_local_cluster_is_measured(run_process: RunBench) -> None:
    done = run_process("doctor", *local("ps:1,worker:2"), *CPU, "--output_format=json")
    assert done.status == 0, done.stderr
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
