"""For which GPUs the installed libraries have code, as contributing/tensorflow-facts.md states it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.seldom
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


def _code_of(path: Path) -> list[set[Code]]:
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


def _library(package: str, pattern: str) -> Path | None:
    found = importlib.util.find_spec(package)
    places = found.submodule_search_locations if found else None
    return next((path for place in places or () for path in Path(place).glob(pattern)), None)


def test_tensorflow_has_machine_code_up_to_8_9_and_else_what_a_driver_for_cuda_12_5_compiles() -> None:
    if not importlib.metadata.version("tensorflow").startswith("2.21."):
        pytest.skip("the facts are those of TensorFlow 2.21")
    library = _library("tensorflow", "libtensorflow_cc.so.*")
    assert library is not None
    binaries = _code_of(library)
    assert len(binaries) > 1000
    for held in binaries:
        assert {Code("machine code", capability) for capability in (60, 70, 80, 89)} <= held
        assert max(code.version for code in held if (code.kind, code.capability) == ("PTX", 90)) <= (8, 5)
    assert 0 < sum(Code("machine code", 90) in held for held in binaries) < len(binaries) / 2
    assert max(code.capability for held in binaries for code in held) == 90


def test_cudnn_has_code_from_turing_on() -> None:
    library = _library("nvidia", "cudnn/lib/libcudnn_ops.so.*")
    if library is None:
        pytest.skip("no cuDNN is installed")
    assert {75, 80, 90} <= {code.capability for held in _code_of(library) for code in held}
