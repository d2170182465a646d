from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.measure import result_text
from benchmarks.measure.result_text import step_lines
from results.measurement import Measurement, derive
from tests.support.records import fake_run


def _lines(fields: dict[str, Any], config: dict[str, Any] | None = None, *, compiled: bool = False) -> list[str]:
    measurement = Measurement(images_per_step=8, **fields)
    derived = derive(measurement, 1, compiled=compiled)
    return step_lines(replace(fake_run(), measurement=measurement, derived=derived, config=config or {}))


OF_INFERENCE = {"forward_only": True}
FP32 = {"step_seconds": [0.5] * 12, "losses": [9.0] * 2 + [1.5] * 10, "fp32_losses": [0.0] * 2 + [1.25] * 10}
OVERFLOWED = {"loss_scales": [8.0, 4.0, 4.0, 8.0, 4.0], "skipped_updates": [1.0, 0.0, 0.0, 1.0, 0.0]}


@pytest.mark.parametrize(
    ("fields", "config", "line"),
    [
        (
            {"step_seconds": [0.1] * 9 + [0.2]},
            {},
            "step:           100.0 ms median, 191.0 ms at the 99th percentile of 10 steps",
        ),
        (
            {"step_seconds": [0.001] * 999},
            OF_INFERENCE,
            "latency:        1.0 ms median, of 90 % at most 1.0 ms, of 99 % 1.0 ms; 999 batches of 8",
        ),
        (
            {"step_seconds": [0.001] * 9 + [0.009]},
            OF_INFERENCE,
            "latency:        1.0 ms median, of 90 % at most 1.8 ms, of all 9.0 ms; 10 batches of 8",
        ),
        (
            {"step_seconds": [0.001] * 998 + [0.009] * 2},
            OF_INFERENCE,
            "latency:        1.0 ms median, of 90 % at most 1.0 ms, of 99 % 1.0 ms, of 99.9 % 9.0 ms; "
            "1000 batches of 8",
        ),
        (
            {"step_seconds": [0.001]},
            OF_INFERENCE,
            "latency:        1.0 ms median, of 90 % at most 1.0 ms, of all 1.0 ms; 1 batch of 8",
        ),
        (
            {"step_seconds": [0.5] * 5, "tower_step_seconds": [[0.5], [1.0]]},
            OF_INFERENCE,
            "step:           500.0 ms median, 500.0 ms at the 99th percentile of 5 steps",
        ),
        (
            {"step_seconds": [0.5] * 5, **OVERFLOWED},
            {},
            "loss scale:     4 at the end; 2 of 5 updates skipped after an overflow",
        ),
        (FP32, {}, "against fp32:   loss +0.2500, mean of the last steps on the same data"),
    ],
)
def test_a_run_prints_what_its_steps_took_and_lost(fields: dict[str, Any], config: dict[str, Any], line: str) -> None:
    assert line in _lines(fields, config)


def test_every_line_has_its_own_number() -> None:
    evaluation = {"step": 4, "epochs": 1.0, "top_1_accuracy": 0.75, "top_5_accuracy": 1.0, "loss": 0.5}
    measurement = Measurement(
        images_per_step=8,
        startup_seconds=3.0,
        startup_phases_seconds={"Python": 1.0},
        first_step_seconds=2.0,
        step_seconds=[0.5] * 40,
        worker_step_seconds=[[0.5] * 40, [0.25] * 40],
        input_wait_seconds=[0.05] * 40,
        top_1_accuracies=[0.5, 0.25],
        top_5_accuracies=[0.5, 0.75],
        evaluations=[{**evaluation, "seconds": 2.0, "images": 8}],
        seconds_to_accuracy=9.0,
        peak_host_memory_bytes=2 * 10**9,
    )
    record = replace(fake_run(), measurement=measurement, derived=derive(measurement, 4, compiled=False))
    assert result_text.result_lines(record) == [
        "95 % interval:  16.0 to 16.0 images/s (of this process)",
        "per device:     4.00 images/s",
        "step:           500.0 ms median, 500.0 ms at the 99th percentile of 40 steps",
        "workers:        8.0000, 16.00 images/s",
        "input:          10.0% of the time was spent waiting for images",
        "accuracy:       0.250 top 1, 0.750 top 5, of the last step's images",
        "evaluation:     0.7500 top 1, 1.0000 top 5, of 8 images after 4 steps (1 epochs), loss 0.5000, 4 images/s",
        "to accuracy:    9.0 s from the first step of this run, with everything",
        "memory:         2.00 GB peak of a process",
        "start-up:       3.0 s (Python 1.0), then 2.0 s for the first step",
    ]


def test_compiling_is_what_the_first_step_took_longer() -> None:
    fields = {"step_seconds": [0.5] * 3, "first_step_seconds": 8.0}
    assert "compiling:      it made the first step 7.5 s longer" in _lines(fields, compiled=True)
    assert len(_lines(fields)) == 1


def test_an_evaluation_without_a_finite_loss_is_shown() -> None:
    result = {"step": 4, "epochs": 1.0, "top_1_accuracy": 0.75, "top_5_accuracy": 1.0, "loss": None}
    measurement = Measurement(images_per_step=8, evaluations=[{**result, "seconds": 2.0, "images": 8}])
    assert "loss not finite" in "\n".join(result_text._evaluation_lines(measurement))
