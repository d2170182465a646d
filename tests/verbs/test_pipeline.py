"""A model in stages on several devices, as a user meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.explain.known_gpus import Rate
from benchmarks.explain.step_balance import Rates
from benchmarks.measure.run_log import RunLog
from results.loading import load
from results.record import key_of
from tests.support.commands import RunBench
from tests.support.settings import resolve

TrainHere = Callable[..., RunLog]
TWO_STAGES = ("--device=cpu", "--num_gpus=2", "--pipeline_stages=2")


@pytest.mark.row("S3.4")
def test_a_pipeline_prints_and_records_its_stages_and_how_long_they_were_idle(
    run_bench: RunBench, tmp_path: Path
) -> None:
    done = run_bench(*TWO_STAGES, "--model=mlp", "--batch_size=4", "--micro_batches=4", "--num_batches=3").succeeded()
    assert "8 global, 4 per device, in 4 micro-batches of 2" in done.stdout
    assert "Stage 1:" in done.stdout and "\nidle: " in done.stdout
    (record,) = load(tmp_path / "out" / "results.jsonl").records
    assert record.measurement.images_per_step == 8
    facts = record.placement["pipeline"]
    assert facts["idle_share_of_equal_stages"] == pytest.approx(1 / 5)
    shares = facts["idle_shares"]  # None if the passes were too short
    assert shares is None or len(shares) == 2 and all(0 <= share < 1 for share in shares)
    # Each device has its own weights, and no other. What crosses are 100 activations of 8 images, and their gradients.
    on_each = [stage["variable_bytes"] for stage in facts["stages"]]
    assert list(record.placement["variable_bytes_per_device"].values()) == on_each
    assert list(record.placement["gradient_bytes_per_device"].values()) == on_each
    assert record.placement["sent_per_step"]["total_bytes"] == 2 * 8 * 100 * 4


@pytest.mark.parametrize(
    "given",
    [
        ["--model=mlp", "--precision=bf16"],
        ["--model=mlp", "--precision=fp16", "--fp16_enable_auto_loss_scale"],
        pytest.param(["--model=resnet20", "--precision=bf16"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_sixteen_bits_train_in_a_pipeline(train_here: TrainHere, given: list[str]) -> None:
    log = train_here(*TWO_STAGES, "--batch_size=2", "--num_batches=2", *given)
    assert np.isfinite(log.measured.losses).all() and len(log.measured.losses) == 2


def test_micro_batches_are_as_many_as_divide_the_batch() -> None:
    made = {size: resolve(*TWO_STAGES, f"--batch_size={size}").variables.pipeline for size in (1, 2, 6, 8)}
    assert {size: pipeline and pipeline.micro_batches for size, pipeline in made.items()} == {1: 2, 2: 4, 6: 4, 8: 8}


def test_only_a_pipeline_changes_the_key() -> None:
    assert resolve("--device=cpu").key_fields()["pipeline"] is None
    four, eight = (resolve(*TWO_STAGES, f"--micro_batches={count}").key_fields() for count in (4, 8))
    assert four["pipeline"] == {"stages": 2, "micro_batches": 4}
    assert key_of(four) != key_of(eight)


def test_verify_compares_a_pipeline_as_a_pipeline(run_bench: RunBench) -> None:
    done = run_bench("verify", "--device=cpu", "--num_gpus=2", "--pipeline_stages=2")
    assert done.status == 0 and "1 ok, 0 failed" in done.stdout, done.stderr
    assert "pipeline of 3 micro-batches" in done.stdout


def test_explain_lists_the_stages_and_what_they_send(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.explain import data_flow

    given = (*TWO_STAGES, "--model=resnet20", "--batch_size=8", "--micro_batches=4")
    data_flow.show_data_flow(
        resolve(*given), Rates(peak_flops_per_sec=1e14, assumed_mfu=0.5, link=Rate(1e8, "given"), link_is_given=True)
    )
    text = capsys.readouterr().out
    assert "Bound by:" not in text, "what is sent grows with the batch, and devices are idle"
    assert "2 stages, 4 micro-batches of 4: batch 16" in text
    # 16 images of 32 x 32 x 16 float32 after a block of the first stage, or of half as many after one of the second.
    assert "on /cpu:0" in text and "sends 0.0328 MB per image" in text
    assert f"{2 * 16 * 16 * 16 * 32 * 4 / 1e6:.2f} MB, half of it activations forward" in text
    assert "batch norm and dropout see one after the other" in text
