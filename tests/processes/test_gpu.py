"""What only a GPU can show. Skipped, with a reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.system.hardware import gpu_inventory
from tests.support.commands import USER_ENVIRONMENT, Finished
from variable_mgr.catalog import IN_ONE_PROCESS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_inventory(USER_ENVIRONMENT).gpus, reason="there is no NVIDIA GPU that may be used"),
]


VIRTUAL = ("--num_gpus=2", "--virtual_gpus=2", "--gpu_memory_frac=0.5")
Records = Callable[[], list[dict[str, Any]]]


@pytest.mark.parametrize("model", ["alexnet", "resnet50"])
@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_two_virtual_gpus_train_on_data_under_strict_placement(
    run_process: Callable[..., Finished], records: Records, fake_imagenet: Path, manager: str, model: str
) -> None:
    done = run_process(
        *VIRTUAL, f"--variable_update={manager}", f"--model={model}", f"--data_dir={fake_imagenet}", "--batch_size=4",
        "--num_batches=5",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert "2 virtual GPUs" in done.stdout
    (record,) = records()
    assert (record["status"], record["config"]["device"], record["config"]["data_format"]) == ("ok", "gpu", "NCHW")
    measured = record["measurement"]
    assert len(measured["losses"]) == 5 and np.isfinite(measured["losses"]).all()
    assert not measured["replica_drift"], "towers that exchange gradients hold equal weights"
    assert record["derived"]["peak_gpu_memory_bytes"] > 0


def test_every_manager_is_right_on_gpus(run_process: Callable[..., Finished]) -> None:
    done = run_process("verify", *VIRTUAL)
    assert done.status == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout


def test_reductions_of_gpus_are_right(run_process: Callable[..., Finished], records: Records) -> None:
    done = run_process("allreduce", *VIRTUAL, "--max_bytes=1M")
    assert done.status == 0, done.stdout + done.stderr
    measured = [record for record in records() if record["status"] == "ok"]
    assert measured and all(record["measurement"]["largest_error"] < 1e-5 for record in measured)


@pytest.mark.skipif(len(gpu_inventory(USER_ENVIRONMENT).gpus) < 2, reason="there is no NVIDIA GPU for a second tower")
@pytest.mark.parametrize("words", [("--num_gpus=2",), ("--num_gpus=1", "--local_cluster=worker:2")])
@pytest.mark.parametrize("manager", ["collective_all_reduce", "local_sgd"])
def test_nccl_trains_in_one_process_and_between_processes(
    run_process: Callable[..., Finished], records: Records, manager: str, words: tuple[str, ...]
) -> None:
    done = run_process(f"--variable_update={manager}", "--all_reduce_spec=nccl", *words, "--model=resnet20")
    assert done.status == 0, done.stdout + done.stderr
    assert "reduced by nccl" in done.stdout
    (record,) = records()
    assert record["status"] == "ok" and not record["measurement"]["replica_drift"]


def test_a_limit_of_memory_is_kept(run_process: Callable[..., Finished], records: Records) -> None:
    done = run_process("--num_gpus=1", "--model=trivial", "--gpu_memory_limit_mb=3000", "--num_batches=5")
    assert done.status == 0, done.stderr
    (record,) = records()
    assert 0 < record["derived"]["peak_gpu_memory_bytes"] <= 3000 * 2**20
    done = run_process("--num_gpus=1", "--model=trivial", "--gpu_memory_limit_mb=99999999", "--num_batches=5")
    assert done.status == 2 and "--gpu_memory_limit_mb=99999999: a GPU here has" in done.stderr
