"""Reads the header of a JPEG or PNG without decoding it, and finds what is wrong. Needs no TensorFlow."""

from __future__ import annotations

import struct
from typing import NamedTuple

from results.loading import IS_LFS_POINTER, LFS_POINTER

# Of one photo: 400 MB when decoded, on every core.
MOST_PIXELS = 2**27
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_START, _END = b"\xff\xd8", b"\xff\xd9"
_PNG_END = b"IEND\xaeB`\x82"  # an empty chunk and its checksum
# Markers of frames, baseline to arithmetic; 0xC4, 0xC8 and 0xCC have other meanings.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
# Lossless and hierarchical ones, which libjpeg does not decode.
_UNUSUAL_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF}
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD8)}
_SCAN, _PADDING = 0xDA, 0xFF
_CONVERT = "replace it, or convert all with 'run_bench.py data convert', which takes JPEG, PNG, GIF, BMP, WebP and TIFF"


class JpegHeader(NamedTuple):
    """Height and width in pixels, and components: 1 for grey, 3 for colour, 4 for CMYK."""

    height: int
    width: int
    components: int


class BadPhotoError(ValueError):
    """A photo, or the record that holds it, cannot be used: why, and what to do. `kind` is one word, for a table."""

    def __init__(self, kind: str, reason: str, advice: str = "replace it") -> None:
        super().__init__(f"{reason}; {advice}")
        self.kind = kind


def read_jpeg_header(data: bytes) -> JpegHeader:
    """Reads the size of a JPEG, and checks that it has an end marker.

    Raises:
        BadPhotoError: the bytes are another format, or cut off, or too large when decoded, or cannot be decoded.
    """
    if not data:
        raise BadPhotoError("zero_length", "its image is empty (0 bytes)")
    if data.startswith(LFS_POINTER):
        raise BadPhotoError("lfs", f"its file {IS_LFS_POINTER}", "then start again")
    if data.startswith(PNG_SIGNATURE):
        raise BadPhotoError("png", f"its image of {len(data)} bytes is a PNG", _CONVERT)
    if not data.startswith(_START):
        what = f"its image of {len(data)} bytes is no JPEG (it begins with {data[:4].hex()})"
        raise BadPhotoError("not_jpeg", what, _CONVERT)
    header, position, code = None, len(_START), 0
    while code != _SCAN:
        if position + 4 > len(data):
            raise BadPhotoError("truncated", f"its JPEG of {len(data)} bytes is cut off within the header")
        marker, code, length = struct.unpack_from(">BBH", data, position)
        if marker != 0xFF:
            raise BadPhotoError("not_jpeg", f"its JPEG has no marker at byte {position}")
        if code in _FRAMES and position + 10 <= len(data):
            header = _read_frame(code, data[position + 4 : position + 10])
        if code != _SCAN:
            position += 1 if code == _PADDING else 2 if code in _WITHOUT_LENGTH else 2 + length
    if header is None:
        raise BadPhotoError("not_jpeg", "its JPEG has a scan before any frame")
    # Searched, since cameras append data after the end marker. Within a scan, these bytes have no other meaning.
    if data.rfind(_END) < position:
        raise BadPhotoError("truncated", f"its JPEG of {len(data)} bytes is cut off: it has no end marker")
    check_size(header.height, header.width)
    return header


def _read_frame(code: int, frame: bytes) -> JpegHeader:
    bits, *fields = struct.unpack(">BHHB", frame)
    if code in _UNUSUAL_FRAMES or bits != 8:
        raise BadPhotoError("unusual", f"its JPEG has {bits} bits per sample or is lossless, which is not decoded")
    return JpegHeader(*fields)


def _check_png_header(data: bytes) -> None:
    if data.find(_PNG_END, 24) < 0:  # after width and height; programs append data to a PNG, too
        raise BadPhotoError("truncated", f"its PNG of {len(data)} bytes is cut off: it has no end marker")
    width, height = struct.unpack_from(">II", data, 16)
    check_size(height, width)


def check_size(height: int, width: int) -> None:
    """Checks the size of an image in pixels.

    Raises:
        BadPhotoError: it has no pixels, or too many to be decoded.
    """
    size = f"its image is of {width}x{height} pixels"
    if not height or not width:
        raise BadPhotoError("size", size)
    if height * width > MOST_PIXELS:
        raise BadPhotoError("size", f"{size}, above the limit of {MOST_PIXELS / 1e6:.0f} million", "make it smaller")


def check_header(encoded: bytes, png_too: bool = False) -> None:
    """Checks the header and end marker of a photo, in microseconds. With `png_too`, a PNG is sound, too.

    Raises:
        BadPhotoError: they are not sound.
    """
    if png_too and encoded.startswith(PNG_SIGNATURE):
        _check_png_header(encoded)
    else:
        read_jpeg_header(encoded)
