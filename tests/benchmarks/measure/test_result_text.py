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


def test_compiling_is_what_the_first_step_took_longer() -> None:
    fields = {"step_seconds": [0.5] * 3, "first_step_seconds": 8.0}
    assert "compiling:      XLA made the first step 7.5 s longer" in _lines(fields, compiled=True)
    assert len(_lines(fields)) == 1


def test_an_evaluation_without_a_finite_loss_is_shown() -> None:
    result = {"step": 4, "epochs": 1.0, "top_1_accuracy": 0.75, "top_5_accuracy": 1.0, "loss": None}
    measurement = Measurement(images_per_step=8, evaluations=[{**result, "seconds": 2.0, "images": 8}])
    assert "loss not finite" in "\n".join(result_text._evaluation_lines(measurement))
