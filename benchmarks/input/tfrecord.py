"""The framing of TFRecord files, read record by record, so that damage can be named. Needs no TensorFlow.

A record is its length (8 bytes, little-endian), a masked CRC32C of the length, the payload, a masked CRC32C of the
payload. Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from benchmarks.errors import DataError

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_AGAIN = "copy or make the file again"


@dataclasses.dataclass(frozen=True)
class FramedRecord:
    """One record: its number in the file from 0, the byte where it starts, its payload."""

    number: int
    offset: int
    payload: bytes


def records(path: Path) -> Iterator[FramedRecord]:
    """Yields a file's records, checking every length and checksum.

    Raises:
        DataError: names the file, the record, the byte offset and what is wrong.
    """
    for found in walk(path):
        if isinstance(found, Defect):
            raise found.error()
        yield found


def walk(path: Path) -> Iterator[FramedRecord | Defect]:
    """Yields every record of a file, or what is wrong with it; after a damaged length there is no way on.

    Raises:
        DataError: the file cannot be opened.
    """
    with _open(path) as file:
        for frame in _frames(path, file):
            if isinstance(frame, Defect):
                yield frame
                return
            number, offset, length = frame
            payload = file.read(length)
            footer = file.read(_FOOTER.size)
            if len(payload) + len(footer) < length + _FOOTER.size:
                yield _ends_within(path, number, offset, length)
                return
            if _FOOTER.unpack(footer)[0] != _masked_crc(payload):
                reason = f"the checksum of its {length} bytes does not match; {_AGAIN}"
                yield Defect(path, number, offset, "crc", reason)
            else:
                yield FramedRecord(number, offset, payload)


def write(file: BinaryIO, payload: bytes) -> None:
    """Appends a record to a file."""
    length = struct.pack("<Q", len(payload))
    file.write(length + _FOOTER.pack(_masked_crc(length)) + payload + _FOOTER.pack(_masked_crc(payload)))


def count(path: Path) -> int:
    """Returns the number of records, from their lengths alone.

    Raises:
        DataError: a length is damaged, or the file ends within a record.
    """
    records_seen = 0
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        for frame in _frames(path, file):
            if isinstance(frame, Defect):
                raise frame.error()
            number, offset, length = frame
            if file.seek(length + _FOOTER.size, os.SEEK_CUR) > size:
                raise _ends_within(path, number, offset, length).error()
            records_seen += 1
    return records_seen


def _frames(path: Path, file: BinaryIO) -> Iterator[tuple[int, int, int] | Defect]:
    """Yields number, offset and payload length of each record, with the file standing at the payload."""
    number = 0
    while True:
        offset = file.tell()
        header = file.read(_HEADER.size)
        if not header:
            return
        if len(header) < _HEADER.size:
            reason = f"the file ends within its {_HEADER.size}-byte header; {_AGAIN}"
            yield Defect(path, number, offset, "truncated", reason)
            return
        length, crc = _HEADER.unpack(header)
        if crc != _masked_crc(header[:8]):
            reason = f"the checksum of its length does not match, so nothing after it can be read; {_AGAIN}"
            yield Defect(path, number, offset, "crc", reason)
            return
        yield number, offset, length
        number += 1


def _ends_within(path: Path, number: int, offset: int, length: int) -> Defect:
    return Defect(path, number, offset, "truncated", f"the file ends within its {length} bytes; {_AGAIN}")


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


@dataclasses.dataclass(frozen=True)
class Defect:
    """A record that cannot be used.

    Attributes:
        path: the file.
        number: the record's number in it, from 0.
        offset: the byte where it starts.
        kind: one word: crc, truncated, keys, label, not_jpeg, png, size, pixels ...
        reason: what is wrong, and what to do.
    """

    path: Path
    number: int
    offset: int
    kind: str
    reason: str

    def __str__(self) -> str:
        """Returns a sentence."""
        return f"{self.path}: record {self.number} at byte {self.offset}: {self.reason}."

    def error(self) -> DataError:
        """Returns an error that says all of it."""
        return DataError(str(self))
