"""Stores records in `results.jsonl`, one line per run, and derives `results.csv` from it.

A record is appended, flushed and fsynced under a lock: a finished run survives a kill, and two runs may share a
directory. Its row is appended to the CSV in the same way. If the CSV has other columns or ends within a row, it is
rebuilt from the JSONL and renamed into place, so a reader never sees half of it; one with columns of a user is kept.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import errno
import fcntl
import io
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from results import columns
from results.loading import CONFLICT_MARKS, Loaded, foreign_format, open_file
from results.record import Record

JSONL_NAME = "results.jsonl"
LOCK_DEADLINE_SECONDS = 60.0
_LOCK_RETRY_SECONDS = 0.05
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, 524)  # 524: ENOTSUPP, of NFS
_BLOCK_BYTES = 2**16
_BEGINNING = b'{"identity"'  # of a record
_NO_RECORDS = "does not begin with a record: name another directory, or move the file away"
# What a results directory must have room for before a run starts: the record of some 50,000 steps.
_ROOM_BYTES = 2**20


class StoreError(OSError):
    """The results directory cannot be written."""


class Store:
    """A directory of results, created if it is missing.

    Attributes:
        jsonl_path, csv_path: its files.
        csv_has_last: whether the CSV has the records that were appended last.

    Raises:
        StoreError: the directory or one of its files cannot be created, written or locked, or the disk is full. This
            is checked before a run starts.
    """

    def __init__(self, directory: Path) -> None:
        self.jsonl_path = directory / JSONL_NAME
        self.csv_path = directory / "results.csv"
        self.csv_has_last = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as room:
                room.write(bytes(_ROOM_BYTES))
                _sync(room)
            for path in (self.jsonl_path, self.csv_path):
                if path.exists() and not path.is_file():
                    raise OSError(f"{path.name} is not a regular file")
            with locked(self.jsonl_path) as file:
                if why_not := _why_not_appended_to(file):
                    raise OSError(f"{self.jsonl_path.name} {why_not}")
                if self.csv_path.exists():
                    self.csv_path.open("r+b").close()
            sync_directory(directory)
        except OSError as error:
            raise StoreError(
                f"Results cannot be written to --output_dir={directory}: {_in_words(error)}. "
                "Name a directory that can be created and written, on a disk with room."
            ) from error

    def size_bytes(self) -> int:
        """Returns the size of the JSONL file; 0 if it was removed."""
        return self.jsonl_path.stat().st_size if self.jsonl_path.exists() else 0

    def load(self, offset: int = 0) -> Loaded:
        """Reads the records from byte `offset` on; none if the file was removed."""
        loaded = Loaded()
        if self.jsonl_path.exists():
            with open_file(self.jsonl_path) as file:
                file.seek(offset)
                loaded.add_lines(file, self.jsonl_path)
        return loaded

    def append(self, *records: Record) -> list[str]:
        """Appends records to both files, which are made anew if they were removed. On return they are on disk.

        Returns:
            Sentences on what else is to be known: why the CSV does not have the records, and if it was rebuilt, every
            line of the JSONL that is not a record.

        Raises:
            StoreError: the JSONL cannot be written, or cannot be locked in time.
        """
        try:
            self.jsonl_path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.jsonl_path) as file:
                last = append_lines(file, records)
                self.csv_has_last = False
                try:
                    sentences = self._update_csv(file, records, after=last)
                    self.csv_has_last = True
                    return sentences
                except OSError as error:
                    return [
                        f"{self.csv_path} could not be written: {_in_words(error)}. The record is in "
                        f"{self.jsonl_path}; the next run that can write the CSV makes it anew from there."
                    ]
        except OSError as error:
            raise StoreError(f"The record could not be stored: {_in_words(error)}.") from error

    def _update_csv(self, file: IO[bytes], records: Sequence[Record], *, after: bytes) -> list[str]:
        """Adds rows to the CSV, or rebuilds it from the JSONL; returns a sentence for every damaged line."""
        header, _, rows = as_csv(records).partition("\n")
        columns = b""
        if self.csv_path.exists():
            with open_file(self.csv_path) as table:
                columns = table.readline()
        if columns == f"{header}\n".encode() and self._append_rows(rows, after=after):
            return []
        sentences: list[str] = []
        derived = set(columns.decode(errors="replace").rstrip("\r\n").split(",")) <= set(header.split(","))
        if columns and not (after and derived):  # rows or columns that are nowhere else
            at = int(time.time())
            while (backup := self.csv_path.with_suffix(f".{at}.csv")).exists():
                at += 1
            os.replace(self.csv_path, backup)
            why = f"{self.csv_path} had other columns" if after else f"{self.jsonl_path} is new"
            sentences.append(f"{why}, so the rows of the earlier {self.csv_path.name} are now in {backup}.")
        file.seek(0)
        loaded = Loaded()
        loaded.add_lines(file, self.jsonl_path)
        replace(self.csv_path, as_csv(loaded.records))
        return [*sentences, *loaded.problems]

    def _append_rows(self, rows: str, *, after: bytes) -> bool:
        """Appends rows to the CSV if it ends with the record `after`; returns whether it did."""
        try:
            last_run_id = Record.from_json(after).identity.run_id
            with self.csv_path.open("r+b") as file:
                last_row = _last_line(file)
                if not (last_row.endswith(b"\n") and last_row.startswith(f"{last_run_id},".encode())):
                    return False
                file.write(rows.encode())
                _sync(file)
            return True
        except ValueError:
            return False


@contextlib.contextmanager
def locked(path: Path, within_seconds: float | None = None) -> Iterator[IO[bytes]]:
    """Opens a file for reading and appending under an exclusive lock, and creates it if it is missing.

    `within_seconds` is how long the lock is waited for; None for `LOCK_DEADLINE_SECONDS`.

    Raises:
        OSError: it cannot be opened or locked.
        TimeoutError: another process has held the lock for so long; it may be stopped.
    """
    while True:
        with path.open("a+b") as file:  # NFS gives an exclusive lock only on a file open for writing
            _lock(file, path, LOCK_DEADLINE_SECONDS if within_seconds is None else within_seconds)
            # The process that held the lock may have removed the file, or renamed another into its place.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return


def _lock(file: IO[bytes], path: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            reason = f"its file system has no locks ({error.strerror}); Lustre has them if it is mounted with -o flock"
            raise OSError(error.errno, reason) from error
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held the lock on {path} for {seconds:g} s")
        time.sleep(_LOCK_RETRY_SECONDS)


def _why_not_appended_to(file: IO[bytes]) -> str:
    """Returns why no record may be appended to a file, to follow its name; nothing if its first line may be one."""
    file.seek(0)
    start = file.read(_BLOCK_BYTES).removeprefix(codecs.BOM_UTF8)
    line = start.lstrip(b"\0 \t\r\n").partition(b"\n")[0]  # a crash of the host may leave NULs
    if line.startswith(CONFLICT_MARKS):
        return "has a merge conflict of git: resolve it"
    return foreign_format(line) or ("" if not line or _may_be_record(line) else _NO_RECORDS)


def _may_be_record(line: bytes) -> bool:
    return line.startswith(_BEGINNING) or line.startswith(b"{") and b'"format_version"' in line


def _last_line(file: IO[bytes]) -> bytes:
    """Returns the last line, with its newline if there is one, and moves to the end of the file."""
    end = file.seek(0, os.SEEK_END)
    tail, size = b"", _BLOCK_BYTES
    while b"\n" not in tail[:-1] and len(tail) < end:
        begin = max(0, end - size)
        file.seek(begin)
        tail = file.read(end - begin)
        size *= 2
    file.seek(0, os.SEEK_END)
    return tail[tail[:-1].rfind(b"\n") + 1 :]


def _in_words(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or error}"


def append_lines(file: IO[bytes], records: Iterable[Record]) -> bytes:
    """Appends a line for each record to a locked file, all of them or none; returns the last line before them.

    Raises:
        OSError: they cannot be written.
    """
    if why_not := _why_not_appended_to(file):
        raise OSError(f"{file.name} {why_not}")
    last = _last_line(file)
    torn = bool(last) and not last.endswith(b"\n")  # a writer was killed in mid-line
    data = b"\n" * torn + b"".join(record.to_json().encode() + b"\n" for record in records)
    end = file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[os.write(file.fileno(), data) :]
        os.fsync(file.fileno())
    except OSError:
        os.ftruncate(file.fileno(), end)
        raise
    return last


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def as_csv(records: Iterable[Record]) -> str:
    """Returns the records as CSV with a header."""
    written = io.BytesIO()  # a StringIO takes four bytes for a character
    with io.TextIOWrapper(written, encoding="utf-8", errors="backslashreplace", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in columns.COLUMNS])
        writer.writerows(columns.row(record).values() for record in records)
        text.flush()
        return written.getvalue().decode()


def replace(path: Path, content: str | bytes) -> None:
    """Replaces a file atomically: a reader, or a crash, sees either the old content or the new.

    A symbolic link stays one, and a file keeps its mode. What is no file, such as `/dev/stdout`, is written to.

    Raises:
        OSError: it cannot be written, or has records, and the content has none.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    device: Path | int | None = path if path.exists() and not path.is_file() else None
    for number in (2, 1):  # /dev/stdout may be a file, which must not be replaced while it is being written
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), path.stat()):
                device = number
    if device is not None:
        with open(device, "wb", closefd=device is path) as file:
            file.write(data)
        return
    target = Path(os.path.realpath(path))
    if data and target.exists() and not _may_be_record(data.partition(b"\n")[0]):
        with target.open("rb") as file:
            if file.read(len(_BEGINNING)) == _BEGINNING:
                raise OSError(errno.EEXIST, "it has records, which would be lost", str(path))
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with partial.open("xb") as file:
        try:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(data)
            _sync(file)
            os.replace(partial, target)
        except BaseException:
            partial.unlink()
            raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Makes new names in a directory survive a power cut, where its file system can do that."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(number)
    finally:
        os.close(number)
