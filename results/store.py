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
from collections.abc import Iterator
from pathlib import Path

from results import columns
from results.record import Record, UnknownFormatError

JSONL_NAME = "results.jsonl"
CSV_NAME = "results.csv"


class StoreError(OSError):
    """The results directory cannot be written."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The records of a file, and a sentence for every line that is none."""

    records: list[Record]
    problems: list[str]


class Store:
    """A directory of results.

    Raises:
        StoreError: the directory cannot be made or written; checked when the store is opened, so that a run is
            refused before it starts and not after it has finished.
    """

    def __init__(self, directory: Path) -> None:
        self.jsonl_path = directory / JSONL_NAME
        self.csv_path = directory / CSV_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
            with self.jsonl_path.open("ab"):
                pass
        except OSError as error:
            raise StoreError(
                f"Results cannot be written to --output_dir={directory}: {error.strerror}. "
                "Name a directory that can be made and written."
            ) from error

    def append(self, record: Record) -> None:
        """Appends the record and brings the CSV up to date. On return both are on disk."""
        with self._locked():
            with self.jsonl_path.open("r+b") as file:
                if file.seek(0, os.SEEK_END) > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a writer was killed in mid-line
                        file.write(b"\n")
                file.write(record.to_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            _replace(self.csv_path, _as_csv(load(self.jsonl_path).records))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self.jsonl_path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def load(path: Path) -> Loaded:
    """Reads a JSONL file of records. A line that is torn or of an unknown format is reported, not fatal."""
    records, problems = [], []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                records.append(Record.from_json(line))
            except UnknownFormatError as error:
                problems.append(f"{path}:{number}: {error}")
            except ValueError as error:
                problems.append(f"{path}:{number}: skipped a damaged line ({error}).")
    return Loaded(records, problems)


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
