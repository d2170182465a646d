"""Where records are kept: `results.jsonl`, one line a run, and `results.csv`, a view of it.

A record is appended, flushed and fsynced under a lock, so that a finished run survives a kill and two runs may share
a directory. The CSV is rewritten from the JSONL and renamed into place, so that a reader never sees half of it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from results import columns
from results.record import Record, UnknownFormatError

JSONL_NAME = "results.jsonl"
CSV_NAME = "results.csv"
LOCK_DEADLINE_SECONDS = 60.0
_LOCK_RETRY_SECONDS = 0.05


class StoreError(OSError):
    """The results directory cannot be written."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The records of a file, and a sentence for every line that is none."""

    records: list[Record]
    problems: list[str]


class Store:
    """A directory of results.

    Args:
        directory: is made if needed.
        lock_deadline_seconds: how long to wait for another writer.

    Raises:
        StoreError: the directory cannot be made, written or locked; checked when the store is opened, so that a run is
            refused before it starts and not after it has finished.
    """

    def __init__(self, directory: Path, lock_deadline_seconds: float = LOCK_DEADLINE_SECONDS) -> None:
        self.jsonl_path = directory / JSONL_NAME
        self.csv_path = directory / CSV_NAME
        self._lock_deadline_seconds = lock_deadline_seconds
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory), self._locked():
                pass
        except OSError as error:
            raise StoreError(
                f"Results cannot be written to --output_dir={directory}: {error.strerror or error}. "
                "Name a directory that can be made and written."
            ) from error

    def append(self, *records: Record) -> list[str]:
        """Appends records and brings the CSV up to date. On return both are on disk.

        Returns:
            A sentence for every line of the file that is no record, and so not in the CSV.

        Raises:
            StoreError: the files cannot be written, or not be locked in time.
        """
        try:
            with self._locked() as file:
                if file.seek(0, os.SEEK_END) > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a writer was killed in mid-line
                        file.write(b"\n")
                file.write(b"".join(record.to_json().encode() + b"\n" for record in records))
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                loaded = _load(file, self.jsonl_path)
                _replace(self.csv_path, _as_csv(loaded.records))
        except OSError as error:
            raise StoreError(f"The record could not be stored: {error.strerror or error}.") from error
        return loaded.problems

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Opens the JSONL for reading and appending, alone among all processes."""
        with self.jsonl_path.open("a+b") as file:  # open for writing, without which NFS gives no exclusive lock
            deadline = time.monotonic() + self._lock_deadline_seconds
            while not _try_lock(file):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held the lock on {self.jsonl_path} for {self._lock_deadline_seconds:g} s"
                    )
                time.sleep(_LOCK_RETRY_SECONDS)
            yield file


def load(path: Path) -> Loaded:
    """Reads a JSONL file of records. A line that is torn or of an unknown format is reported, not fatal."""
    with path.open("rb") as file:
        return _load(file, path)


def _load(file: IO[bytes], path: Path) -> Loaded:
    records, problems = [], []
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            records.append(Record.from_json(line.decode()))
        except UnknownFormatError as error:
            problems.append(f"{path}:{number}: {error}")
        except ValueError as error:
            problems.append(f"{path}:{number}: skipped a damaged line ({error}).")
    return Loaded(records, problems)


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _as_csv(records: list[Record]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in columns.COLUMNS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(columns.row(record) for record in records)
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a crash, sees either the old text or the new."""
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
