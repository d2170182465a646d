from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.explain import model_table
from tests.support.commands import Finished
from tests.support.records import fake_run

RunBench = Callable[..., Finished]
NAMED = ("alexnet", "resnet50", "vgg16")


@pytest.fixture
def rows(run_bench: RunBench) -> Callable[..., dict[str, Any]]:
    """Returns the rows of `models` by model, in their order."""

    def run(*words: str) -> dict[str, Any]:
        done = run_bench("models", *words, "--output_format=json")
        assert done.status == 0, done.stderr
        return {row["model"]: row for row in json.loads(done.stdout)["models"]}

    return run


def test_large_dense_layers_make_a_model_communication_bound(rows: Callable[..., dict[str, Any]]) -> None:
    """Sizes are of 1001 classes; on 8 devices each sends 2 x 7/8 of them. GFLOP are three times the published ones.

    The link is so slow that a batch of 64 is communication-bound for all but ResNet-50.
    """
    rates = ("--peak_tflops=100", "--link_gbytes_per_second=8")
    found = rows(f"--model={','.join(NAMED)}", "--num_gpus=8", "--batch_size=64", *rates)
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
    assert alexnet["compute_bound_from_batch"] > 5 * vgg16["compute_bound_from_batch"]


def test_without_rates_the_operations_per_byte_are_shown_and_commands_are_named(run_bench: RunBench) -> None:
    done = run_bench("models", "mlp", "trivial", "--device=cpu")
    assert done.status == 0 and "compute-bound" not in done.stdout
    mlp, trivial = (next(line for line in done.stdout.splitlines() if line.startswith(name)) for name in ("mlp", "tri"))
    assert mlp.split()[1:7] == ["79,510", "0.318", "0.00032", "1", "100", "100"]
    assert trivial.split()[1] == "4,263,877"
    assert "sweep --device=cpu --num_gpus=1 --model=mlp,trivial" in done.stderr
    assert "allreduce --device=cpu --num_gpus=2" in done.stderr


def test_counts_are_kept_for_the_same_question(
    run_bench: RunBench, rows: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model for another manager, or on other devices may send something else, and is counted again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("mlp", "--device=cpu", "--num_gpus=2")
    first = rows(*words)
    counted: list[str] = []
    count = model_table._count
    monkeypatch.setattr(
        model_table, "_count", lambda workload, *rest: counted.append(workload.model) or count(workload, *rest)
    )
    assert rows(*words) == first and not counted
    rows("mlp", "--device=cpu", "--num_gpus=3")
    assert counted == ["mlp"]
    (held,) = (tmp_path / "cache" / "cnn_bench").glob("model_counts.json")
    held.write_text(held.read_text().replace("sent_bytes", "bytes"))
    done = run_bench("models", *words)
    assert done.status == 0 and "counts of models" in done.stderr and counted == ["mlp", "mlp"]


@pytest.mark.rotates
def test_the_table_of_models_of_other_code_fits_120_columns(run_bench: RunBench) -> None:
    done = run_bench("models", "mlp", "trivial", "keras:MobileNetV2", "--device=cpu")
    assert done.status == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert any(line.startswith("keras:MobileNetV2 ") for line in done.stdout.splitlines())


def test_rates_come_from_records(run_bench: RunBench, tmp_path: Any) -> None:
    """100 images take 0.5 s on one device, so on each of two that share the cores 1 s."""
    measured = fake_run(model="mlp", device="cpu", batch_per_device=100, step_seconds=0.5)
    (tmp_path / "mine.jsonl").write_text(measured.to_json() + "\n")
    flags = ("--device=cpu", f"--results={tmp_path / 'mine.jsonl'}", "--link_gbytes_per_second=0.1")
    done = run_bench("models", "mlp", *flags)
    assert done.status == 0, done.stderr
    row = [line.split() for line in done.stdout.splitlines() if line.startswith("mlp")][1]
    # Each sends and gets 79,510 gradients of 4 bytes: 6.36 ms at 0.1 GB/s.
    assert row == ["mlp", "100", "100", "1,000", "0.636", "0.1", "6.36", "0.00636", "compute", "1"]
    assert f"images/s: run {measured.identity.run_id}, batch 100" in done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["resnet500"], "Did you mean 'resnet50'"),
        (["--model=mlp,vgg61"], "Did you mean 'vgg16'"),
        (["--variable_update=keras_fit"], "there is no 'keras_fit'"),
        (["--device=cpu", "--num_gpus=3", "--all_reduce_spec=rechd"], "use xring instead"),
        (["--assumed_mfu=2"], "must be at most 1"),
        (["--link_gbytes_per_second=0"], "must be above 0"),
    ],
)
def test_mistakes_are_refused(run_bench: RunBench, words: list[str], problem: str) -> None:
    done = run_bench("models", *words)
    assert done.status == 2 and problem in done.stderr


def test_explain_gives_the_same_of_one_configuration(run_bench: RunBench) -> None:
    """5 GFLOP/s at each of two devices; 0.636 MB sent by each, as above."""
    flags = ("--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=10")
    rates = ("--peak_tflops=0.02", "--link_gbytes_per_second=0.1")
    done = run_bench("explain", "replicated", *flags, *rates)
    assert done.status == 0, done.stderr
    assert "320 kFLOP per image, 10 per gradient byte: 0.639 ms at 15,645 images/s per device" in done.stdout
    assert "6.36 ms at 0.1 GB/s (--link_gbytes_per_second)" in done.stdout
    assert "communication: exchanging takes 9.95 times as long as computing" in done.stdout
    assert "compute-bound from a batch of 100 per device" in done.stdout
    unknown = run_bench("explain", "replicated", *flags)
    assert "320 kFLOP per image, 10 per gradient byte\n" in unknown.stdout
    assert "Bound by:          unknown. No rate of computing is known of mlp: 'run_bench.py --device" in unknown.stdout


def test_explain_counts_the_busiest_process_of_a_cluster(run_bench: RunBench) -> None:
    """Two workers read 318,040 bytes of weights from the parameter server, and send as many of gradients."""
    words = ("--local_cluster=ps:1,worker:2", "--model=mlp", "--link_gbytes_per_second=1", "--peak_tflops=1")
    done = run_bench("explain", *words)
    assert f"Exchange:           {4 * 0.318040:.3g} ms at 1 GB/s" in done.stdout
