from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.measure import result_text
from benchmarks.measure.result_text import step_lines
from results.measurement import Measurement, derive
from results.record import Record
from tests.support.records import fake_run


def _lines(record: Record, measurement: Measurement, config: dict[str, Any], *, compiled: bool = False) -> list[str]:
    derived = derive(measurement, 1, compiled=compiled)
    return step_lines(replace(record, measurement=measurement, derived=derived, config=config))


@pytest.fixture
def record() -> Record:
    return fake_run()


def test_training_says_how_long_steps_took(record: Record) -> None:
    measurement = Measurement(images_per_step=8, step_seconds=[0.1] * 9 + [0.2])
    assert _lines(record, measurement, {}) == ["step:           100.0 ms median, 191.0 ms at the 99th percentile"]


def test_inference_says_its_latency(record: Record) -> None:
    few = Measurement(images_per_step=1, step_seconds=[0.001] * 999)
    (line,) = _lines(record, few, {"forward_only": True})
    assert line == "latency:        1.0 ms median, of 90 % at most 1.0 ms, of 99 % 1.0 ms; 999 batches of 1"
    enough = Measurement(images_per_step=1, step_seconds=[0.001] * 998 + [0.009] * 2)
    assert "of 99.9 % 9.0 ms; 1000 batches of 1" in _lines(record, enough, {"forward_only": True})[0]


def test_compiling_is_what_the_first_step_took_longer(record: Record) -> None:
    measurement = Measurement(images_per_step=8, step_seconds=[0.5] * 3, first_step_seconds=8.0)
    line = "compiling:      XLA made the first step 7.5 s longer"
    assert line in _lines(record, measurement, {}, compiled=True)
    assert len(_lines(record, measurement, {})) == 1


def test_updates_that_overflowed_are_counted(record: Record) -> None:
    scales, skipped = [8.0, 4.0, 4.0, 8.0, 4.0], [1.0, 0.0, 0.0, 1.0, 0.0]
    measurement = Measurement(images_per_step=8, step_seconds=[0.5] * 5, loss_scales=scales, skipped_updates=skipped)
    assert "loss scale:     4 at the end; 2 of 5 updates skipped after an overflow" in _lines(record, measurement, {})


def test_the_last_losses_are_compared_with_fp32(record: Record) -> None:
    measurement = Measurement(
        images_per_step=8,
        step_seconds=[0.5] * 12,
        losses=[9.0, 9.0] + [1.5] * 10,
        fp32_losses=[0.0, 0.0] + [1.25] * 10,
    )
    line = "against fp32:   loss +0.2500, mean of the last steps on the same data"
    assert line in _lines(record, measurement, {})
    for odd in (None, float("nan")):
        worse = replace(measurement, fp32_losses=[1.25] * 11 + [odd])
        assert len(_lines(record, worse, {})) == 1


def test_workers_that_go_their_own_way_have_no_common_latency(record: Record) -> None:
    measurement = Measurement(images_per_step=8, step_seconds=[0.5] * 5, tower_step_seconds=[[0.5], [1.0]])
    assert _lines(record, measurement, {"forward_only": True})[0].startswith("step:")


def test_an_evaluation_without_a_finite_loss_is_shown() -> None:
    result = {"step": 4, "epochs": 1.0, "top_1_accuracy": 0.75, "top_5_accuracy": 1.0, "loss": None}
    measurement = Measurement(images_per_step=8, evaluations=[{**result, "seconds": 2.0, "images": 8}])
    assert "loss not finite" in "\n".join(result_text._evaluation_lines(measurement))
