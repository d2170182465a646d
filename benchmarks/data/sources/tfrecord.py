"""Reads and writes TFRecord files record by record, so that an error can name the damaged record. Needs no TensorFlow.

A record is its length (8 bytes, little-endian), a masked CRC32C of the length, the payload, a masked CRC32C of the
payload. Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import google_crc32c

from benchmarks.data.sources import safe_files
from benchmarks.data.sources.data_sets import reading
from benchmarks.data.sources.safe_files import open_file
from benchmarks.errors import DataError
from results.loading import IS_LFS_POINTER, LFS_POINTER

_HEADER = struct.Struct("<QI")
Compression = Literal["", "GZIP", "ZLIB"]
_ANY_HEADER = zlib.MAX_WBITS | 32  # of gzip or zlib
_BLOCK_BYTES = 2**18
_FOOTER = struct.Struct("<I")


class FramedRecord(NamedTuple):
    """One record: its number in the file from 0, the byte where it starts, its payload."""

    number: int
    offset: int
    payload: bytes


@dataclasses.dataclass(frozen=True)
class Defect:
    """A record that cannot be used: its file, its number from 0, the byte where it starts, and what is wrong.

    The number is -1 if the file is one photo.

    The kind is one word: crc, truncated, keys, label, not_jpeg, png, size, pixels ..., or `shard` for a whole file. The
    reason includes what to do.
    """

    path: Path
    number: int
    offset: int
    kind: str
    reason: str

    def __str__(self) -> str:
        """Returns a sentence."""
        is_whole = self.kind == "shard" or self.number < 0
        place = "" if is_whole else f"record {self.number} at byte {self.offset}: "
        return f"{self.path}: {place}{self.reason}."

    def error(self) -> DataError:
        """Returns the sentence as an error."""
        return DataError(str(self))


def walk(path: Path) -> Iterator[FramedRecord | Defect]:
    """Yields every record of a file, or its defect. After a damaged length nothing more can be read.

    Raises:
        DataError: the file cannot be read, or is no regular file.
    """
    for frame in _frames(path):
        if isinstance(frame, Defect):
            yield frame
            continue
        file, number, offset, length = frame
        with reading(path):
            payload, footer = file.read(length), file.read(_FOOTER.size)
        if footer == _FOOTER.pack(_masked_crc(payload)):
            yield FramedRecord(number, offset, payload)
        else:
            reason = f"the checksum of its {length} bytes does not match; copy or make the file again"
            yield Defect(path, number, offset, "crc", reason)


def count(path: Path) -> tuple[int, Defect | None]:
    """Returns the number of records that `walk` yields, and what ends them early. Reads their lengths only.

    Raises:
        DataError: the file cannot be read, or is no regular file.
    """
    number, defect = 0, None
    for frame in _frames(path):
        number, defect = number + 1, defect or (frame if isinstance(frame, Defect) else None)
    return number, defect


def lengths_are_safe(path: Path) -> bool:
    """Returns whether no record up to the first damaged one states a length above the limit.

    A run does this within its steps: 3 us for a record. TensorFlow compares the checksum of a length before it
    allocates, and reports a file that ends within a record.

    Raises:
        DataError: the file cannot be read, is no regular file, or cannot be decompressed.
    """
    return not any(isinstance(frame, Defect) and frame.kind == "size" for frame in _frames(path))


def write(file: BinaryIO, payload: bytes) -> None:
    """Appends a record to a file."""
    length = struct.pack("<Q", len(payload))
    file.write(length + _FOOTER.pack(_masked_crc(length)) + payload + _FOOTER.pack(_masked_crc(payload)))


def compression_of(path: Path) -> Compression:
    """Returns how a whole file is compressed, as TensorFlow calls it; empty if it is not. Raises as `walk` does."""
    with reading(path), open_file(path) as file:
        start = file.read(_HEADER.size)
    if len(start) == _HEADER.size and start[8:] == _FOOTER.pack(_masked_crc(start[:8])):
        return ""  # the length of a record may begin like a compressed file
    if start.startswith(b"\x1f\x8b"):
        return "GZIP"
    # Source: RFC 1950, section 2.2: method 8, and a header that is a multiple of 31.
    return "ZLIB" if start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0 else ""


class _Inflated:
    """Reads a compressed file forwards."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decompressor, self._held, self._position = zlib.decompressobj(_ANY_HEADER), b"", 0

    def read(self, size: int) -> bytes:
        """Returns the next bytes, fewer at the end of the file."""
        try:
            while len(self._held) < size and self._more(size):
                pass
        except zlib.error as error:
            raise DataError(f"{self._path} cannot be decompressed ({error}): copy or make it again.") from error
        data, self._held = self._held[:size], self._held[size:]
        self._position += len(data)
        return data

    def _more(self, size: int) -> bool:
        if self._decompressor.eof:  # a file may hold several streams, one after the other
            rest = self._decompressor.unused_data or self._file.read(_BLOCK_BYTES)
            self._decompressor = zlib.decompressobj(_ANY_HEADER)
        else:
            rest = self._decompressor.unconsumed_tail or self._file.read(_BLOCK_BYTES)
        self._held += self._decompressor.decompress(rest, max(_BLOCK_BYTES, size - len(self._held)))
        return bool(rest)

    def seek(self, position: int) -> None:
        while self._position < position and self.read(min(_BLOCK_BYTES, position - self._position)):
            pass


def _frames(path: Path) -> Iterator[tuple[BinaryIO | _Inflated, int, int, int] | Defect]:
    """Yields the file at each payload, with the record's number, offset and payload length, or a record's defect."""
    compressed = compression_of(path)
    with reading(path), open_file(path) as opened:
        file = _Inflated(opened, path) if compressed else opened
        size = math.inf if compressed else opened.seek(0, os.SEEK_END)
        opened.seek(0)
        number = offset = 0
        while header := file.read(_HEADER.size):
            if len(header) < _HEADER.size:
                kind, reason = "truncated", f"the file ends within its {_HEADER.size}-byte header"
                break
            length, crc = _HEADER.unpack(header)
            if LFS_POINTER.startswith(header):
                yield Defect(path, number, offset, "shard", f"it {IS_LFS_POINTER}")
                return
            if crc != _masked_crc(header[:8]):
                kind, reason = (
                    "crc",
                    "the checksum of its length does not match: damaged, or no TFRecord file",
                )
                break
            end = offset + _HEADER.size + length + _FOOTER.size
            is_safe = length <= safe_files.MOST_PHOTO_BYTES
            if end > size:
                kind, reason = "truncated" if is_safe else "size", f"the file ends within its {length} bytes"
                break
            if is_safe:
                yield file, number, offset, length
            else:
                reason = (
                    f"its length of {length} bytes is above the limit of {safe_files.MOST_PHOTO_BYTES}; leave it out"
                )
                yield Defect(path, number, offset, "size", reason)
            number, offset = number + 1, end
            file.seek(end)
        else:
            return
        yield Defect(path, number, offset, kind, f"{reason}; copy or make the file again")


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
