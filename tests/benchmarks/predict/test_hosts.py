"""Descriptions of hosts: those that come with the suite, and what is said of a file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import UsageError
from benchmarks.explain.known_gpus import find_gpu
from benchmarks.predict.hosts import COPIES, SHIPPED_NAMES, find_hardware, host_of, link_rates, reached, shipped

SHIPPED = Path(__file__).resolve().parents[3] / "benchmarks" / "predict" / "hardware"
ONE_CORE = """
title = "one core"
cpu = {copies_gbytes_per_second = 2, source = "a test"}
memory = {gbytes_per_second = 10, source = "a test"}
network = {gbytes_per_second = 0.125, latency_microseconds = 0, source = "a test"}
"""
GOOD = (SHIPPED / "dgx-1-p100.toml").read_text()


def test_hosts_that_come_with_the_suite_name_the_source_of_each_figure() -> None:
    assert {*shipped()} == {*SHIPPED_NAMES} and {host.testbed for host in shipped().values() if host.testbed} == {
        "DGX-1",
        "GCE n1-standard-32",
        "EC2 p2.8xlarge",
    }
    for host in shipped().values():
        for part in filter(None, (host.pcie, host.memory, host.network, host.gpu_link)):
            assert len(part.source) > 20, host.title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("dgx-h100", "NVIDIA DGX H100, 8 x H100"),
        ("H200", "NVIDIA DGX H200, 8 x H200"),
        ("v100", "NVIDIA DGX-1, 8 x V100"),
        ("P100-SXM2-16GB", "NVIDIA DGX-1, 8 x P100"),
        ("A100 80GB", "NVIDIA DGX A100, 8 x A100"),
        ("K80", "Amazon EC2 p2.8xlarge, 8 x K80"),
    ],
)
def test_a_name_or_a_gpu_is_enough(text: str, title: str) -> None:
    assert find_hardware(text).title == title


def test_a_card_of_a_known_chip_is_put_into_the_host_of_the_chip_with_its_own_links() -> None:
    host = host_of(find_gpu("A100 PCIe"))
    assert "as if" in host.title and host.gpu_link is None and host.pcie.link == "pcie4"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("gpus = 8", "gpus = 0"), "Expected `int` >= 1 - at `$.gpus`"),
        (("gpus = 8", "gpus = 100000"), "Expected `int` <= 256 - at `$.gpus`"),
        (("gpus = 8", "gpus ="), "Invalid value"),
        (("gbytes_per_second = 12.5", "gbytes_per_second = inf"), "Expected `float` <= "),
        (("gbytes_per_second = 12.5", "gbits_per_second = 100"), "unknown field `gbits_per_second`"),
        (("gbytes_per_second = 12.5", "gbytes_per_second = -1"), "Expected `float` > 0.0 - at `$.network"),
        (("gbytes_per_second = 12.5", 'gbytes_per_second = "12.5 GB/s"'), "Expected `float`, got `str`"),
        (('link = "pcie3"', 'link = "pcie9"'), "there is no link 'pcie9'. Links: nvlink5"),
        (('gpu = "P100-SXM2-16GB"', 'gpu = "P1000"'), "'P1000' is no known GPU"),
        (("[memory]", "[memoria]"), "memor"),
        (('gpu = "P100-SXM2-16GB"', ""), "a host without gpu needs the table [cpu]"),
        (("[pcie]", '[cpu]\ncopies_gbytes_per_second = 1\nsource = "x"\n[pcie]'), "and none named [cpu]"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(*change, 1))
    with pytest.raises(UsageError) as caught:
        find_hardware(str(path))
    assert problem in str(caught.value)


def test_a_host_without_gpus_is_one_device_that_also_copies(tmp_path: Path) -> None:
    (path := tmp_path / "mine.toml").write_text(ONE_CORE, encoding="utf-8-sig")  # as editors on Windows save it
    host = find_hardware(str(path))
    assert (host.gpu, host.gpus) == ("", 1)
    assert link_rates(host, reached(), 1)[COPIES].bytes_per_sec == 2e9


def test_an_unknown_name_or_a_missing_file_names_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no such host, and no such GPU.*dgx-h100.*\.toml"):
        find_hardware("dgx-9")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        find_hardware("/nowhere/mine.toml")
    with pytest.raises(UsageError, match="no host with such a GPU"):
        find_hardware("L4")
