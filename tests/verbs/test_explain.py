"""The verb `explain`: how data flows in one configuration, a table of several models, and the rate to expect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.explain import known_gpus, model_table
from models import specs
from tests.support.commands import Finished, RunBench
from tests.support.nvidia import MACHINES, Machine, stand_in
from tests.support.records import fake_run
from tests.support.settings import resolve
from variable_mgr.catalog import MANAGERS

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What is said of a configuration, on a machine with any number of GPUs."""
    from benchmarks.explain import data_flow

    def explain(*flags: str) -> str:
        data_flow.show_data_flow(resolve(*flags, gpus=10**6))
        return capsys.readouterr().out

    return explain


TF_CONFIG = {
    "cluster": {"ps": ["h0:1"], "worker": ["h1:1", "h2:1", "h3:1"]},
    "task": {"type": "worker", "index": 0},
}


@pytest.mark.parametrize(
    ("words", "environment"), [(("--hosts=h1,h2,h3", "--ssh"), {}), ((), {"TF_CONFIG": json.dumps(TF_CONFIG)})]
)
def test_a_cluster_that_is_named_is_explained_and_not_the_smallest(
    run_bench: RunBench, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    of_setting = ("--device=cpu", "--model=mlp", "--print_config")
    done = run_bench("explain", "distributed_replicated", *of_setting, *words, **environment).succeeded()
    assert json.loads(done.stdout)["num_workers"] == 3


def test_it_explains_more_gpus_than_there_are(run_bench: RunBench) -> None:
    done = run_bench(
        "explain", "replicated", "--num_gpus=8", "--model=vgg16", "--all_reduce_spec=xring", "--onednn=on"
    ).succeeded()
    assert "8 copies, one per tower" in done.stdout
    assert "Weights:           32, 553 MB" in done.stdout  # 138,361,641 weights of 4 bytes
    assert "7.75 GB, 969 MB per tower" in done.stdout  # 2 * 7/8 of it each
    assert "batch of 512" in done.stdout


@pytest.mark.row("S0.7")
@pytest.mark.parametrize("manager", MANAGERS)
def test_every_manager_can_be_explained(manager: str, said: Said) -> None:
    cluster = [f"--local_cluster={smallest}"] if (smallest := MANAGERS[manager].smallest_cluster) else []
    text = said("--model=trivial", "--num_gpus=2", f"--variable_update={manager}", *cluster)
    for fact in ("Configuration:", "Weights:", "Gradients:", "Applied at step t:", "Sent per step:", "tower 0"):
        assert fact in text


@pytest.mark.row("G3.6")
@pytest.mark.parametrize(
    ("flags", "sentences"),
    [
        (
            ["--gradient_repacking=4", "--compact_gradient_transfer", "--variable_update=replicated"],
            ["packed into 4 equal chunks, sent as float16, reduced by", "rounded to float16"],
        ),
        (["--variable_update=local_sgd", "--local_sgd_steps=1"], ["as one device with a batch of 64"]),
        (["--variable_update=staged"], ["computed in step t-1 from weights read in step t-2"]),
        (["--nocross_replica_sync"], ["not plain SGD", "about N-1 updates ago", "an update per tower"]),
        (
            ["--nocross_replica_sync", "--device=cpu", "--num_gpus=1"],
            ["computed in step t itself", "as one device with a batch of 32"],
        ),
        (
            ["--model=vgg16", "--variable_update=parameter_server", "--fc_model_parallel"],
            [
                "of the dense layers each tower holds some columns",
                "those of the dense layers stay on their tower",
                "[columns]",
            ],
        ),
    ],
    ids=lambda value: value[0] if value[0].startswith("--") else "",
)
def test_what_is_done_to_gradients_and_when_they_are_applied(
    said: Said, flags: list[str], sentences: list[str]
) -> None:
    text = said("--model=trivial", "--num_gpus=2", *flags)
    for sentence in sentences:
        assert sentence in text


def test_when_dividing_dense_layers_pays(said: Said) -> None:
    vgg = ("--model=vgg16", "--num_gpus=2", "--batch_size=2", "--device=cpu", "--variable_update=replicated")
    text = said(*vgg)
    # 14,714,688 weights of convolutions are left, sent 4 times; and by 2 towers, forward and back, for 4 images 25088
    # features and twice 4096 columns, and 1001 logits of the other tower's 2 images.
    megabytes = (4 * 4 * 14_714_688 + 2 * 4 * (4 * (25088 + 2 * 4096) + 2 * 1001)) / 1e6
    assert f"--fc_model_parallel sends {megabytes:.0f} MB per step instead of 2.21 GB" in text
    assert "Divided" not in said(*vgg[:-1], "--variable_update=independent")
    small = said("--model=resnet50", "--num_gpus=8", "--batch_size=512", "--variable_update=replicated")
    assert "sends more, and would send less only up to a batch of 117" in small
    assert "columns" in said(*vgg, "--fc_model_parallel").rpartition("update")[2]


def test_one_configuration_is_bound_by_computing_or_exchanging(run_bench: RunBench) -> None:
    """5 GFLOP/s at each of two devices, and each sends and gets 79,510 gradients of 4 bytes."""
    flags = ("--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=10")
    rates = ("--peak_tflops=0.02", "--link_gbytes_per_second=0.1")
    done = run_bench("explain", "replicated", *flags, *rates).succeeded()
    assert "320 kFLOP per image, 10 per gradient byte: 0.639 ms at 15600 images/s per device" in done.stdout
    assert "6.36 ms at 0.100 GB/s (--link_gbytes_per_second)" in done.stdout
    assert "communication: exchanging takes 9.95 times as long as computing" in done.stdout
    assert "compute-bound from a batch of 100 per device" in done.stdout
    unknown = run_bench("explain", "replicated", *flags)
    assert "320 kFLOP per image, 10 per gradient byte\n" in unknown.stdout
    assert "Bound by:          unknown. No rate of computing is known of mlp: 'run_bench.py --device" in unknown.stdout
    assert "To expect:         1430 to 1570 images/s per device, 2860 to 3140 of 2 devices" in done.stdout


def test_the_busiest_process_of_a_cluster_counts(run_bench: RunBench) -> None:
    """Two workers read 318,040 bytes of weights from the parameter server, and send as many of gradients."""
    words = ("--local_cluster=ps:1,worker:2", "--model=mlp", "--link_gbytes_per_second=1", "--peak_tflops=1")
    done = run_bench("explain", *words)
    assert f"Exchange:           {4 * 0.318040:.3g} ms at 1.00 GB/s" in done.stdout


def test_of_a_large_cluster_only_the_busiest_links_are_listed(said: Said) -> None:
    """A hundred workers exchange with the four of ten parameter servers that have weights, over 800."""
    hosts = {job: ",".join(f"{job}{n}:1" for n in range(count)) for job, count in (("worker", 100), ("ps", 10))}
    cluster = (*(f"--{job}_hosts={named}" for job, named in hosts.items()), "--job_name=worker", "--task_index=0")
    text = said("--device=cpu", "--model=mlp", "--variable_update=parameter_server", *cluster)
    assert text.count(" -> ") == 16 and "784 links, each with as much or less" in text


def _rows(done: Finished) -> dict[str, Any]:
    assert done.status == 0, done.stderr
    return {row["model"]: row for row in json.loads(done.stdout)["models"]}


@pytest.mark.row("S0.8")
def test_large_dense_layers_make_a_model_communication_bound(run_bench: RunBench) -> None:
    """Sizes are of 1001 classes; on 8 devices each sends 2 x 7/8 of them. GFLOP are three times the published ones.

    The link is so slow that a batch of 64 is communication-bound for all but ResNet-50.
    """
    flags = ("--model=alexnet,resnet50,vgg16", "--num_gpus=8", "--batch_size=64", "--peak_tflops=100")
    flags += ("--assumed_mfu=0.5", "--link_gbytes_per_second=8", "--output_format=json")
    done = run_bench("explain", *flags)
    found = _rows(done)
    assert list(found) == ["alexnet", "vgg16", "resnet50"], "the most communication-bound first"
    alexnet, vgg16, resnet50 = found.values()
    assert vgg16["gradient_bytes"] == 4 * 138_361_641
    assert vgg16["sent_bytes_per_device"] == pytest.approx(2 * 7 / 8 * vgg16["gradient_bytes"])
    assert vgg16["exchange_seconds"] == pytest.approx(vgg16["sent_bytes_per_device"] / 8e9)
    assert resnet50["flops_per_image"] == pytest.approx(3 * 7.7e9, rel=0.02)
    assert resnet50["compute_seconds"] == pytest.approx(64 * resnet50["flops_per_image"] / 50e12)
    for one in (alexnet, vgg16):
        assert one["dense_share_of_parameters"] > 0.85 and one["convolution_share_of_flops"] > 0.9
    assert resnet50["convolution_share_of_parameters"] > 0.9
    assert [row["bound_by"] for row in found.values()] == ["communication", "communication", "compute"]
    for row in found.values():
        larger = row["compute_bound_from_batch"]
        at_64 = row["exchange_seconds"] / row["compute_seconds"]
        assert (larger - 1) / 64 < at_64 <= larger / 64


def test_without_rates_the_operations_per_byte_are_shown_and_commands_are_named(run_bench: RunBench) -> None:
    done = run_bench("explain", "--model=mlp,trivial", "--device=cpu")
    assert done.status == 0 and "compute-bound" not in done.stdout
    mlp, trivial = (next(line for line in done.stdout.splitlines() if line.startswith(name)) for name in ("mlp", "tri"))
    assert mlp.split()[1:7] == ["79,510", "0.318", "0.000320", "1.00", "100", "100"]
    assert trivial.split()[1] == "4,263,877"
    assert "sweep --device=cpu --num_gpus=1 --model=mlp,trivial" in done.stderr
    assert "allreduce --device=cpu --num_gpus=2" in done.stderr


def test_all_models_are_in_the_table(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_table.specs, "names", lambda: ["mlp", "trivial"])
    table, named = [run_bench("explain", f"--model={names}", "--device=cpu").stdout for names in ("all", "mlp,trivial")]
    assert table.startswith("model  ") and named == table


def test_without_flags_it_explains_what_run_would_do(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs, `run` takes the CPU, and the batch for it."""
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    explained, run = run_bench("explain", "--print_config"), run_bench("--print_config")
    assert json.loads(explained.stdout) == json.loads(run.stdout)
    assert "TF_NUM_INTEROP_THREADS=2: it sets TensorFlow's threads" in run_bench("explain", "--model=mlp").stderr


@pytest.mark.parametrize("here", ["", "A100 with MIG"])
@pytest.mark.parametrize(
    ("gpu", "words", "decided"),
    [
        ("H100", "--num_gpus=8", ("tf32", 256, "nccl")),
        ("V100", "--precision=fp16", ("fp16", 256, "nccl")),
        ("rtx 4090", "--num_gpus=8", ("tf32", 128, "psgpu")),
        ("H100", "--num_gpus=100 --link=pcie5", ("tf32", 256, "psgpu")),
        ("A100 PCIe", "--num_gpus=4 --link=nvlink3", ("tf32", 256, "nccl")),
        ("GH200", "--num_gpus=4", ("tf32", 256, "psgpu")),
    ],
)
def test_defaults_are_those_of_the_assumed_gpu_whatever_is_here(
    run_bench: RunBench,
    monkeypatch: pytest.MonkeyPatch,
    here: str,
    gpu: str,
    words: str,
    decided: tuple[str, int, str],
) -> None:
    stand_in(monkeypatch, MACHINES[here] if here else Machine(0))
    done = run_bench("explain", "replicated", f"--gpu={gpu}", "--model=resnet50_v1.5", *words.split(), "--print_config")
    made = json.loads(done.stdout)
    assert (made["precision"], made["batch_per_device"], made["modifiers"]["all_reduce_spec"]) == decided
    assert made["device"] == "gpu" and not made["notices"]
    why = made["reasons"]["all_reduce_spec"] if made["num_devices"] > 1 else ""
    assert ("links between the GPUs are not known" in why) == (gpu == "GH200")


def test_what_is_assumed_is_what_a_run_there_decides(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MACHINES["8 H100, NVSwitch"])
    words = ("--num_gpus=8", "--model=resnet50_v1.5", "--print_config")
    run = json.loads(run_bench("--variable_update=replicated", *words).stdout)
    stand_in(monkeypatch, Machine(0))
    explained = json.loads(run_bench("explain", "replicated", "--gpu=H100", *words).stdout)
    assert explained == run


def test_names_of_models_are_listed(run_bench: RunBench) -> None:
    lines = run_bench("explain", "--list_models").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == specs.names()


def test_the_rates_to_expect_are_those_that_are_published(run_bench: RunBench) -> None:
    """Lambda measured 2,791 images/s on one H100, MLPerf 56,070 on eight; each sends 2 x 7/8 of 102 MB over NVLink."""
    flags = ("--num_gpus=8", "--model=resnet50_v1.5", "--batch_size=256", "--all_reduce_spec=nccl")
    done = run_bench("explain", "replicated", "--gpu=H100", "--precision=bf16", *flags).succeeded()
    assert "57.9 ms at 4420 images/s per device\n" in done.stdout
    assert "published, geometric middle: 2,791 images/s of 1 x H100 SXM 80GB: ResNet-50, PyTorch" in done.stdout
    assert "; 56,070 images/s of 8 x H100 SXM 80GB (DGX H100): ResNet-50, MXNet" in done.stdout
    assert "0.497 ms at 360 GB/s (80% of NVIDIA H100 data sheet: NVLink 4, half of 900 GB/s)" in done.stdout
    assert "Bound by:          compute: " in done.stdout
    assert "To expect:         2780 to 7010 images/s per device, 22200 to 56100 of 8 devices" in done.stdout
    slow = run_bench("explain", "replicated", "--gpu=H100", "--link=pcie3", "--precision=fp32", *flags).stdout
    share = known_gpus.share_reached("pcie3")
    assert f"at {16 * share:.1f} GB/s ({share:.0%} of NVIDIA V100 data sheet: PCIe 3.0 x16, half of 32 GB/s)" in slow


def test_a_table_of_an_assumed_gpu_is_of_a_machine_with_eight(run_bench: RunBench) -> None:
    words = ("--model=mlp,vgg16", "--gpu=a100 pcie", "--precision=fp16", "--output_format=json", "--batch_size=448")
    done = run_bench("explain", *words)
    assert json.loads(done.stdout)["num_devices"] == 8
    vgg16 = _rows(done)["vgg16"]
    assert vgg16["images_per_sec"] == pytest.approx(1190)
    assert vgg16["source_of_link_bytes_per_sec"].endswith("of NVIDIA A100 data sheet: PCIe 4.0 x16, half of 64 GB/s")
    assert vgg16["bound_by"] == "compute"
    by_default = run_bench("explain", "--model=mlp,vgg16", "--gpu=V100").stdout
    assert "A step on 8 devices (gpu, fp32) under replicated (nccl), per device:" in by_default
    assert re.search(r"^vgg16 +128 ", by_default, re.MULTILINE), "what fits in 16 GB"


@pytest.mark.rotates
def test_the_table_of_models_of_other_code_fits_120_columns(run_bench: RunBench) -> None:
    done = run_bench("explain", "--model=mlp,trivial,keras:MobileNetV2", "--device=cpu").succeeded()
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert any(line.startswith("keras:MobileNetV2 ") for line in done.stdout.splitlines())


def test_rates_come_from_records(run_bench: RunBench, tmp_path: Any) -> None:
    """100 images take 0.5 s on one device, so on each of two that share the cores 1 s."""
    measured = fake_run(model="mlp", device="cpu", batch_per_device=100, step_seconds=0.5)
    other_loop = fake_run(model="mlp", device="cpu", batch_per_device=100, step_seconds=0.1, variable_update="pytorch")
    (tmp_path / "mine.jsonl").write_text(measured.to_json() + "\n" + other_loop.to_json() + "\n")
    flags = ("--device=cpu", f"--results={tmp_path / 'mine.jsonl'}", "--link_gbytes_per_second=0.1")
    done = run_bench("explain", "--model=mlp,trivial", *flags).succeeded()
    row = [line.split() for line in done.stdout.splitlines() if line.startswith("mlp")][1]
    # Each sends and gets 79,510 gradients of 4 bytes: 6.36 ms at 0.1 GB/s.
    assert row == ["mlp", "100", "100", "1000", "0.636", "0.100", "6.36", "0.00636", "compute", "1"]
    assert f"images/s of mlp: run {measured.identity.run_id}, batch 100" in done.stdout
