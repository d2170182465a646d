"""Stores records in `results.jsonl`, one line per run, and derives `results.csv` from it.

A record is appended, flushed and fsynced under a lock: a finished run survives a kill, and two runs may share a
directory. Its row is appended to the CSV in the same way. If the CSV has other columns or ends within a row, it is
rebuilt from the JSONL and renamed into place, so a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import gc
import io
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import orjson

from results import columns
from results.record import Record, UnknownFormatError

JSONL_NAME = "results.jsonl"
LOCK_DEADLINE_SECONDS = 60.0
_LOCK_RETRY_SECONDS = 0.05
_BLOCK_BYTES = 2**16


class StoreError(OSError):
    """The results directory cannot be written."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The records of a file, and a sentence for every line that is not a record."""

    records: list[Record]
    problems: list[str]


class Store:
    """A directory of results, created if it is missing.

    Raises:
        StoreError: the directory cannot be created, written or locked. This is checked before a run starts.
    """

    def __init__(self, directory: Path) -> None:
        self.jsonl_path = directory / JSONL_NAME
        self.csv_path = directory / "results.csv"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory), self._locked():
                pass
        except OSError as error:
            raise StoreError(
                f"Results cannot be written to --output_dir={directory}: {error.strerror or error}. "
                "Name a directory that can be created and written."
            ) from error

    def size_bytes(self) -> int:
        """Returns the size of the JSONL file."""
        return self.jsonl_path.stat().st_size

    def load(self, offset: int = 0) -> Loaded:
        """Reads the records from byte `offset` on."""
        with self.jsonl_path.open("rb") as file:
            file.seek(offset)
            return _load(file, self.jsonl_path)

    def append(self, *records: Record) -> list[str]:
        """Appends records to both files. On return they are on disk.

        Returns:
            If the CSV was rebuilt, a sentence for every line of the JSONL that is not a record; else nothing.

        Raises:
            StoreError: the files cannot be written, or cannot be locked in time.
        """
        try:
            with self._locked() as file:
                last = _last_line(file)
                torn = bool(last) and not last.endswith(b"\n")  # a writer was killed in mid-line
                file.write(b"\n" * torn + b"".join(record.to_json().encode() + b"\n" for record in records))
                _sync(file)
                if self._append_rows(records, after=last):
                    return []
                file.seek(0)
                loaded = _load(file, self.jsonl_path)
                replace(self.csv_path, as_csv(loaded.records))
                return loaded.problems
        except OSError as error:
            raise StoreError(f"The record could not be stored: {error.strerror or error}.") from error

    def _append_rows(self, records: Sequence[Record], *, after: bytes) -> bool:
        """Appends rows to the CSV if it has these columns and ends with the record `after`; returns whether it did."""
        header, _, rows = as_csv(records).partition("\n")
        try:
            last_run_id = orjson.loads(after)["identity"]["run_id"]
            with self.csv_path.open("r+b") as file:
                same_columns = file.readline().decode() == header + "\n"
                last_row = _last_line(file)
                if not (same_columns and last_row.endswith(b"\n") and last_row.startswith(f"{last_run_id},".encode())):
                    return False
                file.write(rows.encode())
                _sync(file)
            return True
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Opens the JSONL for reading and appending, under an exclusive lock."""
        with self.jsonl_path.open("a+b") as file:  # NFS gives an exclusive lock only on a file open for writing
            deadline = time.monotonic() + LOCK_DEADLINE_SECONDS
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > deadline:
                    held = f"for {LOCK_DEADLINE_SECONDS:g} s"
                    raise TimeoutError(f"another process has held the lock on {self.jsonl_path} {held}")
                time.sleep(_LOCK_RETRY_SECONDS)
            yield file


def load(*paths: Path) -> Loaded:
    """Reads JSONL files of records; duplicates count once. A damaged line or an unknown format is reported."""
    records: dict[str, Record] = {}
    problems: list[str] = []
    for path in paths:
        with path.open("rb") as file:
            loaded = _load(file, path)
        problems += loaded.problems
        records |= {record.identity.run_id: record for record in loaded.records}
    return Loaded(list(records.values()), problems)


def _load(file: IO[bytes], path: Path) -> Loaded:
    records: list[Record] = []
    problems: list[str] = []
    enabled = gc.isenabled()
    gc.disable()  # records have no cycles; with 100,000 records, the collector takes two thirds of the time
    try:
        for number, line in enumerate(file, start=1):
            try:
                records += [Record.from_json(line)] if line.strip() else []
            except UnknownFormatError as error:
                problems.append(f"{path}:{number}: {error}")
            except ValueError as error:
                problems.append(f"{path}:{number}: skipped a damaged line ({error}).")
    finally:
        if enabled:
            gc.enable()
    return Loaded(records, problems)


def _last_line(file: IO[bytes]) -> bytes:
    """Returns the last line, with its newline if there is one, and moves to the end of the file."""
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while b"\n" not in tail[:-1] and len(tail) < end:
        begin = max(0, end - len(tail) - _BLOCK_BYTES)
        file.seek(begin)
        tail = file.read(end - begin)
    file.seek(0, os.SEEK_END)
    return tail[tail[:-1].rfind(b"\n") + 1 :]


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def as_csv(records: Iterable[Record]) -> str:
    """Returns the records as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in columns.COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(columns.row(record) for record in records)
    return text.getvalue()


def replace(path: Path, text: str) -> None:
    """Replaces a file atomically: a reader, or a crash, sees either the old text or the new."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
