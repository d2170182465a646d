"""What is published of GPUs: which one a name means, and which rates are expected of it."""

from __future__ import annotations

import pytest

from benchmarks.errors import UsageError
from benchmarks.explain import known_gpus
from benchmarks.explain.known_gpus import LINKS, NAMES, expected_rate, find_gpu, gpu_of, published_rates


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100", "H100 80GB HBM3"),
        ("nvidia h100 pcie", "H100 PCIe"),
        ("h100 sxm", "H100 80GB HBM3"),
        ("H200", "H200"),
        ("a100", "A100-SXM4-40GB"),
        ("A100 PCIe", "A100-PCIE-40GB"),
        ("a100-sxm4-80gb", "A100-SXM4-80GB"),
        ("V100", "V100-SXM2-16GB"),
        ("L4", "L4"),
        ("Tesla T4", "T4"),
        ("4090", "GeForce RTX 4090"),
        ("3090", "GeForce RTX 3090"),
    ],
)
def test_a_part_of_a_name_is_enough(text: str, name: str) -> None:
    assert find_gpu(text) == gpu_of(name)


@pytest.mark.parametrize("text", ["", "H", "RTX", "40GB", "nvidia", "Quadro", "RTX 6000", "A1000"])
def test_a_name_that_means_none_or_several_is_refused_with_a_list(text: str) -> None:
    with pytest.raises(UsageError, match="RTX 6000|A100"):
        find_gpu(text)


def test_every_gpu_has_a_chip_a_known_link_and_a_rate_to_expect() -> None:
    """Half precision and FP32 of each are published for a GPU that is near; the MFU of training is plausible."""
    for gpu in map(gpu_of, NAMES):
        assert gpu.link in (*LINKS, "") and find_gpu(gpu.name).is_like(gpu)
        for precision in ("fp16", "fp32"):
            if gpu.has_peak(precision):
                peak = gpu.peak_flops_per_sec(precision)
                found = expected_rate(gpu, "resnet50", precision, peak_flops_per_sec=peak, flops_per_image=24e9)
                assert found and 0.03 < found.low * 24e9 / peak <= found.high * 24e9 / peak < 0.9, gpu.name


def test_published_rates_are_of_known_gpus_and_below_their_peaks() -> None:
    """In FP32, convolutions of 3 x 3 need fewer multiplications than are counted (Winograd)."""
    rates = list(published_rates())
    assert {rate.devices for rate in rates} == {1, 2, 4, 8, 16, 32, 64}
    for rate in rates:
        assert 0.03 < rate.mfu < (2 if rate.precision == "fp32" and rate.model in ("VGG16", "AlexNet") else 0.9)
    assert all(rate.source for rate in rates) and len({rate.title for rate in rates}) == len(rates)


def test_the_same_model_and_gpu_are_preferred_to_the_usual_model_and_a_near_gpu() -> None:
    def source(name: str, model: str, precision: str = "fp16") -> str:
        expectation = expected_rate(gpu_of(name), model, precision, peak_flops_per_sec=1e14, flops_per_image=1e10)
        return f"{expectation.source} {expectation.ends}" if expectation else ""

    assert "A100 PCIe 40GB" in source("A100-SXM4-80GB", "vgg16"), "of the same chip, since none is of this GPU"
    assert source("H100 PCIe", "resnet50").startswith("published, MFU 6.1 %")
    assert "nearest published" in source("H200 NVL", "vgg16") and "ResNet-50" in source("H200 NVL", "vgg16")
    assert "K80" in source("K80", "resnet152", "fp32") and "92 images/s" in source(
        "P100-SXM2-16GB", "resnet152", "fp32"
    )
    assert "MFU 147 %, since convolutions may need fewer" in source("V100-SXM3-32GB", "vgg16", "fp32")
    assert "published for any GPU" in str(
        expected_rate(None, "resnet50", "bf16", peak_flops_per_sec=1e14, flops_per_image=1e10)
    )
    assert known_gpus._nearest_chips("GA10x")[:3] == ["GA10x", "TU10x", "AD10x"]
