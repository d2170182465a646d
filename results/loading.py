"""Reads files of records, which may come from anywhere: see `results.store` for how they are written."""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from msgspec.structs import replace

from results.record import Record, UnknownFormatError

_MOST_PROBLEMS = 20  # of one file
# As kubectl, mpirun and srun print the output of several runs.
_IN_A_LOG = "If prefixes of a log precede them, grep -o '{\"identity\".*' FILE prints them alone."
_MOST_BYTES_OF_SMALL = 2**24
_JOINT, _PARTED = b'}{"identity"', b'}\n{"identity"'
CONFLICT_MARKS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
# Of a shell's pipe or <(...), which have a writer, and what is always empty: no regular files, but never waited for.
_AT_ONCE = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/", os.devnull)
LFS_POINTER = b"version https://git-lfs"  # how such a file begins
IS_LFS_POINTER = "is a pointer of Git LFS and not the file itself: run git lfs pull"
_UTF16 = "is in UTF-16, and records are in UTF-8: convert it (iconv -f utf-16 -t utf-8)"
# Of gzip, Zstandard, xz, bzip2 and ZIP.
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")
# How an array of records begins; a prefix of a line in a log, such as [pod/name], is none.
_ARRAY = re.compile(rb"\[\s*(\{|$)")
# Of results.csv, also as spreadsheets save it.
_HEADS_OF_CSV = (b"run_id,", b"run_id;", b"run_id\t", b'"run_id"')
# How files begin that users take for records, and the message about them.
_FOREIGN_FORMATS = (
    ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), _UTF16),
    (_COMPRESSED, "is compressed: unpack it (gunzip, unzstd, unxz, bunzip2 or unzip)"),
    ((b"PAR1", *_HEADS_OF_CSV), "was exported from records: name results.jsonl, of which it was made"),
    ((LFS_POINTER,), IS_LFS_POINTER),
)


def open_file(path: Path) -> io.BufferedReader:
    """Opens a regular file to read. To open a FIFO would wait for a writer, and a device may have no end.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    def open_regular(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", name)

    return open(path, "rb", opener=open_regular)


def read_small(path: Path) -> bytes:
    """Returns the content of a regular file, or a pipe of the shell, that people or this suite write: a suite, a cache.

    Raises:
        OSError: it cannot be opened, is of another kind, or is larger than any such file.
    """
    with _open(path) as file:
        content = file.read(_MOST_BYTES_OF_SMALL + 1)
    if len(content) > _MOST_BYTES_OF_SMALL:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES_OF_SMALL} bytes", str(path))
    return content


def _open(path: Path) -> IO[bytes]:
    return open(path, "rb") if str(path).startswith(_AT_ONCE) else open_file(path)


def load(*paths: Path) -> Loaded:
    """Reads JSONL files of records. A damaged line or an unknown format is reported.

    A run that is there twice counts once. What contradicts an earlier record is reported and kept apart: another run
    with its id, or another configuration with its key, which gets another key here.

    Raises:
        OSError: a file cannot be read, or is no regular file.
    """
    loaded = Loaded()
    for path in paths:
        try:
            with _open(path) as file:
                loaded.add_lines(file, path)
        except OSError as error:  # of an error while it is read, Python does not know the name
            raise OSError(error.errno, error.strerror, str(path)) from error
    return loaded


class Loaded:
    """Records without duplicates, in the order in which they were read.

    Attributes:
        records: the records.
        problems: a sentence for every line that is not a record, or that contradicts an earlier one.
        of_other_formats: the lines of formats that this version cannot read.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.problems: list[str] = []
        self.of_other_formats: list[bytes] = []
        self._numbers: dict[str, list[int]] = {}  # by id, in `records`
        self._by_key: dict[str, Record] = {}

    def add_lines(self, file: IO[bytes], path: Path) -> None:
        """Adds the records of an open file."""
        records_before = len(self.records)
        problems: list[str] = []
        conflicts: list[int] = []
        begins_otherwise = False
        enabled = gc.isenabled()
        gc.disable()  # records have no cycles; with 100,000 records, the collector takes two thirds of the time
        try:
            for number, line in _lines(file):
                line = line.removeprefix(codecs.BOM_UTF8)  # also within a file that was joined of several
                if number == 1:
                    begins_otherwise = not line.startswith((b"{", *CONFLICT_MARKS))
                    if foreign := foreign_format(line):
                        self.problems.append(f"{path} {foreign}.")
                        return
                if line.startswith(CONFLICT_MARKS):
                    conflicts.append(number)
                    continue
                try:
                    if line.strip():
                        record = Record.from_json(line)
                        problems += (f"{path}:{number}: {contradiction}" for contradiction in self._add(record))
                except UnknownFormatError as error:
                    self.of_other_formats.append(line)
                    problems.append(f"{path}:{number}: {error}")
                except ValueError as error:
                    problems.append(f"{path}:{number}: skipped a damaged line ({error}).")
        finally:
            if enabled:
                gc.enable()
        if conflicts:
            conflict = f"{path}:{conflicts[0]}: has a merge conflict of git; the records of both sides are read."
            problems = [conflict, *problems]
        if problems and begins_otherwise and len(self.records) == records_before:
            problems = [f"{path} does not hold records: none of its lines is one. {_IN_A_LOG}"]
        if len(problems) > _MOST_PROBLEMS:
            problems[_MOST_PROBLEMS:] = [f"{path}: {len(problems) - _MOST_PROBLEMS} more lines have such a problem."]
        self.problems += problems

    def _add(self, record: Record) -> Iterator[str]:
        run_id = record.identity.run_id
        numbers = self._numbers.setdefault(run_id, [])
        for number in numbers:
            if _is_same_run(self.records[number], record):
                self.records[number] = _with_key(record, self.records[number].identity.config_key)
                return
        if numbers:
            yield f"another run has the id {run_id}, too: both are kept. Remove the one that is not yours."
        key = record.identity.config_key
        like = self._by_key.setdefault(key, record)
        while unlike := sorted(_unlike(like, record)):
            if key == record.identity.config_key:
                yield (
                    f"{run_id} has the config_key of {like.identity.run_id}, and another configuration "
                    f"({', '.join(unlike[:3])}): it is kept apart."
                )
            key += "*"
            like = self._by_key.setdefault(key, record)
        numbers.append(len(self.records))
        self.records.append(_with_key(record, key))


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields each line with its number, and each record of a line: a file may have ended without a line break."""
    for number, line in enumerate(file, start=1):
        for part in line.replace(_JOINT, _PARTED).splitlines(keepends=True) if _JOINT in line else [line]:
            yield number, part


def _with_key(record: Record, config_key: str) -> Record:
    if record.identity.config_key == config_key:
        return record
    return replace(record, identity=replace(record.identity, config_key=config_key))


def _is_same_run(record: Record, other: Record) -> bool:
    # One of them may be published, and lack what is private.
    return (
        record.ended == other.ended
        and record.status == other.status
        and record.measurement.step_seconds == other.measurement.step_seconds
    )


def _unlike(record: Record, other: Record) -> set[str]:
    if record.config is other.config:  # equal configurations of a file are often read as one object
        return set()
    names = record.config.keys() & other.config.keys() - {*record.config_not_in_key, *other.config_not_in_key}
    return {name for name in names if _differ(record.config[name], other.config[name])}


def _differ(value: Any, other: Any) -> bool:
    if value != other and isinstance(value, Mapping) and isinstance(other, Mapping):
        return any(_differ(value[name], other[name]) for name in value.keys() & other.keys())
    return bool(value != other)


def foreign_format(line: bytes) -> str:
    """Returns what a file with this first line is, to follow its name; nothing if it may hold records.

    The beginning of a record, which was left by a process that was killed, may.
    """
    sentence = next((reason for starts, reason in _FOREIGN_FORMATS if line.startswith(starts)), "")
    if not sentence and b"\0" in line[:4] and line[:4].strip(b"\0"):
        sentence = _UTF16
    if _ARRAY.match(line):
        sentence = "is a JSON array, and a file of records has one record per line: jq -c '.[]' FILE prints them so"
    if not sentence and line.strip() == b"{":
        sentence = (
            "is indented JSON, and a file of records has one record per line: if it has records, and is no export of "
            "them, jq -c . FILE prints them so"
        )
    return sentence
