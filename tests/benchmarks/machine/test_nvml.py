"""A driver that hangs."""

from __future__ import annotations

import threading
import types

import pynvml
import pytest

from benchmarks.doctor import machine_checks
from benchmarks.errors import BenchError
from benchmarks.machine import nvml


def test_a_driver_that_hangs_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_ANSWER_SECONDS", 0.1)
    released = threading.Event()
    driver = types.SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlInit=released.wait, nvmlDeviceGetCount=lambda: 0)
    driver.nvmlShutdown = driver.nvmlSystemGetDriverVersion = lambda: ""
    driver.nvmlSystemGetCudaDriverVersion = lambda: 12080
    with pytest.raises(BenchError, match="has not answered for 0.1 s .*--device=cpu"), nvml.opened({}, driver):
        pass
    (found,) = machine_checks.look_at_gpus({}, driver)
    assert found.is_disturbing and "nvidia-smi would hang" in found.advice
    released.set()
    with nvml.opened({}, driver) as opened:
        assert opened.gpus == ()
