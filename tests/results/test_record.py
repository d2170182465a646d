from __future__ import annotations

import json
import math
import time

import msgspec
import pytest
from msgspec.structs import replace

from results import columns, record
from results.measurement import Measurement
from results.record import Record, Status
from tests.support.records import fake_run, make_record


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\n  lines", "two lines"),
        ("a\x1b[31m\x7f b", "a [31m b"),
        ("\u202egnp\u2066", "gnp"),
        ("a\udcff", "a\\udcff"),
        ('Jürgen\'s  "C:\\new" = | <b>', 'Jürgen\'s  "C:\\new" = | <b>'),
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_text_is_harmless_in_what_is_read_and_in_what_is_saved(text: str, shown: str, escaped: bool) -> None:
    made = make_record(
        reason=text, warnings=[text], config={"model": text, text: [text]}, environment={"variables": {"X": text}}
    )
    made = replace(made, identity=replace(made.identity, command=[text], session_id=text))
    line = json.dumps(msgspec.structs.asdict(made), default=msgspec.structs.asdict, ensure_ascii=escaped)
    read = [made.cleaned(), *([] if "\udcff" in text else [Record.from_json(line)])]  # which is no JSON
    for one in read:
        assert [one.reason, *one.warnings, *one.identity.command, one.identity.session_id] == [shown] * 4
        assert one.config == {"model": shown, shown: [shown]}
        assert one.environment == {"variables": {"X": shown}}


def test_a_count_that_another_program_wrote_as_2_0_is_2() -> None:
    line = make_record().to_json().replace('"num_devices":2,', '"num_devices":2.0,')
    assert '"num_devices":2.0,' in line
    assert repr(Record.from_json(line).config["num_devices"]) == "2"


def test_json_holds_no_nan() -> None:
    broken = make_record(measurement=Measurement(images_per_step=1, losses=[math.nan, math.inf, 1.0]))
    parsed = json.loads(broken.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert parsed["measurement"]["losses"] == [None, None, 1.0]


def test_what_python_writes_for_no_number_is_unknown() -> None:
    fields = json.loads(make_record(reason="Infinity, NaN").to_json())
    fields["measurement"]["losses"] = [math.nan, -math.inf, 1.0]
    read = Record.from_json(json.dumps(fields))
    assert (read.measurement.losses, read.reason) == ([None, None, 1.0], "Infinity, NaN")
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json(json.dumps(fields)[:-9])


def test_a_time_without_a_zone_is_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_record()
    times = ("2026-03-29T02:30:00", "2026-03-29T02:30:00Z", "2026-03-29T04:30:00+02:00")
    monkeypatch.setenv("TZ", "Europe/Zurich")  # where that hour was left out
    time.tzset()
    records = [replace(made, identity=replace(made.identity, time_utc=text)) for text in times]
    ended, shown = ({getattr(each, name) for each in records} for name in ("ended", "minute"))
    monkeypatch.undo()
    time.tzset()
    assert (ended, shown) == ({1774751400.0}, {"2026-03-29 02:30"})
    assert replace(made, identity=replace(made.identity, time_utc="yesterday")).minute == "yesterday"


def test_keys_do_not_depend_on_order() -> None:
    assert record.key_of({"a": 1, "b": [2]}) == record.key_of({"b": [2], "a": 1}) != record.key_of({"a": 2, "b": [2]})


def test_row_has_every_column_and_leaves_unknown_ones_empty() -> None:
    row = columns.row(make_record())
    assert row["images_per_sec"] == pytest.approx(160)
    assert row["loss_first"] == 7.0
    assert row["loss_last"] == 3.5
    assert row["batch_global"] == 16
    assert row["peak_host_memory_bytes"] == ""
    without_steps = columns.row(fake_run(status=Status.CRASH))
    assert without_steps["status"] == "crash"
    assert without_steps["images_per_sec"] == without_steps["step_ms_p50"] == ""


_FIELDS = json.loads(make_record().to_json())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        [],
        None,
        {"format_version": 1},
        _FIELDS | {"config": None},
        _FIELDS | {"placement": []},
        _FIELDS | {"measurement": {"images_per_step": 16}},
        _FIELDS | {"status": "fine"},
        _FIELDS | {"unknown": 1},
        _FIELDS | {"identity": _FIELDS["identity"] | {"unknown": 1}},
    ],
    ids=range(10),
)
def test_what_would_break_a_reader_is_no_record(fields: object) -> None:
    with pytest.raises(ValueError, match="not a record"):
        Record.from_json(json.dumps(fields))
