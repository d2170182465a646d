"""Processes that train together in PyTorch: they agree with the suite's own, and end when one is lost."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.clusters import SMALL, StartCluster, local
from tests.support.commands import Records, RunBench, losses_of

pytest.importorskip("torch")
SECONDS = 60.0


@pytest.mark.slow
def test_losses_are_those_of_collective_all_reduce(run_process: RunBench, records: Records) -> None:
    flags = ("--device=cpu", "--model=alexnet_cifar10", "--batch_size=4", "--num_warmup_batches=1", "--num_batches=4")
    for loop in ("collective_all_reduce", "pytorch_ddp"):
        run_process(*flags, *local("worker:2"), f"--variable_update={loop}").succeeded()
    ours, theirs = records()
    assert len(set(losses_of(ours))) == 5
    assert losses_of(theirs) == pytest.approx(losses_of(ours), rel=1e-3)
    theirs = theirs["measurement"]
    assert theirs["replica_drift"] == 0.0
    assert theirs["images_per_step"] == 8 and len(theirs["worker_step_seconds"]) == 2


@pytest.mark.slow
def test_all_others_end_and_name_the_lost_worker(start_cluster: StartCluster, records: Records) -> None:
    flags = (*SMALL[:-1], "--num_batches=100000", "--display_every=1", "--variable_update=pytorch_ddp")
    tasks = start_cluster(*flags, ps=0, workers=2)
    tasks.wait_for("worker 0", "\n3\timages/sec")
    os.kill(tasks.processes["worker 1"].pid, signal.SIGKILL)
    assert set(tasks.statuses(SECONDS, but="worker 1").values()) == {6}
    assert f"worker 1 ({tasks.addresses['worker 1']})" in tasks.text("worker 0")
    (record,) = records()
    assert record["status"] != "ok" and "worker 1" in record["reason"]
