"""A process of its own: its environment, its result, and what becomes of one that gives none."""

from __future__ import annotations

import os
import signal
import time

import pytest

from benchmarks.errors import BenchError
from benchmarks.process import apart
from benchmarks.process.tensorflow_setup import Runtime

pytestmark = pytest.mark.process


def test_its_environment_is_that_of_its_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    mode = "ONEDNN_DEFAULT_FPMATH_MODE"
    assert apart.call(Runtime(fpmath="STRICT"), 60, os.getenv, mode) == "STRICT"
    assert apart.call(Runtime(), None, os.getenv, mode) == "BF16", "a variable of the user is kept"
    assert os.environ[mode] == "BF16"


def test_without_a_result_there_is_a_reason() -> None:
    with pytest.raises(BenchError, match="took longer than 2 s"):
        apart.call(Runtime(), 2, time.sleep, 60)
    with pytest.raises(BenchError, match=r"its process ended by signal 9 \(Killed\)"):
        apart.call(Runtime(), 60, signal.raise_signal, signal.SIGKILL)
    with pytest.raises(ZeroDivisionError):
        apart.call(Runtime(), 60, divmod, 1, 0)
