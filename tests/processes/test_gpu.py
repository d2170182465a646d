"""What only a GPU can show. Skipped, with a reason, where there is none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.machine.hardware import gpu_inventory
from tests.support.commands import USER_ENVIRONMENT, Records, RunBench, losses_of
from variable_mgr.catalog import IN_ONE_PROCESS

COUNT = len(gpu_inventory(USER_ENVIRONMENT).gpus)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not COUNT, reason="there is no NVIDIA GPU that may be used")]

VIRTUAL = ("--num_gpus=2", "--virtual_gpus=2", "--gpu_memory_frac=0.5")
SEVERAL = pytest.mark.skipif(COUNT < 2, reason="there is no NVIDIA GPU for a second tower")
TWO = [VIRTUAL, pytest.param(("--num_gpus=2",), marks=SEVERAL)]  # NCCL needs whole ones


@pytest.mark.parametrize("model", ["alexnet", "resnet50"])
@pytest.mark.parametrize("manager", IN_ONE_PROCESS)
def test_two_virtual_gpus_train_on_data_under_strict_placement(
    run_process: RunBench, records: Records, fake_imagenet: Path, manager: str, model: str
) -> None:
    done = run_process(
        *VIRTUAL, f"--variable_update={manager}", f"--model={model}", f"--data_dir={fake_imagenet}", "--batch_size=4",
        "--num_batches=8",
    )  # fmt: skip
    assert done.status == 0, done.stderr
    assert "2 virtual GPUs" in done.stdout
    (record,) = records()
    assert (record["status"], record["config"]["device"], record["config"]["data_format"]) == ("ok", "gpu", "NCHW")
    measured = record["measurement"]
    assert len(measured["losses"]) == 8 and np.isfinite(measured["losses"]).all()
    assert not measured["replica_drift"], "towers that exchange gradients hold equal weights"
    assert 0 < record["measurement"]["peak_gpu_memory_bytes"] < record["derived"]["gpu_memory_reserved_bytes"]


@pytest.mark.parametrize("devices", TWO)
def test_every_manager_is_right_on_gpus(run_process: RunBench, devices: Sequence[str]) -> None:
    done = run_process("verify", *devices).succeeded()
    assert "FAIL" not in done.stdout


@pytest.mark.row("G3.3")
@pytest.mark.parametrize("devices", TWO)
def test_reductions_of_gpus_are_right(run_process: RunBench, records: Records, devices: Sequence[str]) -> None:
    run_process("allreduce", *devices, "--max_bytes=1M").succeeded()
    measured = [record for record in records() if record["status"] == "ok"]
    assert measured and all(record["measurement"]["largest_error"] < 1e-5 for record in measured)


def test_kernels_have_the_types_of_their_operations(run_process: RunBench, tmp_path: Path) -> None:
    done = run_process("--num_gpus=1", "--model=resnet20", "--num_batches=5", "--trace_file=trace.json")
    assert done.status == 0 and "no kernels" not in done.stderr, done.stderr
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    types = Counter(event["name"] for event in written if event["ph"] == "X")
    assert types["Conv2DBackpropFilter"] > 10, types


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("lenet", ["--precision=fp16"]),
        ("lenet", ["--precision=bf16"]),
        ("lenet", ["--xla=jit"]),
        ("resnet20", []),
        ("resnet20", ["--xla=jit"]),
    ],
)
def test_losses_are_those_of_a_cpu(run_process: RunBench, records: Records, model: str, flags: Sequence[str]) -> None:
    """Of later steps, too: with wrong gradients the first loss is still right."""
    same = (f"--model={model}", "--batch_size=8", "--num_batches=10", "--num_warmup_batches=3", "--data_format=NHWC")
    assert run_process("--device=cpu", *same).status == 0
    run_process("--num_gpus=1", *same, *flags).succeeded()
    on_cpu, on_gpu = map(losses_of, records())
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=0.03)


def test_without_flags_clocks_have_time_to_settle(run_process: RunBench, records: Records) -> None:
    done = run_process("--num_gpus=1", "--model=resnet20").succeeded()
    (record,) = records()
    steps = record["measurement"]["step_seconds"]
    assert f"\nMeasuring {len(steps)} steps: 20 s, but 100 to 20,000 steps" in done.stdout
    assert len(steps) >= 100 and sum(steps) > 15, "the steps of the warm-up may have been slower"
    assert record["config"]["precision"] in ("fp32", "tf32")


def test_workers_that_share_a_gpu_have_room(run_process: RunBench, records: Records) -> None:
    split = ("--num_gpus=2", "--virtual_gpus=2", "--model=resnet20", "--num_batches=5")
    run_process("--local_cluster=worker:2", "--variable_update=collective_all_reduce", *split).succeeded()
    (record,) = records()
    assert record["config"]["gpu_memory_fraction"] == 0.45 and not record["measurement"]["replica_drift"]


@SEVERAL
@pytest.mark.parametrize("words", [(f"--num_gpus={max(COUNT, 2)}",), ("--num_gpus=1", "--local_cluster=worker:2")])
@pytest.mark.parametrize("manager", ["collective_all_reduce", "local_sgd"])
def test_nccl_trains_in_one_process_and_between_processes(
    run_process: RunBench, records: Records, manager: str, words: tuple[str, ...]
) -> None:
    done = run_process(f"--variable_update={manager}", "--all_reduce_spec=nccl", *words, "--model=resnet20").succeeded()
    assert "reduced by nccl" in done.stdout
    (record,) = records()
    assert record["status"] == "ok" and not record["measurement"]["replica_drift"]


@pytest.mark.row("S0.11")
def test_a_limit_of_memory_is_kept(run_process: RunBench, records: Records) -> None:
    done = run_process("--num_gpus=1", "--model=trivial", "--gpu_memory_limit_mb=3000", "--num_batches=5").succeeded()
    (record,) = records()
    # The driver counts the context and the libraries, too, which have no limit.
    assert 0 < record["measurement"]["peak_gpu_memory_bytes"] <= 3000 * 2**20
    done = run_process("--num_gpus=1", "--model=trivial", "--gpu_memory_limit_mb=99999999", "--num_batches=5")
    assert done.status == 2 and "--gpu_memory_limit_mb=99999999: a GPU here has" in done.stderr
