from __future__ import annotations

import codecs
import contextlib
import csv
import errno
import fcntl
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from msgspec.structs import replace

from results import store as store_module
from results.loading import _FOREIGN_FORMATS, Loaded, load
from results.record import Record
from results.store import Store, StoreError
from results.summary import summarize
from tests.support.records import fake_run, make_record


@pytest.mark.fault(
    "R1",
    "a JSONL that ends within a line, as a killed writer leaves it",
    survives="the next record is stored, and the line is named",
)
@pytest.mark.parametrize(
    ("line", "words"),
    [('{"format_version": 1, "identi', "skipped a damaged line"), ('{"format_version": 99}\n', "format 99")],
)
def test_a_line_that_cannot_be_read_costs_only_itself(tmp_path: Path, line: str, words: str) -> None:
    store = Store(tmp_path)
    kept, added = make_record(), make_record()
    store.append(kept)
    with store.jsonl_path.open("a") as file:
        file.write(line)
    store.append(added)
    loaded = store.load()
    assert loaded.records == [kept, added]
    (problem,) = loaded.problems
    assert "results.jsonl:2" in problem and words in problem
    assert line in store.jsonl_path.read_text()


@pytest.mark.parametrize("below", ["a_file/out", "a_file"])
def test_a_directory_that_cannot_be_is_refused_at_once(tmp_path: Path, below: str) -> None:
    (tmp_path / "a_file").write_text("")
    with pytest.raises(StoreError, match="--output_dir"):
        Store(tmp_path / below)


@pytest.mark.fault(
    "R11", "results.jsonl or results.csv is a directory", survives="a sentence that names it, before the run starts"
)
@pytest.mark.parametrize("name", ["results.jsonl", "results.csv"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match=f"--output_dir.*: {name} is not a regular file"):
        Store(tmp_path)


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """Limits the size of files that are written, also of the log of the tests, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.fault("R11", "no room for results", survives="a sentence that names the directory, before the run starts")
def test_a_disk_without_room_is_refused_at_once(tmp_path: Path) -> None:
    with limited(100_000), pytest.raises(StoreError, match="--output_dir.*File too large"):
        Store(tmp_path)


@pytest.mark.fault(
    "R11", "the room for results ends within a record", survives="an error, and every line of results.jsonl is whole"
)
def test_a_record_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(make_record())
    before = store.jsonl_path.read_bytes()
    with limited(len(before) + 1000), pytest.raises(StoreError, match=r"could not be stored: File too large\."):
        store.append(make_record(reason="x" * 2000))
    assert store.jsonl_path.read_bytes() == before


@pytest.mark.fault(
    "R11",
    "results.csv becomes a directory during the run",
    survives="the record is stored, and a sentence names results.csv",
)
def test_a_csv_that_cannot_be_written_costs_no_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.csv_path.mkdir()
    kept = make_record()
    (problem,) = store.append(kept)
    assert "results.csv could not be written: " in problem and "The record is in" in problem
    assert not store.csv_has_last
    assert store.load().records == [kept]
    store.csv_path.rmdir()
    added = make_record()
    assert store.append(added) == [] and store.csv_has_last
    assert _rows(store) == [kept.identity.run_id, added.identity.run_id]


def test_results_that_were_removed_meanwhile_are_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    assert (store.size_bytes(), store.load().records) == (0, [])
    added = make_record()
    store.append(added)
    assert store.load().records == [added] and _rows(store) == [added.identity.run_id]


@pytest.mark.fault(
    "R14",
    "results.jsonl is renamed, as a rotation does, before the next run",
    survives="the old rows are in another CSV file, which a sentence names",
)
def test_rows_of_records_that_were_moved_away_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(make_record())
    rows = store.csv_path.read_text()
    store.jsonl_path.unlink()
    added = make_record()
    (sentence,) = Store(tmp_path).append(added)
    (backup,) = tmp_path.glob("results.*.csv")
    assert str(backup) in sentence and backup.read_text() == rows
    assert _rows(store) == [added.identity.run_id]


def test_the_end_of_a_long_file_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"first\n" + b"x" * 10_000_000)
    with path.open("rb", buffering=0) as file:
        reads: list[int] = []
        read = file.read
        counted = mock.Mock(wraps=file, read=lambda size: reads.append(size) or read(size))
        assert len(store_module._last_line(counted)) == 10_000_000
    assert sum(reads) < 50_000_000


@pytest.mark.fault(
    "R14", "an output is a link to a file of mode 0600", survives="the link stays, its file has the text and its mode"
)
def test_a_replaced_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    store_module.replace(link, "new ×")
    assert link.is_symlink() and target.read_bytes() == "new ×".encode()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["link", "target"]


@pytest.mark.fault("R14", "umask 077", survives="no new file can be read by others")
def test_a_new_file_has_the_mode_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        store_module.replace(tmp_path / "new", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_records_are_replaced_by_nothing_else(tmp_path: Path) -> None:
    (records := tmp_path / "results.jsonl").write_text(f"{_LINE}\n")
    with pytest.raises(OSError, match="it has records, which would be lost"):
        store_module.replace(records, '{\n  "format_version": 1\n}\n')
    assert records.read_text() == f"{_LINE}\n"
    for content in (f"{_LINE}\n{_LINE}\n", ""):
        store_module.replace(records, content)
        assert records.read_text() == content


def test_a_file_that_is_stdout_is_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        before = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            os.write(1, b"before\n")
            store_module.replace(Path("/dev/stdout"), "text\n")
            os.write(1, b"after\n")
            with limited(20), pytest.raises(OSError, match="File too large"):
                store_module.replace(Path("/dev/stdout"), "too long\n")
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\nto"


@pytest.mark.fault("R14", "an output is a FIFO or a device", survives="it stays one, and the text is written to it")
def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    store_module.replace(tmp_path / "pipe", "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.fault(
    "R4", "another process holds the lock on results.jsonl", survives="an error within the deadline names the lock"
)
def test_a_lock_that_is_held_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.store.LOCK_DEADLINE_SECONDS", 0.2)
    store = Store(tmp_path)
    with store.jsonl_path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another process has held the lock on .*results.jsonl for 0.2 s"):
            store.append(make_record())
    assert store.append(make_record()) == []


def test_a_line_that_is_not_a_record_is_reported(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(f"[pod/run-0] {_LINE}\n")
    assert load(tmp_path / "results.jsonl").problems == [
        f"{tmp_path}/results.jsonl does not hold records: none of its lines is one. If prefixes of a log precede them, "
        "grep -o '{\"identity\".*' FILE prints them alone."
    ]
    with pytest.raises(StoreError, match=r"results.jsonl does not begin with a record: name another directory"):
        Store(tmp_path)
    (tmp_path / "results.jsonl").write_text(f"rubbish\n{make_record().to_json()}\n")
    (problem,) = load(tmp_path / "results.jsonl").problems
    assert "results.jsonl:1: skipped a damaged line" in problem


@pytest.mark.parametrize("first", ['{"hello": 1}\n', '{ "run_id": "x",\n', "\n[\n", "<!DOCTYPE html>\n"])
def test_nothing_is_appended_to_what_does_not_begin_with_a_record(tmp_path: Path, first: str) -> None:
    (tmp_path / "results.jsonl").write_text(first)
    with pytest.raises(StoreError, match="results.jsonl (does not begin with a record|is a JSON array)"):
        Store(tmp_path)


@pytest.mark.parametrize(
    ("between", "end", "problem"),
    [
        (codecs.BOM_UTF8, b"\n", None),  # a file that was joined of several has it within, too
        (b"", b"\r\n", None),
        (b"", b"", None),  # joined without a line break
        (b"\n \n", b"\n", None),
        (b"\0" * 300 + b"\n", b"\n", "results.jsonl:1: skipped"),  # as a crash of the host leaves it
    ],
)
def test_what_programs_put_between_records_costs_none(
    tmp_path: Path, between: bytes, end: bytes, problem: str | None
) -> None:
    records = [make_record(), make_record()]
    (tmp_path / "results.jsonl").write_bytes(b"".join(between + one.to_json().encode() + end for one in records))
    store = Store(tmp_path)
    problems = store.append(added := make_record())
    assert store.load().records == [*records, added] and _rows(store) == [r.identity.run_id for r in (*records, added)]
    assert problem in problems[0] if problem else problems == []


_LINE = make_record().to_json()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((start + b"\n1,2\n", words) for starts, words in _FOREIGN_FORMATS for start in starts),
        (_LINE.encode("utf-16-le"), "is in UTF-16"),
        *((start + _LINE.encode(), "is a JSON array") for start in (b"[", b"[\n  ", b"[\r\n")),
        (json.dumps(json.loads(_LINE), indent=2).encode(), "is indented JSON, and a file of records has"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_file_of_another_format_is_named_once_and_left_alone(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "results.jsonl"
    file.write_bytes(content)
    loaded = load(file)
    assert loaded.records == [] and len(loaded.problems) == 1
    assert loaded.problems[0].startswith(f"{file} {words}")
    with pytest.raises(StoreError, match=re.escape(f"results.jsonl {words}")):
        Store(tmp_path)
    with file.open("r+b") as opened, pytest.raises(OSError, match=re.escape(words)):
        store_module.append_lines(opened, [make_record()])
    assert file.read_bytes() == content


def test_a_merge_conflict_is_said_and_both_sides_are_read(tmp_path: Path) -> None:
    ours, theirs = make_record(), make_record()
    sides = f"<<<<<<< HEAD\n{ours.to_json()}\n=======\n{theirs.to_json()}\n>>>>>>> theirs\n"
    (tmp_path / "results.jsonl").write_text(sides)
    loaded = load(tmp_path / "results.jsonl")
    assert loaded.records == [ours, theirs]
    assert loaded.problems == [
        f"{tmp_path}/results.jsonl:1: has a merge conflict of git; the records of both sides are read."
    ]
    with pytest.raises(StoreError, match="has a merge conflict of git: resolve it"):
        Store(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, 524])
def test_a_file_system_without_locks_is_refused_by_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store_module.fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="its file system has no locks"):
        Store(tmp_path)


def _append_many(directory: Path, count: int) -> None:
    store = Store(directory)
    for _ in range(count):
        store.append(make_record())


@pytest.mark.fault(
    "R13",
    "two processes store 20 records each into one directory",
    survives="all 40 are whole, in the JSONL and the CSV",
)
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


@pytest.mark.fault(
    "R1",
    "kill -9 of a process that stores one record after the other",
    survives="all finished records are there; at most the line that was being written is damaged",
)
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


def test_a_column_that_was_added_by_hand_is_kept_in_a_backup(tmp_path: Path) -> None:
    """As a spreadsheet saves it."""
    store = Store(tmp_path)
    store.append(make_record())
    edited = store.csv_path.read_text().replace("run_id,", "my notes;run_id,", 1)
    store.csv_path.write_text(edited)
    (sentence,) = store.append(make_record())
    (backup,) = tmp_path.glob("results.*.csv")
    assert backup.read_text() == edited
    assert f"{store.csv_path} had other columns, so the rows of the earlier results.csv are now in" in sentence
    store.csv_path.write_text(edited)
    store.append(make_record())
    assert len([*tmp_path.glob("results.*.csv")]) == 2, "one within the same second replaces no other"


def test_a_csv_of_fewer_columns_is_made_anew_without_a_backup(tmp_path: Path) -> None:
    """As a version of the suite with fewer has written it."""
    store = Store(tmp_path)
    store.append(make_record())
    pd.read_csv(store.csv_path).iloc[:, :-1].to_csv(store.csv_path, index=False)
    assert store.append(make_record()) == []
    assert len(_rows(store)) == 2 and not [*tmp_path.glob("results.*.csv")]


def test_a_record_is_a_line_and_a_row_that_are_appended(tmp_path: Path) -> None:
    store = Store(tmp_path / "made" / "here")
    first, *others = (make_record() for _ in range(3))
    store.append(first)
    same_file = store.csv_path.stat().st_ino
    store.append(*others)
    assert load(store.jsonl_path).records == [first, *others]
    assert store.csv_path.stat().st_ino == same_file
    assert _rows(store) == [record.identity.run_id for record in (first, *others)]
    assert not [name for name in os.listdir(store.csv_path.parent) if name.startswith(".")], "left-over temporary file"


def _with(record: Record, *, config: dict[str, Any] | None = None, **identity: Any) -> Record:
    changed = replace(record.identity, **identity)
    return replace(record, identity=changed, config=record.config if config is None else config)


def test_another_run_with_the_id_of_a_run_is_kept_apart_and_said(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path / "mine"), Store(tmp_path / "theirs")
    run = fake_run()
    mine.append(run)
    theirs.append(_with(fake_run(step_seconds=0.01), run_id=run.identity.run_id))
    loaded = load(mine.jsonl_path, theirs.jsonl_path, theirs.jsonl_path)
    assert [record.derived.images_per_sec for record in loaded.records] == pytest.approx([320, 3200])
    said = f"another run has the id {run.identity.run_id}, too: both are kept. Remove the one that is not yours."
    assert loaded.problems == [f"{theirs.jsonl_path}:1: {said}"]


def test_a_run_and_what_was_published_of_it_count_once(tmp_path: Path) -> None:
    mine, public = Store(tmp_path / "mine"), Store(tmp_path / "public")
    run = fake_run()
    mine.append(run)
    as_others_write_it = run.identity.time_utc.replace("+00:00", "Z")
    assert as_others_write_it != run.identity.time_utc
    identity = replace(run.identity, time_utc=as_others_write_it)
    public.append(replace(run, identity=identity, environment={"machine": "a box"}, warnings=[]))
    loaded = load(mine.jsonl_path, public.jsonl_path)
    assert (len(loaded.records), loaded.problems) == (1, [])


def test_another_configuration_with_an_equal_key_is_kept_apart_and_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = fake_run()
    key = run.identity.config_key
    others = [_with(fake_run(precision=precision), config_key=key) for precision in ("fp16", "bf16", "fp16")]
    other = _with(fake_run(output_dir="elsewhere"), config_key=key)
    store.append(run, *others, other)
    loaded = load(store.jsonl_path, store.jsonl_path)  # read again, each run is still apart
    assert [len(row.records) for row in summarize(loaded.records)] == [2, 2, 1]
    assert len(loaded.problems) == 3
    assert f"has the config_key of {run.identity.run_id}, and another configuration (precision)" in loaded.problems[0]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_special_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "results.jsonl"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        load(path)


def test_a_file_that_fails_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")  # as Python does, without the name

    (tmp_path / "results.jsonl").touch()
    monkeypatch.setattr(Loaded, "add_lines", fail)
    with pytest.raises(OSError, match="results.jsonl") as caught:
        load(tmp_path / "results.jsonl")
    assert caught.value.filename == str(tmp_path / "results.jsonl")
