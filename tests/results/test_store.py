from __future__ import annotations

import csv
import fcntl
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from results.store import Store, StoreError, load
from tests.support.records import make_record


def test_append_writes_a_line_and_a_row(tmp_path: Path) -> None:
    store = Store(tmp_path / "made" / "here")
    first, second = make_record(), make_record()
    store.append(first)
    store.append(second)
    assert load(store.jsonl_path).records == [first, second]
    with store.csv_path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run_id"] for row in rows] == [first.identity.run_id, second.identity.run_id]
    assert float(rows[0]["images_per_sec"]) == pytest.approx(160)
    assert not [name for name in os.listdir(store.csv_path.parent) if name.startswith(".")], "left-over temporary file"


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = make_record()
    store.append(kept)
    with store.jsonl_path.open("a") as file:
        file.write('{"format_version": 1, "identi')  # killed here
    added = make_record()
    store.append(added)
    loaded = load(store.jsonl_path)
    assert loaded.records == [kept, added]
    assert len(loaded.problems) == 1
    assert "results.jsonl:2" in loaded.problems[0]


def test_an_unknown_format_is_reported_not_lost(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.jsonl_path.write_text('{"format_version": 99}\n')
    store.append(make_record())
    loaded = load(store.jsonl_path)
    assert len(loaded.records) == 1
    assert "format 99" in loaded.problems[0]
    assert store.jsonl_path.read_text().startswith('{"format_version": 99}\n')


@pytest.mark.parametrize("below", ["a_file/out", "a_file"])
def test_a_directory_that_cannot_be_is_refused_at_once(tmp_path: Path, below: str) -> None:
    (tmp_path / "a_file").write_text("")
    with pytest.raises(StoreError, match="--output_dir"):
        Store(tmp_path / below)


def test_a_lock_that_is_held_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.store.LOCK_DEADLINE_SECONDS", 0.2)
    store = Store(tmp_path)
    with store.jsonl_path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process has held the lock on .*results.jsonl for 0.2 s"):
            store.append(make_record())
    assert store.append(make_record()) == []


def test_a_line_that_is_not_a_record_is_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.jsonl_path.write_text("rubbish\n")
    (problem,) = store.append(make_record())
    assert "results.jsonl:1: skipped a damaged line" in problem


def _append_many(directory: Path, count: int) -> None:
    store = Store(directory)
    for _ in range(count):
        store.append(make_record())


@pytest.mark.process
def test_two_writers_keep_both_records_whole(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(tmp_path, 20)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    loaded = load(tmp_path / "results.jsonl")
    assert len(loaded.records) == 40
    assert loaded.problems == []
    with (tmp_path / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 40


@pytest.mark.process
def test_finished_records_survive_a_kill(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=_append_many, args=(tmp_path, 10_000))
    writer.start()
    path = tmp_path / "results.jsonl"
    while writer.is_alive() and not (path.exists() and path.read_text().count("\n") > 5):
        pass
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    loaded = load(path)
    assert len(loaded.records) > 5
    assert len(loaded.problems) <= 1, "at most the line that was being written is damaged"
    with (tmp_path / "results.csv").open() as file:
        assert list(csv.DictReader(file)), "the CSV is whole, if one run behind"


def _rows(store: Store) -> list[str]:
    with store.csv_path.open() as file:
        return [row["run_id"] for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(path.read_text()[:-7]),  # killed while a row was written
        lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1])),  # killed before it was
        lambda path: path.write_text("other,columns\n"),
        lambda path: path.write_text(""),
    ],
)
def test_a_csv_that_is_no_view_of_all_records_is_made_anew(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    store = Store(tmp_path)
    records = [make_record(reason="x" * 100_000) for _ in range(3)]
    store.append(*records[:2])
    damage(store.csv_path)
    store.append(records[2])
    assert _rows(store) == [record.identity.run_id for record in records]


def test_a_csv_that_is_whole_is_appended_to(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(make_record())
    same_file = store.csv_path.stat().st_ino
    added = [make_record(), make_record()]
    store.append(*added)
    assert store.csv_path.stat().st_ino == same_file
    assert _rows(store)[1:] == [record.identity.run_id for record in added]


def test_files_are_merged_and_a_record_counts_once(tmp_path: Path) -> None:
    first, second = Store(tmp_path / "a"), Store(tmp_path / "b")
    records = [make_record() for _ in range(3)]
    first.append(*records[:2])
    second.append(*records[1:])
    assert load(first.jsonl_path, second.jsonl_path).records == records
