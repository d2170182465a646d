from __future__ import annotations

import json
import math

import pytest

from results import columns, record
from results.measurement import Measurement, derive
from results.record import Record, Status
from tests.support.records import make_record


def test_derived_numbers_by_hand() -> None:
    derived = make_record().derived
    assert derived.images_per_sec == pytest.approx(160)
    assert derived.images_per_sec_per_device == pytest.approx(80)
    assert derived.step_ms_p50 == pytest.approx(100)


def test_a_run_without_steps_derives_nothing() -> None:
    derived = derive(Measurement(images_per_step=16), 2)
    assert derived.images_per_sec is None
    assert derived.step_ms_p50 is None


def test_json_round_trip_is_one_line() -> None:
    original = make_record(warnings=["two\nlines"])
    line = original.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == original


def test_json_holds_no_nan() -> None:
    broken = make_record(measurement=Measurement(images_per_step=1, losses=[math.nan, math.inf, 1.0]))
    parsed = json.loads(broken.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert parsed["measurement"]["losses"] == [None, None, 1.0]


@pytest.mark.parametrize("line", ["{}", "[]", "{", '{"format_version": 1}', "null"])
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Record.from_json(line)


def test_keys_do_not_depend_on_order() -> None:
    assert record.key_of({"a": 1, "b": [2]}) == record.key_of({"b": [2], "a": 1})
    assert record.key_of({"a": 1}) != record.key_of({"a": 2})


def test_row_has_every_column_and_leaves_unknown_ones_empty() -> None:
    row = columns.row(make_record())
    assert row["images_per_sec"] == pytest.approx(160)
    assert row["loss_first"] == 7.0
    assert row["loss_last"] == 3.5
    assert row["batch_global"] == 16
    assert row["peak_host_memory_bytes"] == ""
    failed = columns.row(make_record(measurement=Measurement(images_per_step=16), status=Status.CRASH))
    assert failed["status"] == "crash"
    assert failed["loss_first"] == ""


def test_the_promised_columns_exist() -> None:
    promised = (
        "status model variable_update num_gpus device batch_per_device batch_global data precision images_per_sec "
        "images_per_sec_per_device step_ms_p50 step_ms_p90 step_ms_p99 first_step_s startup_s loss_first loss_last "
        "gflop_per_image tf_version"
    )
    assert set(promised.split()) <= {column.name for column in columns.COLUMNS}


def test_staleness_is_averaged_over_tower_steps() -> None:
    assert make_record().derived.staleness_mean is None
    asynchronous = Measurement(images_per_step=16, step_seconds=[0.1] * 6, staleness_counts=[2, 8, 2])
    assert derive(asynchronous, 2).staleness_mean == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"config": None},
        {"placement": []},
        {"measurement": {"images_per_step": 16}},
        {"status": "fine"},
    ],
)
def test_what_would_break_a_reader_is_no_record(change: dict) -> None:
    with pytest.raises(ValueError):
        Record.from_json(json.dumps(json.loads(make_record().to_json()) | change))
