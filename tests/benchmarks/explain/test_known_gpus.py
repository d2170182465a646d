"""What is published of GPUs: which one a name means, and which rates are expected of it."""

from __future__ import annotations

import re

import pytest

from benchmarks.errors import UsageError
from benchmarks.explain import known_gpus
from benchmarks.explain.known_gpus import LINKS, NAMES, expected_rate, find_gpu, gpu_of, published_rates
from benchmarks.machine.gpu_topology import read_gpu_links
from results.environment import data_sheet_peak
from tests.support.nvidia import MACHINES


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
        ("RTX3090Ti", "GeForce RTX 3090 Ti"),
        ("H100 SXM5 80 GB", "H100 80GB HBM3"),
        ("A100-80G", "A100-SXM4-80GB"),
        ("H100-PCIE-80GB", "H100 PCIe"),
        ("NVIDIA T4 16GB", "T4"),
    ],
)
def test_a_part_of_a_name_is_enough(text: str, name: str) -> None:
    assert find_gpu(text) == gpu_of(name)


@pytest.mark.parametrize("text", ["", "H", "RTX", "40GB", "nvidia", "Quadro", "RTX 6000", "A1000", "\u00fch100"])
def test_a_name_that_means_none_or_several_is_refused_with_a_list(text: str) -> None:
    with pytest.raises(UsageError, match="RTX 6000|A100"):
        find_gpu(text)


def test_every_gpu_has_a_chip_a_known_link_and_a_rate_to_expect() -> None:
    """Half precision and FP32 of each are published for a GPU that is near; the MFU of training is plausible."""
    for gpu in map(gpu_of, NAMES):
        assert gpu.link in (*LINKS, "") and find_gpu(gpu.name).is_like(gpu)
        assert 8 <= gpu.memory_gb <= 288 and gpu.machine(1, "").gpus[0].compute_capability
        size = re.search(r"\b(\d+)GB?\b", gpu.name)
        names_memory_of_cpu = gpu.name in ("GH200 120GB", "GH200 480GB")
        assert not size or names_memory_of_cpu or gpu.memory_gb == int(size[1])
        for precision in ("fp16", "fp32"):
            if data_sheet_peak(gpu.name, precision):
                peak = gpu.peak_flops_per_sec(precision)
                found = expected_rate(gpu, "resnet50", precision, peak_flops_per_sec=peak, flops_per_image=24e9)
                mfu = found.value * 24e9 / peak if found else 0
                assert found and 0.03 < mfu < 0.9 and found.factor >= 1.5, gpu.name


def test_published_rates_are_of_known_gpus_and_below_their_peaks() -> None:
    """In FP32, convolutions of 3 x 3 need fewer multiplications than are counted (Winograd)."""
    rates = published_rates()
    assert {rate.figure.devices for rate in rates} == {1, 2, 4, 8, 16, 32, 64}
    for rate in rates:
        may_be_less = rate.figure.precision == "fp32" and rate.figure.model in ("VGG16", "AlexNet")
        assert 0.03 < rate.mfu < (2 if may_be_less else 0.9)
    assert all(rate.figure.source for rate in rates) and len({rate.title for rate in rates}) == len(rates)


def test_the_same_model_and_gpu_are_preferred_to_the_usual_model_and_a_near_gpu() -> None:
    def source(name: str, model: str, precision: str = "fp16") -> str:
        expectation = expected_rate(gpu_of(name), model, precision, peak_flops_per_sec=1e14, flops_per_image=1e10)
        return expectation.source if expectation else ""

    assert "A100 PCIe 40GB" in source("A100-SXM4-80GB", "vgg16"), "of the same chip, since none is of this GPU"
    assert source("H100 PCIe", "resnet50").startswith("published: ")
    assert "nearest published" in source("H200 NVL", "vgg16") and "ResNet-50" in source("H200 NVL", "vgg16")
    assert "92 images/s of 1 x P100 (DGX-1)" in source("P100-SXM2-16GB", "resnet152", "fp32"), "the fastest of two"
    assert "MFU 147 %, since convolutions may need fewer" in source("V100-SXM3-32GB", "vgg16", "fp32")
    assert "published for any GPU" in str(
        expected_rate(None, "resnet50", "bf16", peak_flops_per_sec=1e14, flops_per_image=1e10)
    )
    assert known_gpus._nearest_chips("GA10x")[:3] == ["GA10x", "TU10x", "AD10x"]


def test_the_rate_to_expect_is_between_the_lowest_and_the_highest_of_several_sources() -> None:
    gpu = find_gpu("H100")
    peak = gpu.peak_flops_per_sec("fp16")
    found = expected_rate(gpu, "resnet50", "fp16", peak_flops_per_sec=peak, flops_per_image=24e9)
    each = [rate.figure.images_per_sec / rate.figure.devices for rate in published_rates() if rate.gpu.is_like(gpu)]
    assert found and found.factor > 1
    for end in (found.value / found.factor, found.value * found.factor):
        assert min(abs(end / rate - 1) for rate in each) < 1e-9


@pytest.mark.parametrize(
    ("name", "model", "least"),
    [
        pytest.param("B200", "resnet50", 1.5, id="one source"),
        pytest.param("B200", "vgg16", 2.0, id="of another model"),
        pytest.param("T4", "resnet50", 2.0, id="of another GPU"),
    ],
)
def test_one_source_is_not_taken_for_certain(name: str, model: str, least: float) -> None:
    found = expected_rate(gpu_of(name), model, "fp16", peak_flops_per_sec=1e14, flops_per_image=1e10)
    assert found and found.factor >= least


@pytest.mark.parametrize(
    ("name", "made_up"),
    [("H100", "8 H100, NVSwitch"), ("A100", "8 A100, NVSwitch"), ("T4", "8 T4, PCIe"), ("V100", "2 V100, NVLink")],
)
def test_an_assumed_machine_is_as_its_driver_would_describe_it(name: str, made_up: str) -> None:
    driver = MACHINES[made_up]
    gpu, real = find_gpu(name), read_gpu_links({}, driver)
    assumed = gpu.machine(len(real.gpus), gpu.link)
    for one, other in zip(assumed.gpus, real.gpus, strict=True):
        assert (one.memory_bytes, one.compute_capability) == (other.memory_bytes, other.compute_capability)
    assert (assumed.has_nvlink, len(assumed.connections)) == (real.has_nvlink, len(real.connections))
    assert not gpu.machine(2, "pcie4").has_nvlink and not gpu.machine(2, "").connections
