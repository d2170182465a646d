"""Records that older versions of the suite wrote, beside what these versions printed of them.

In golden/, format-N.jsonl holds the records of the last revision that wrote format N (the identity names it), and
format-N.csv the rows that it wrote of them. Only the version of the kernel and the path of the program were changed.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import results
from results import columns
from results.measurement import derive
from results.record import Kind, Record, Status, UnknownFormatError
from results.summary import summarize
from tests.support.records import GOLDEN, golden_records

FORMATS = pytest.mark.parametrize("number", [1, 2, 3, 4])


def stored(number: int) -> list[dict[str, Any]]:
    """Returns the lines of a file as they were written."""
    return [json.loads(line) for line in (GOLDEN / f"format-{number}.jsonl").read_text().splitlines()]


def found(number: int, run_id: str) -> Record:
    (record,) = (record for record in golden_records(number) if record.identity.run_id == run_id)
    return record


@pytest.mark.parametrize(
    ("number", "kinds"),
    [
        (1, "run ok, run ok, run ok, run ok, run invalid"),
        (2, "run ok, run ok, allreduce ok, allreduce ok, run ok, run ok, run skipped"),
        (3, "run ok, run ok, input ok, run timeout"),
        (4, "run ok, run ok, run ok"),
    ],
)
def test_every_record_is_read_with_its_kind_and_status(number: int, kinds: str) -> None:
    assert {fields["format_version"] for fields in stored(number)} == {number}
    assert ", ".join(f"{record.kind} {record.status}" for record in golden_records(number)) == kinds


@FORMATS
def test_every_field_that_was_stored_is_read(number: int) -> None:
    for fields, record in zip(stored(number), golden_records(number), strict=True):
        read = json.loads(record.to_json())
        for name, value in fields.items():
            if isinstance(value, dict):
                assert read[name].items() >= value.items()
            elif name != "format_version":
                assert read[name] == value


@FORMATS
def test_a_row_is_the_one_that_was_written_then(number: int) -> None:
    with (GOLDEN / f"format-{number}.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, record in zip(rows, golden_records(number), strict=True):
        if row["reason"].startswith("-"):  # is no formula in a spreadsheet any more
            row["reason"] = f"'{row['reason']}"
        now = {name: "" if value is None else str(value) for name, value in columns.row(record).items()}
        assert {name: now[name] for name in row} == row


@pytest.mark.parametrize(
    ("number", "run_id", "printed"),
    [
        (1, "726f5b8b5871", "306.11, 281.53 to 341.67, 306.11 per device, 13.2 ms, 15.7 ms"),
        (1, "8185c3281cf5", "95.49, 82.79 to 113.93, 95.49 per device, 40.4 ms, 55.0 ms"),
        (1, "f98d957b32e9", "571.24, 499.37 to 636.64, 571.24 per device, 6.4 ms, 9.4 ms"),
        (1, "e00872ba7d68", "324.94, 228.10 to 501.78, 162.47 per device, 19.0 ms, 42.2 ms"),
        (2, "c49820944247", "175.33, 166.01 to 189.39, 175.33 per device, 22.2 ms, 27.3 ms"),
        (2, "759a1a87d267", "115.32, 98.59 to 131.70, 57.66 per device, 67.0 ms, 88.4 ms"),
        (3, "cdab2e95547a", "263.02, 185.97 to 361.53, 263.02 per device, 11.6 ms, 30.5 ms"),
        (3, "f6bc21d1b787", "177.40, 162.39 to 193.57, 177.40 per device, 22.3 ms, 27.6 ms"),
        (4, "45536630412a", "525.24, 500.98 to 545.98, 525.24 per device, 7.5 ms, 8.6 ms"),
        (4, "1de4d9133107", "113.41, 100.98 to 136.36, 56.70 per device, 61.2 ms, 99.9 ms"),
        (4, "88e8cfbae8e0", "177.09, 165.08 to 189.45, 88.54 per device, 46.1 ms, 49.0 ms"),
    ],
)
def test_derived_numbers_are_those_that_were_printed(number: int, run_id: str, printed: str) -> None:
    """Both those that are stored and, but for the interval, those that follow today from what was measured."""
    record = found(number, run_id)
    devices = record.config["num_devices"] * record.config.get("num_workers", 1)
    interval = f"{record.derived.images_per_sec_low:.2f} to {record.derived.images_per_sec_high:.2f}"
    for derived in (record.derived, derive(record.measurement, devices)):
        assert printed == (
            f"{derived.images_per_sec:.2f}, {interval}, {derived.images_per_sec_per_device:.2f} per device, "
            f"{derived.step_ms_p50:.1f} ms, {derived.step_ms_p99:.1f} ms"
        )


def test_a_record_of_format_1_is_of_a_run_on_its_own() -> None:
    for record in golden_records(1):
        assert (record.kind, record.identity.session_id, list(record.config_aside)) == (Kind.RUN, "", [])
    invalid = golden_records(1)[-1]
    assert (invalid.status, invalid.derived.images_per_sec) == (Status.INVALID, None)
    assert invalid.reason.startswith("The loss became nan: the training diverged.")
    assert list(invalid.measurement.warmup_losses) == [8.036526679992676, None]


def test_format_2_has_asynchronous_towers_messages_and_sessions() -> None:
    towers = found(2, "759a1a87d267")
    assert [f"{count / 12:.0%}" for count in towers.measurement.staleness_counts] == ["17%", "75%", "8%"]
    assert [len(steps) for steps in towers.measurement.tower_step_seconds] == [6, 6]
    assert towers.derived.staleness_mean == pytest.approx(11 / 12)
    message = found(2, "70fd549f90b3")
    assert (message.kind, message.config["modifiers"]["all_reduce_spec"]) == (Kind.ALL_REDUCE, "pscpu")
    assert message.measurement.message_bytes == 65536
    assert f"{message.derived.bus_bandwidth_gb_per_sec:.2f} {message.measurement.largest_error:.0e}" == "0.29 6e-08"
    one, two = summarize([r for r in golden_records(2) if r.identity.session_id == "606ed1a4d3cc"])
    assert f"{one.rate:.2f} {one.speed_up:.2f}, {two.rate:.2f} {two.speed_up:.2f}" == "150.90 1.00, 173.31 1.15"


def test_format_3_has_accuracies_waits_and_stages_of_the_input() -> None:
    photos = found(3, "f6bc21d1b787")
    assert (photos.measurement.top_1_accuracies[-1], photos.measurement.top_5_accuracies[-1]) == (0.25, 0.25)
    assert (photos.measurement.skipped_records, photos.derived.input_wait_share) == (0, 0.0)
    stages = found(3, "99b273b5b0e1").measurement.input_stages
    assert [f"{name} {rate:.0f}" for name, rate in stages.items()] == [
        "read 6426", "parse 4643", "decode 947", "augment 999", "batch 917", "copy 827",
    ]  # fmt: skip


def test_format_4_has_the_steps_of_each_worker() -> None:
    ring = found(4, "1de4d9133107")
    assert [f"{24 / sum(steps):.2f}" for steps in ring.measurement.worker_step_seconds] == ["57.29", "56.84"]
    assert (ring.derived.slowest_worker, f"{ring.derived.straggler_ratio:.2f}") == (1, "1.41")
    assert found(4, "88e8cfbae8e0").config["num_ps"] == 1


@FORMATS
def test_a_record_that_is_read_fits_todays_schema(number: int) -> None:
    schema = json.loads((Path(results.__file__).parent / "data" / "record.schema.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    for record in golden_records(number):
        validator.validate(json.loads(record.to_json()))


@pytest.mark.parametrize("unknown", [0, 5, 99, "4", None])
def test_an_unknown_format_is_refused_by_number(unknown: object) -> None:
    with pytest.raises(UnknownFormatError, match=f"has format {unknown}, .* reads formats 1 to 4"):
        Record.from_json(json.dumps(stored(4)[0] | {"format_version": unknown}))


@FORMATS
@pytest.mark.parametrize("part", ["identity", "measurement", "derived"])
def test_a_field_of_another_name_is_no_record(number: int, part: str) -> None:
    """Otherwise what is stored under it would be lost silently."""
    fields = stored(number)[0]
    for name in fields[part]:
        renamed = {(f"{key}s" if key == name else key): value for key, value in fields[part].items()}
        with pytest.raises(ValueError, match=f"not a record of format 4: .*{name}s"):
            Record.from_json(json.dumps({**fields, part: renamed}))


@FORMATS
def test_a_record_is_written_again_in_todays_format(number: int) -> None:
    for record in golden_records(number):
        again = Record.from_json(record.to_json())
        assert again == record and json.loads(record.to_json())["format_version"] == 4
