"""Any process of a cluster may die or be stopped at any time: all others end soon, and say who it was."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.clusters import SMALL, StartCluster
from tests.support.commands import Records
from tests.support.rotation import rotating

# R7: all others exit within that time.
SECONDS = 60.0
LONG = (*SMALL[:-1], "--num_batches=100000", "--display_every=1")
# Phase: the flags, and what the leader says when it has begun.
PHASES = {
    "start-up": ((*SMALL[1:-1], "--model=resnet50"), "job     task"),
    "warm-up": ((*LONG, "--num_warmup_batches=100000"), "====="),
    "measuring": (LONG, "\n3\timages/sec"),
}
FIRST = [("measuring", "ps 0", "SIGKILL"), ("measuring", "worker 0", "SIGKILL"), ("measuring", "worker 1", "SIGSTOP")]
OTHERS = [
    ("measuring", "ps 0", "SIGSTOP"),
    ("measuring", "worker 0", "SIGSTOP"),
    ("measuring", "worker 1", "SIGKILL"),
    ("start-up", "worker 1", "SIGKILL"),
    ("start-up", "ps 0", "SIGSTOP"),
    ("start-up", "worker 0", "SIGKILL"),
    ("warm-up", "ps 0", "SIGKILL"),
    ("warm-up", "worker 1", "SIGSTOP"),
]


@pytest.mark.row("S1.4")
@pytest.mark.fault(
    "R7",
    "kill -9 or SIGSTOP of a parameter server, a worker or the chief while the tasks start, warm up or measure",
    survives="all others end with status 6 within 60 s and name it; so does the record",
)
@pytest.mark.slow
@rotating(("phase", "victim", "how"), [*FIRST, *OTHERS], first=len(FIRST))
def test_all_others_end_and_name_it(
    start_cluster: StartCluster, records: Records, phase: str, victim: str, how: str
) -> None:
    flags, begun = PHASES[phase]
    tasks = start_cluster(*flags, "--variable_update=parameter_server")
    tasks.wait_for("worker 0", begun)
    os.kill(tasks.processes[victim].pid, getattr(signal, how))
    statuses = tasks.statuses(SECONDS, but=victim)
    assert set(statuses.values()) == {6}
    for task in statuses:
        last = tasks.text(task).splitlines()[-4:]
        named = [line for line in last if f"{victim} ({tasks.addresses[victim]})" in line and "last heard" in line]
        assert named, f"{task}: {last}"
    if victim != "worker 0":
        (record,) = records()
        assert record["status"] == "crash" and victim in record["reason"]
        assert record["derived"]["images_per_sec"] is None, "a window that spans a failure has no rate"
        assert (len(record["measurement"]["step_seconds"]) > 0) == (phase == "measuring")
    os.kill(tasks.processes[victim].pid, signal.SIGKILL)
    tasks.processes[victim].wait(10)
    assert not tasks.listening()


@pytest.mark.fault(
    "R7",
    "SIGTERM of a parameter server a second before the training ends",
    survives="the result is kept, and the parameter server ends with status 143",
)
@pytest.mark.slow
def test_a_task_that_is_stopped_shortly_before_the_end_costs_no_result(
    start_cluster: StartCluster, records: Records
) -> None:
    flags = (*SMALL[:-1], "--num_batches=20", "--display_every=1", "--variable_update=parameter_server")
    tasks = start_cluster(*flags)
    tasks.wait_for("worker 0", "\n3\timages/sec")
    tasks.processes["ps 0"].send_signal(signal.SIGTERM)
    assert tasks.statuses(SECONDS) == {"ps 0": 143, "worker 0": 0, "worker 1": 0}
    (record,) = records()
    assert record["status"] == "ok" and record["derived"]["images_per_sec"] > 0
