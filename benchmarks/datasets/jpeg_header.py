"""The header of a JPEG, read without decoding it. Imports without TensorFlow.

Source: ITU-T T.81, annex B: a marker is 0xFF and a code; but for a few, a length of two bytes follows, itself included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

_START, _END = b"\xff\xd8", b"\xff\xd9"
_PNG = b"\x89PNG\r\n\x1a\n"
# Start of frame, baseline to arithmetic; 0xC4, 0xC8 and 0xCC are other things.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_SCAN = 0xDA


@dataclasses.dataclass(frozen=True)
class JpegHeader:
    """Height and width in pixels, and components: 1 for grey, 3 for colour, 4 for CMYK."""

    height: int
    width: int
    components: int


class BadJpegError(ValueError):
    """The bytes are no whole JPEG. `kind` is one word, for a table."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def read(data: bytes) -> JpegHeader:
    """Reads the size of a JPEG, and checks that it has an end.

    Raises:
        BadJpegError: it is something else, or cut off.
    """
    if not data:
        raise BadJpegError("zero_length", "its image is empty (0 bytes)")
    if data.startswith(_PNG):
        raise BadJpegError("png", f"its image of {len(data)} bytes is a PNG")
    if not data.startswith(_START):
        raise BadJpegError("not_jpeg", f"its image of {len(data)} bytes is no JPEG (it begins with {data[:4].hex()})")
    header = None
    for code, position in _segments(data):
        if code in _FRAMES and position + 10 <= len(data):
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            header = JpegHeader(height, width, data[position + 9])
    if header is None:
        raise BadJpegError("not_jpeg", "its JPEG has a scan before any frame")
    # Not the very end: cameras append things. Within a scan, these bytes cannot stand for anything else.
    if data.rfind(_END) < position:
        raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off: it has no end marker")
    if not header.height or not header.width:
        raise BadJpegError("size", f"its JPEG is of {header.width}x{header.height} pixels")
    return header


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields code and position of each marker, up to the first scan."""
    position, code = len(_START), 0
    while code != _SCAN:
        if position + 4 > len(data):
            raise BadJpegError("truncated", f"its JPEG of {len(data)} bytes is cut off within the header")
        if data[position] != 0xFF:
            raise BadJpegError("not_jpeg", f"its JPEG has no marker at byte {position}")
        code = data[position + 1]
        if code == 0xFF:  # padding
            position += 1
            continue
        yield code, position
        position += 2 + (0 if code in _WITHOUT_LENGTH else int.from_bytes(data[position + 2 : position + 4], "big"))
