from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.config.workload import Workload
from benchmarks.devices.roofline import Peak, Roofline, devices_with_a_peak
from benchmarks.errors import UsageError
from benchmarks.machine import contention
from benchmarks.machine.hardware import Inventory
from benchmarks.measure import result_text
from benchmarks.microbench import device_peak
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import flop_count
from models import specs
from results.columns import row
from results.measurement import Derived
from results.report.headline import MEASURED
from results.summary import summarize
from tests.support.commands import RunBench
from tests.support.records import fake_run

PEAK = Peak(flops_per_sec=100e9, bytes_per_sec=10e9)
TWICE = Peak(flops_per_sec=200e9, bytes_per_sec=20e9)


def test_arithmetic_is_the_limit_where_there_is_much_per_byte() -> None:
    step = Roofline(flops_per_image=25e9, bytes_per_image=0.1e9, peak=PEAK, images_per_sec=2.0)
    assert step.flops_per_byte == 250
    assert step.limit == "arithmetic"
    assert step.most_images_per_sec == 4.0
    assert step.mfu == step.share_of_bound == 0.5
    assert step.sentences() == [
        "A step does 25.0 GFLOP per image and moves at least 100 MB, unless tensors stay in caches: 250 operations per "
        "byte.",
        "At 100 GFLOP/s and 10.0 GB/s that allows at most 4.00 images/s: arithmetic is the limit.",
        "It reached 2.00 images/s: 50% of that.",
    ]


def test_memory_is_the_limit_where_there_is_little_per_byte() -> None:
    step = Roofline(flops_per_image=1e9, bytes_per_image=1e9, peak=PEAK, images_per_sec=8.0)
    assert step.limit == "memory" and step.most_images_per_sec == 10.0
    assert step.mfu == pytest.approx(0.08) and step.share_of_bound == pytest.approx(0.8)
    assert step.sentences()[-1] == "It reached 8.00 images/s: 80% of that. The model FLOP utilisation (MFU) is 8%."


def test_more_than_the_bound_is_explained() -> None:
    cached = Roofline(flops_per_image=1e9, bytes_per_image=1e9, peak=PEAK, images_per_sec=12.0)
    assert "tensors stayed in caches" in cached.sentences()[-1]
    impossible = Roofline(flops_per_image=25e9, bytes_per_image=1e6, peak=PEAK, images_per_sec=5.0)
    assert "('run_bench.py doctor' measures it again" in impossible.sentences()[-1]


def test_logical_devices_of_a_host_share_its_peak() -> None:
    assert devices_with_a_peak(Devices(num_devices=8)) == 1
    cluster = Cluster(ps=("p:1",), workers=("a:1", "a:2", "b:1"), own=Task("worker", 0))
    assert devices_with_a_peak(Devices(num_devices=2), cluster) == 2, "that of a parameter server computes nothing"
    assert devices_with_a_peak(Devices(device="gpu", num_devices=4, virtual_gpus=2), cluster) == 6
    assert devices_with_a_peak(Devices(device="gpu", num_devices=3, virtual_gpus=2)) == 2


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cnn_bench" / "peaks.json"


HARDWARE = {"cpu_model": "A CPU", "cpu_cores_usable": 2, "memory_gib": 24, "gpus": []}


def _store(key: str, peak: Peak) -> None:
    device_peak.FILE.put(key, dataclasses.asdict(peak))


def test_peaks_are_kept_by_hardware_version_and_precision(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = device_peak.peak_key(HARDWARE, "2.21.0", "fp32")
    others = [
        device_peak.peak_key(HARDWARE, "2.21.0", "bf16"),
        device_peak.peak_key(HARDWARE, "2.20.0", "fp32"),
        device_peak.peak_key({**HARDWARE, "cpu_cores_usable": 1}, "2.21.0", "fp32"),
        device_peak.peak_key({**HARDWARE, "gpus": ["H200 141 GiB"] * 4, "load": 4}, "2.21.0", "fp32"),
        device_peak.peak_key({**HARDWARE, "container_cores": 0.5}, "2.21.0", "fp32"),
    ]
    assert device_peak.peak_key({**HARDWARE, "gpus": ["H200 141 GiB"]}, "2.21.0", "fp32") in others, "it is of one GPU"
    assert device_peak.stored_peak(key) is None
    _store(key, PEAK)
    _store(others[0], TWICE)
    assert device_peak.stored_peak(key) == PEAK and device_peak.stored_peak(others[0]) == TWICE
    assert [device_peak.stored_peak(other) for other in others[1:]] == [None] * 4
    assert {path.name for path in cache.parent.iterdir()} == {"peaks.json", "peaks.lock"}, (
        "nothing half written is left"
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "entry", ["7", '{"flops_per_sec": 1}', '{"flops_per_sec": 0, "bytes_per_sec": 1}', '{"flops_per_sec": NaN}']
)
def test_a_damaged_peak_is_ignored_with_a_sentence(cache: Path, capsys: pytest.CaptureFixture[str], entry: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(f'{{"format_version": 1, "entries": {{"KEY": {entry}}}}}')
    assert device_peak.stored_peak("KEY") is None
    (sentence,) = capsys.readouterr().err.splitlines()
    assert str(cache) in sentence and "ignored" in sentence


def test_a_peak_is_measured_each_time_and_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_memory = Peak(flops_per_sec=3 * PEAK.flops_per_sec, bytes_per_sec=PEAK.bytes_per_sec / 2)
    seen = iter([PEAK, TWICE, PEAK, slow_memory, PEAK])
    monkeypatch.setattr(device_peak, "measure_peak", lambda device, precision: (next(seen), True))
    monkeypatch.setattr(contention, "cores_used_by_others", lambda *_: 0.0)
    found = [device_peak.peak("cpu", "fp32")[0] for _ in range(4)]
    best = Peak(flops_per_sec=3 * PEAK.flops_per_sec, bytes_per_sec=2 * PEAK.bytes_per_sec)
    assert found == [PEAK, TWICE, TWICE, best]
    assert device_peak.peak("cpu", "bf16") == (PEAK, ""), "each precision has its own"
    assert device_peak.stored_peak(device_peak.peak_key_here(Inventory(), "fp32")) == best


@pytest.mark.parametrize(
    ("disturbing", "others", "agree", "why"),
    [
        (["swapping"], 0.0, True, "the machine is not quiet: swapping"),
        ([], 9.0, True, "other processes used 9.0 of "),
        ([], None, False, "its repeats differ"),
    ],
)
def test_a_peak_that_is_not_trusted_is_not_stored(
    monkeypatch: pytest.MonkeyPatch, disturbing: list[str], others: float | None, agree: bool, why: str
) -> None:
    monkeypatch.setattr(device_peak, "measure_peak", lambda device, precision: (PEAK, agree))
    monkeypatch.setattr(contention, "cores_used_by_others", lambda *_: others)
    key = device_peak.peak_key_here(Inventory(), "fp32")
    found, distrust = device_peak.peak("cpu", "fp32", disturbing)
    assert found == PEAK and device_peak.stored_peak(key) is None
    assert why in distrust and "so it is not stored, and runs print no share of it." in distrust
    _store(key, TWICE)
    found, distrust = device_peak.peak("cpu", "fp32", disturbing)
    assert found == TWICE == device_peak.stored_peak(key) and "runs are compared with the one that is." in distrust


@pytest.mark.parametrize(("times", "is_kept"), [(1.05, True), (1.5, False)])
def test_a_run_that_exceeds_the_peak_has_no_share_and_ends_a_wrong_peak(times: float, is_kept: bool) -> None:
    surroundings = {**HARDWARE, "tensorflow_version": "2.21.0"}
    key = device_peak.peak_key(surroundings, "2.21.0", "fp32")
    _store(key, PEAK)
    derived = Derived(images_per_sec=times * PEAK.flops_per_sec / 5e9)
    after, warnings = device_peak.beside_peak(derived, 5e9, surroundings, device="cpu", precision="fp32", count=1)
    assert after == derived
    (warning,) = warnings
    assert warning.startswith("The MFU is unknown: ") and "(100 GFLOP/s, fp32)" in warning
    assert ("It is removed." not in warning) == is_kept == (device_peak.stored_peak(key) is not None)


def test_a_record_shows_both_utilisations() -> None:
    on_gpu = fake_run(num_devices=4, step_seconds=0.1)
    known = replace(on_gpu.derived, measured_peak_tflops=800.0, mfu_of_measured_peak=0.25)
    surroundings = {**on_gpu.environment, "gpus": ["NVIDIA H200 141 GiB"] * 4}
    record = replace(on_gpu, derived=known, environment=surroundings, placement={"flops_per_image": 23_000_000_000})
    found = row(record)
    assert found["flops_per_image"] == 23_000_000_000
    assert (found["measured_peak_tflops"], found["mfu_of_measured_peak"]) == (800.0, 0.25)
    data_sheet = "MFU:            11 % of 4 x 67.0 TFLOP/s, fp32, NVIDIA H200 data sheet"
    assert result_text.mfu_lines(record) == [
        data_sheet,
        "MFU:            25 % of the 800 TFLOP/s that a matrix product reaches here (fp32)",
    ]
    assert result_text.mfu_lines(replace(record, derived=on_gpu.derived)) == [data_sheet]
    other = replace(on_gpu, environment={**surroundings, "gpus": ["NVIDIA Z1 141 GiB"]})
    assert result_text.mfu_lines(other) == [
        "MFU:            unknown: the suite has no data sheet with one peak in fp32 of NVIDIA Z1; "
        "'run_bench.py doctor' measures a peak"
    ]
    text = {column.name: column.cell(summarize([record])[0]) for column in MEASURED}
    assert text["MFU of measured peak %"] == "25.0"
    assert text["MFU %"] == f"{100 * 3 * 7.7e9 * 1280 / (4 * 67e12):.1f}"


def test_a_run_finds_the_peak_of_its_host(
    run_bench: RunBench, records: Callable[[], list[Mapping[str, Any]]], cache: Path
) -> None:
    _store(device_peak.peak_key_here(Inventory(), "fp32"), PEAK)
    done = run_bench(
        "--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=10", "--num_batches=5",
        XDG_CACHE_HOME=str(cache.parent.parent),
    )  # fmt: skip
    assert done.status == 0, done.stderr
    (record,) = records()
    derived, per_image = record["derived"], record["placement"]["flops_per_image"]
    assert per_image == 3 * 2 * (784 * 100 + 100 * 10) - 2 * 784 * 100
    assert derived["measured_peak_tflops"] == 0.1, "of the host, not of each logical device"
    assert derived["mfu_of_measured_peak"] == pytest.approx(per_image * derived["images_per_sec"] / 100e9)
    assert "% of the 100 GFLOP/s that a matrix product reaches here (fp32)" in done.stdout


GPUS = {"gpus": ["NVIDIA A100 40 GiB"] * 2}


@pytest.mark.parametrize(
    ("device", "changes", "share"),
    [
        ("cpu", {}, 0.5),
        ("cpu", {"flops_per_image": None}, None),
        ("cpu", {"images_per_sec": None}, None),
        ("cpu", {"tensorflow_version": "2.20.0"}, None),
        ("gpu", {}, None),
        ("gpu", GPUS, 0.25),
        ("gpu", {"gpus": ["NVIDIA A100 40 GiB", "Tesla T4 15 GiB"]}, None),  # they have no common peak
    ],
)
def test_without_a_peak_or_a_count_nothing_is_derived(
    device: Literal["cpu", "gpu"], changes: dict[str, Any], share: float | None
) -> None:
    surroundings = {**HARDWARE, "tensorflow_version": "2.21.0"}
    for gpus in ({}, GPUS):
        _store(device_peak.peak_key({**surroundings, **gpus}, "2.21.0", "fp32"), PEAK)
    given = {**surroundings, "images_per_sec": 10.0, "flops_per_image": 5e9, **changes}
    derived = Derived(images_per_sec=given["images_per_sec"])
    count = devices_with_a_peak(Devices(device=device, num_devices=2))
    found, _ = device_peak.beside_peak(
        derived, given["flops_per_image"], given, device=device, precision="fp32", count=count
    )
    assert found.mfu_of_measured_peak == share
    assert (found == derived) == (share is None)


def test_the_roofline_of_a_step(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_peak, "measure_peak", lambda device, precision: (PEAK, True))
    workload = Workload(model="mlp", batch_per_device=10, num_classes=10, data_format="NHWC")
    step, _ = device_peak.measure_roofline(specs.find_model("mlp"), workload, "cpu", "fp32", 1000.0)
    assert step.flops_per_image == 3 * 2 * (784 * 100 + 100 * 10) - 2 * 784 * 100
    # Forward and backward of both layers, less the gradient of images; each layer moves images, kernel and result.
    first, second = 4 * (10 * 784 + 784 * 100 + 10 * 100), 4 * (10 * 100 + 100 * 10 + 10 * 10)
    assert step.bytes_per_image == (2 * first + 3 * second) / 10
    assert step.peak == PEAK and step.mfu == pytest.approx(step.flops_per_image * 1000 / 100e9)
    monkeypatch.setattr(contention, "cores_used_by_others", lambda *_: 0.0)
    device_peak.measure_roofline(specs.find_model("mlp"), workload, "cpu", "fp32", 1000.0)
    assert json.loads(cache.read_text())["format_version"] == 1


def test_a_model_that_cannot_be_counted_has_no_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_peak, "measure_peak", lambda device, precision: (PEAK, True))
    monkeypatch.setattr(flop_count, "of_built", lambda *_, **__: flop_count.Work(uncounted=("Einsum",)))
    workload = Workload(model="mlp", batch_per_device=10, num_classes=10, data_format="NHWC")
    with pytest.raises(UsageError, match=r"^mlp has operations that cannot be counted: Einsum\.$"):
        device_peak.measure_roofline(specs.find_model("mlp"), workload, "cpu", "fp32", 1000.0)
