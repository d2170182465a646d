"""For which GPUs a shared library has code: machine code, or PTX, which the driver compiles."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"\x50\xed\x55\xba"  # of a fat binary, as CUDA's compiler embeds it; its layout is not documented
_HEADER, _ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
_KINDS = {1: "PTX", 2: "machine code"}


class Code(NamedTuple):
    """Code in a fat binary.

    Attributes:
        kind: `PTX`, or `machine code`, which GPUs of the same major and of a later minor capability run, too.
        capability: major times ten plus minor, such as 90.
        version: of the PTX, such as (8, 5); a driver must be as new. (0, 0) of machine code.
    """

    kind: str
    capability: int
    version: tuple[int, int] = (0, 0)


def of_library(path: Path) -> list[set[Code]]:
    """Returns what each fat binary of a library holds."""
    found = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_MAGIC)
        while at >= 0:
            _, version, header, size = _HEADER.unpack_from(data, at)
            if (version, header) == (1, _HEADER.size) and at + header + size <= len(data):
                found.append(_entries(data, at + header, at + header + size))
            at = data.find(_MAGIC, at + len(_MAGIC))
    return found


def _entries(data: mmap.mmap, at: int, end: int) -> set[Code]:
    found = set()
    while at + _ENTRY.size <= end:
        kind, _, header, size, _, _, minor, major, capability = _ENTRY.unpack_from(data, at)
        if kind in _KINDS:
            found.add(Code(_KINDS[kind], capability, (major, minor) if kind == 1 else (0, 0)))
        at += header + size
    return found
