"""What TensorFlow cannot do with a GPU, a driver and a cuDNN."""

from __future__ import annotations

import pytest

from benchmarks.machine import gpu_support
from benchmarks.machine.hardware import Gpu, Inventory

V100, T4, A100, H100, B200, RTX5090 = "7.0", "7.5", "8.0", "9.0", "10.0", "12.0"
OLD, NEW = "9.10.2.21", "9.28.0.42"  # cuDNN


@pytest.mark.parametrize(
    ("capability", "driver_cuda", "cudnn", "tensorflow", "asked", "problem", "is_fatal"),
    [
        (V100, "12.8", NEW, "2.21.0", {}, "cuda-volta", True),
        ("6.0", "12.8", "9.11.0.98", "2.21.0", {}, "cuDNN 9.11.0.98 has no code for compute capability 6.0", True),
        (V100, "12.2", OLD, "2.21.0", {}, None, None),
        (V100, "12.2", None, "2.21.0", {}, None, None),  # not a package of Python
        (T4, "12.2", NEW, "2.21.0", {}, None, None),
        ("5.2", "12.8", OLD, "2.21.0", {}, "ignores this GPU", True),
        (A100, "12.0", NEW, "2.21.0", {"xla": "jit", "precision": "tf32"}, None, None),
        (A100, "11.4", NEW, "2.21.0", {}, "install driver 525 or later", True),
        (H100, "12.4", NEW, "2.20.0", {}, "install driver 555 or later", True),
        (H100, "12.2", NEW, "2.22.0-dev20260301", {}, None, None),  # not looked at
        (H100, "12.5", NEW, "2.21.0", {"xla": "jit"}, None, None),
        (H100, None, NEW, "2.21.0", {}, None, None),
        (None, "12.2", NEW, "2.21.0", {}, None, None),
        (B200, "12.8", NEW, "2.21.0", {"xla": "jit"}, "--xla=jit: XLA in TensorFlow 2.21.0 writes PTX 8.5", True),
        (RTX5090, "12.9", NEW, "2.20.0", {"xla": "off"}, "CUDA_CACHE_MAXSIZE", False),
        (T4, "12.8", NEW, "2.21.0", {"precision": "tf32"}, "--precision=tf32: compute capability 7.5", True),
        (T4, "12.8", NEW, "2.21.0", {"precision": "bf16"}, "--precision=bf16: compute capability 7.5", False),
        (T4, "12.8", NEW, "2.21.0", {"precision": "fp16"}, None, None),
    ],
)
def test_what_has_no_code_for_a_gpu_is_a_sentence(
    capability: str | None,
    driver_cuda: str | None,
    cudnn: str | None,
    tensorflow: str,
    asked: dict[str, str],
    problem: str | None,
    is_fatal: bool | None,
) -> None:
    software = {"cudnn_version": cudnn, "tensorflow_version": tensorflow}
    gpus = Inventory((Gpu("Card", 2**30, capability),), cuda_version=driver_cuda)
    found = gpu_support.judge(gpus, software, *asked.items())
    if problem is None:
        assert found == []
        return
    assert found[0].sentence.startswith("Card: ") and problem in found[0].sentence
    assert found[0].is_fatal == is_fatal


def test_gpus_that_differ_are_named() -> None:
    software = {"cudnn_version": OLD, "tensorflow_version": "2.21.0"}
    gpus = Gpu("NVIDIA A100", 2**30, A100), Gpu("NVIDIA DGX Display", 2**30, T4)
    (found,) = gpu_support.judge(Inventory(gpus, cuda_version="12.8"), software)
    assert "differ (NVIDIA A100, NVIDIA DGX Display)" in found.sentence and not found.is_fatal
