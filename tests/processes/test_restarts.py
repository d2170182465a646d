"""A worker of a local cluster is killed in training: all tasks start again, and the training has all of its steps."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import tensorflow as tf

from tests.support.clusters import SMALL, local, measuring
from tests.support.commands import Records
from tests.support.rotation import rotating

FLAGS = (*SMALL, "--num_batches=100", "--train_dir=train", "--save_model_steps=2", "--max_restarts=1")


@pytest.mark.row("S1.4")
@pytest.mark.fault(
    "R10",
    "kill -9 of worker 1 of a cluster with --max_restarts=1",
    survives="the cluster starts again from its checkpoint, and the training has all of its steps",
)
@pytest.mark.slow
@rotating(
    ("tasks", "manager"), [("worker:2", "collective_all_reduce"), ("ps:1,worker:2", "distributed_replicated")], first=1
)
def test_a_killed_worker_is_started_again(tmp_path: Path, records: Records, tasks: str, manager: str) -> None:
    flags = (*FLAGS, *local(tasks), f"--variable_update={manager}", "--display_every=1")
    command = measuring(tmp_path, *flags)
    with command:
        (worker,) = (
            process
            for process in psutil.Process(command.pid).children(recursive=True)
            if {"--job_name=worker", "--task_index=1"} <= set(process.cmdline())
        )
        worker.kill()
        assert command.stdout is not None
        output = command.stdout.read()
    assert command.returncode == 0, output
    failed, record = records()
    assert failed["status"] == "crash"
    measurement = record["measurement"]
    assert (record["status"], measurement["restarts"]) == ("ok", 1)
    assert any("worker 1 ended by signal 9 (Killed)" in warning for warning in record["warnings"])
    trained = measurement["steps_before"] + len(measurement["warmup_losses"]) + len(measurement["losses"])
    assert 0 < measurement["steps_before"] and trained == 3 + 100
    assert tf.train.latest_checkpoint(str(tmp_path / "train")).endswith(f"model.ckpt-{trained}")
