"""What only a GPU can show. Skipped, with a reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hardware import gpu_inventory
from tests.support.commands import USER_ENVIRONMENT, Finished
from variable_mgr.catalog import IN_ONE_PROCESS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpu_inventory(USER_ENVIRONMENT).gpus, reason="there is no NVIDIA GPU that may be used"),
]


@pytest.mark.parametrize("model", ["alexnet", "resnet50"])
@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_two_virtual_gpus_train_on_data_under_strict_placement(
    run_process: Callable[..., Finished], fake_imagenet: Path, manager: str, model: str
) -> None:
    done = run_process(
        "--num_gpus=2", "--virtual_gpus=2", "--gpu_memory_frac=0.5", f"--variable_update={manager}", f"--model={model}",
        f"--data_dir={fake_imagenet}", "--batch_size=4", "--num_batches=5",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert "2 virtual GPUs" in done.stdout
