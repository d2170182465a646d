"""For which GPUs the installed libraries have code, as docs/background/tensorflow-facts.md states it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from tests.support import gpu_code
from tests.support.gpu_code import Code

pytestmark = pytest.mark.seldom


def _library(package: str, pattern: str) -> Path | None:
    found = importlib.util.find_spec(package)
    places = found.submodule_search_locations if found else None
    return next((path for place in places or () for path in Path(place).glob(pattern)), None)


def test_tensorflow_has_machine_code_up_to_8_9_and_else_what_a_driver_for_cuda_12_5_compiles() -> None:
    if not importlib.metadata.version("tensorflow").startswith("2.21."):
        pytest.skip("the facts are those of TensorFlow 2.21")
    library = _library("tensorflow", "libtensorflow_cc.so.*")
    assert library is not None
    binaries = gpu_code.of_library(library)
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
    assert {75, 80, 90} <= {code.capability for held in gpu_code.of_library(library) for code in held}
