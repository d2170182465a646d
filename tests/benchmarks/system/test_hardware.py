"""What the GPUs are called."""

from __future__ import annotations

import types

import pynvml
import pytest

from benchmarks.system import hardware, nvml


@pytest.mark.parametrize(
    ("name", "mig_mode", "called"),
    [
        ("NVIDIA H200", (0, 0), "NVIDIA H200"),
        ("NVIDIA H200", (0, 1), "NVIDIA H200"),  # pending until the next reset
        ("NVIDIA H200", (1, 1), "NVIDIA H200 MIG"),
        ("NVIDIA A100 MIG 1g.5gb", (1, 1), "NVIDIA A100 MIG 1g.5gb"),
    ],
)
def test_a_slice_of_a_gpu_has_not_the_name_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, name: str, mig_mode: tuple[int, int], called: str
) -> None:
    driver = types.SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        nvmlDeviceGetName=lambda handle: name,
        nvmlDeviceGetMigMode=lambda handle: mig_mode,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=2**37),
    )
    monkeypatch.setattr(nvml, "_open", lambda *_: nvml.Driver((nvml.DriverGpu(0, driver, 0),), "570.1"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    assert hardware.gpu_inventory({}) == hardware.Inventory((hardware.Gpu(called, 2**37),), "570.1")
