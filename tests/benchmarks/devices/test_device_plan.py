from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.machine import gpu_support, hardware, linux, nvml
from benchmarks.machine.hardware import Gpu, Inventory, gpu_inventory, usable_cores
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from results.text import counted
from tests.support.nvidia import MACHINES, Machine, shown_to_tensorflow, stand_in


def test_a_limit_of_cpu_time_is_part_of_the_description(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linux, "cpu_limits", lambda: [(0.5, tmp_path), (64.0, tmp_path)])
    description = device_plan.plan(Devices(), shared_on="cpu").description
    assert description == f"1 logical CPU device sharing {counted(usable_cores(), 'core')}, of which 0.5 at a time"


@contextlib.contextmanager
def session_on(num_devices: int) -> Iterator[Any]:
    import tensorflow as tf

    config = device_plan.session_config(Devices(num_devices=num_devices))
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        yield session


def test_logical_cpu_devices_exist_under_their_names() -> None:
    plan = device_plan.plan(Devices(num_devices=3), shared_on="gpu")
    assert plan.towers == ("/cpu:0", "/cpu:1", "/cpu:2")
    assert plan.shared == plan.towers
    assert device_plan.plan(Devices(num_devices=3), shared_on="cpu").shared == ("/cpu:0",)
    assert "3 logical CPU devices sharing" in plan.description
    with session_on(3) as session:
        names = [device.name for device in session.list_devices() if device.device_type == "CPU"]
    assert len(names) == 3


H100, A100 = "NVIDIA H100 80GB HBM3 80 GiB", "NVIDIA A100-SXM4-80GB 80 GiB"


@pytest.mark.parametrize(
    ("gpus", "used", "words"),
    [
        ([H100] * 8, range(8), "8 x NVIDIA H100 80GB HBM3 (of 8)"),
        ([H100] * 8, (3,), "1 x NVIDIA H100 80GB HBM3 (of 8; 7 unused)"),
        ([H100, H100, A100], (0, 2), "1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA A100-SXM4-80GB (of 3; 1 unused)"),
        ([], (0,), "of unknown name"),  # a container may hide the driver
        ([], (), "AMD EPYC (25/17/1)"),
        ([H100], (), "AMD EPYC (25/17/1)"),
    ],
)
def test_hardware_is_named_with_what_is_unused(gpus: list[str], used: Sequence[int], words: str) -> None:
    facts = {"cpu_model": "AMD EPYC (25/17/1)", "gpus": gpus}
    assert hardware.in_words(facts, used, shows_unused=True) == words
    assert hardware.in_words(facts, used, shows_unused=False) == words.partition(" (of")[0]


def test_a_task_names_the_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_plan, "gpu_inventory", lambda: Inventory((Gpu("NVIDIA T4", 2**34),)))
    second = Devices(device="gpu", visible_gpus=(1,))
    assert device_plan.with_hardware("1 GPU", second) == "1 GPU: 1 x NVIDIA T4"


def test_whole_gpus_are_those_of_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MACHINES["4 A100, PCIe"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    two = Devices(device="gpu", num_devices=2)
    assert [uuid[:5] for uuid in device_plan.gpus_of_its_own(two)] == ["GPU-2", "GPU-1"]
    assert device_plan.gpus_of_its_own(Devices(device="gpu", num_devices=2, gpu_memory_fraction=0.45)) == []
    assert device_plan.gpus_of_its_own(Devices(device="gpu", num_devices=2, gpu_allow_growth=True)) == []
    stand_in(monkeypatch, MACHINES["A100 with MIG"])
    assert device_plan.gpus_of_its_own(Devices(device="gpu")) == [], "another task may use another instance"


@pytest.mark.row("S2.7", "S3.13")
def test_placement_is_strict() -> None:
    import tensorflow as tf

    with session_on(2) as session:
        with tf.device("/cpu:5"):
            lost = tf.random.normal([1])
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(lost)


@pytest.mark.parametrize(
    ("machine", "num_gpus", "seen", "message"),
    [
        (MACHINES["4 A100, PCIe"], 2, 0, r"2 GPUs wanted; TensorFlow .* sees 0, and the driver 4\..* --device=cpu"),
        (MACHINES["4 A100, PCIe"], 4, 4, None),
        (MACHINES["4 A100, PCIe"], 2, 4, None),
        (Machine(0), 1, 1, None),  # a container may hide the driver
        # TensorFlow ignores the T4, so that its numbers are not the driver's.
        (MACHINES["A100 and T4"], 1, 1, r"1 GPU wanted; TensorFlow .* sees 1, and the driver 2\..* sees with --gpus"),
        (MACHINES["A100 with MIG"], 1, 1, None),
        (MACHINES["A100 with MIG"], 1, 0, r"A GPU is divided \(MIG\)"),
    ],
)
def test_all_gpus_of_the_driver_are_seen_by_tensorflow(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, num_gpus: int, seen: int, message: str | None
) -> None:
    stand_in(monkeypatch, machine)
    shown_to_tensorflow(monkeypatch, seen)
    monkeypatch.setattr(device_plan, "_reported", lambda: ["Ignoring it"])
    wanted = Devices(device="gpu", num_devices=num_gpus)
    if message is None:
        device_plan.require_gpus(wanted)
        return
    with pytest.raises(UsageError, match=message) as refused:
        device_plan.require_gpus(wanted)
    assert "TensorFlow reports: Ignoring it." in str(refused.value)


def test_libraries_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_plan, "_reported", lambda: ["Failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-9")
    present = {"nvidia-cublas-cu12", "nvidia-nccl-cu12"}
    monkeypatch.setattr(gpu_support, "installed", lambda name: "12" if name in present else None)
    said = " ".join(device_plan.causes_of_missing_gpus((), is_cuda_build=True))
    assert "'.[cuda]'); missing are nvidia-cuda-cupti-cu12, " in said and "nvidia-cudnn-cu12" in said
    assert not any(name in said for name in present)
    assert "CUDA_VISIBLE_DEVICES=GPU-9 (--gpus sets it, too) may name a GPU that does not exist." in said
    assert said.endswith("NVIDIA's fabric manager, of the driver's version: start nvidia-fabricmanager.")
    without = " ".join(device_plan.causes_of_missing_gpus((), is_cuda_build=False))
    assert "TensorFlow has no CUDA" in without and "Arm: docs/howto/gpus.md" in without


@pytest.mark.process
def test_what_tensorflow_reports_when_it_looks_for_gpus_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if not gpu_inventory().gpus:
        assert "TensorFlow reports: failed call to cuInit" in " ".join(
            device_plan.causes_of_missing_gpus((), is_cuda_build=True)
        )


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("1,9,2", [1]),
        ("0,-1,1", [0]),
        ("GPU-ab,GPU-cd", [0, 1]),
        ("MIG-ab,MIG-ab", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(setting: str | None, indices: list[int]) -> None:
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert nvml.visible_indices(4, environment) == indices


def test_hardware_is_described_without_the_host() -> None:
    import platform

    described = hardware.describe_hardware(hardware.Inventory((hardware.Gpu("H200", 141 * 2**30),)))
    assert described["cpu_cores_usable"] >= 1
    assert described["gpus"] == ["H200 141 GiB"]
    assert platform.node() not in str(described)


def test_the_environment_must_be_prepared_first() -> None:
    import tensorflow  # noqa: F401 - it is too late once this has run

    with pytest.raises(UsageError, match="before its environment was set.* process of its own"):
        tensorflow_setup.prepare(Runtime())


def _on_gpus(**devices: Any) -> Runtime:
    return Runtime(devices=Devices(device="gpu", **devices))


SHOWN, THREADS = "CUDA_VISIBLE_DEVICES", {"TF_GPU_THREAD_MODE": "theirs", "TF_GPU_THREAD_COUNT": "9"}
BATCH_NORM = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
ONEDNN, ROUNDING = "TF_ENABLE_ONEDNN_OPTS", "ONEDNN_DEFAULT_FPMATH_MODE"


@pytest.mark.row("S0.10")
@pytest.mark.parametrize(
    ("before", "runtime", "after"),
    [
        ({}, Runtime(), {SHOWN: "-1", "KERAS_BACKEND": "tensorflow"}),
        ({"TF_USE_LEGACY_KERAS": "1"}, Runtime(), {"TF_USE_LEGACY_KERAS": None}),
        ({SHOWN: "0,1"}, Runtime(), {SHOWN: "-1"}),
        ({}, _on_gpus(), {SHOWN: None}),
        ({SHOWN: "2,3"}, _on_gpus(), {SHOWN: "2,3"}),
        ({}, _on_gpus(visible_gpus=(2, 0)), {SHOWN: "2,0"}),
        ({SHOWN: "5,6,7"}, _on_gpus(visible_gpus=(2, 0)), {SHOWN: "7,5"}),
        (THREADS, _on_gpus(), THREADS),
        (THREADS, _on_gpus(gpu_thread_mode="global"), {**THREADS, "TF_GPU_THREAD_MODE": "global"}),
        (
            THREADS,
            _on_gpus(num_devices=3, gpu_thread_mode="gpu_shared", per_gpu_thread_count=2),
            {"TF_GPU_THREAD_MODE": "gpu_shared", "TF_GPU_THREAD_COUNT": "6"},
        ),
        (
            THREADS,
            _on_gpus(num_devices=3, gpu_thread_mode="gpu_private", per_gpu_thread_count=2),
            {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"},
        ),
        ({BATCH_NORM: "theirs"}, _on_gpus(), {BATCH_NORM: "theirs"}),
        ({BATCH_NORM: "theirs"}, Runtime(devices=Devices(device="gpu"), batchnorm_persistent=True), {BATCH_NORM: "1"}),
        ({BATCH_NORM: "theirs"}, Runtime(devices=Devices(device="gpu"), batchnorm_persistent=False), {BATCH_NORM: "0"}),
        ({"TF_CPP_MIN_LOG_LEVEL": "0"}, Runtime(), {"TF_CPP_MIN_LOG_LEVEL": "0"}),
        ({ONEDNN: "0", ROUNDING: "ANY"}, Runtime(), {ONEDNN: "0", ROUNDING: "ANY"}),
        ({ONEDNN: "0"}, Runtime(devices=Devices(onednn="on")), {ONEDNN: "1"}),
        ({ONEDNN: "1"}, Runtime(devices=Devices(onednn="off")), {ONEDNN: "0"}),
        ({ROUNDING: "ANY"}, Runtime(fpmath="STRICT"), {ROUNDING: "STRICT"}),
    ],
)
def test_the_environment_is_the_users_unless_a_flag_decides(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, str], runtime: Runtime, after: dict[str, str | None]
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = dict(before)
    monkeypatch.setattr(tensorflow_setup.os, "environ", variables)
    tensorflow_setup.prepare(runtime)
    assert {name: variables.get(name) for name in after} == after


# Options of a session on GPUs; no GPU is needed to check them.


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("H200", 140 * 2**30)
    monkeypatch.setattr(device_plan, "gpu_inventory", lambda: Inventory((gpu, gpu)))


def test_a_session_has_the_options_of_the_flags_and_no_more_gpus_than_it_needs() -> None:
    given = Devices(device="gpu", gpu_memory_fraction=0.5, gpu_allow_growth=True, force_gpu_compatible=True)
    config = device_plan.session_config(given)
    options = config.gpu_options
    assert (options.per_process_gpu_memory_fraction, options.allow_growth, options.force_gpu_compatible) == (
        0.5,
        True,
        True,
    )
    assert options.visible_device_list == "0" and not config.allow_soft_placement
    two = device_plan.session_config(Devices(device="gpu", num_devices=2)).gpu_options
    assert (two.visible_device_list, two.allow_growth, two.force_gpu_compatible) == ("0,1", False, False)


HALF_MIB, WHOLE = 0.9 * 140 * 1024 / 2, {"gpu_memory_limit_mib": 30_000}


@pytest.mark.row("S0.11")
@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("devices", "limits"),
    [
        (Devices(device="gpu", num_devices=3, virtual_gpus=2), [[HALF_MIB] * 2] * 2),
        (Devices(device="gpu", num_devices=2, virtual_gpus=2, gpu_memory_fraction=0.5), [[0.25 * 140 * 1024] * 2]),
        (Devices(device="gpu", num_devices=2, **WHOLE), [[30_000], [30_000]]),
        (Devices(device="gpu", num_devices=2, virtual_gpus=2, **WHOLE), [[15_000, 15_000]]),
    ],
)
def test_the_parts_of_a_gpu_share_its_memory_evenly(devices: Devices, limits: list[list[float]]) -> None:
    options = device_plan.session_config(devices).gpu_options
    virtual = options.experimental.virtual_devices
    assert options.visible_device_list == ",".join(map(str, range(len(limits))))
    assert [list(gpu.memory_limit_mb) for gpu in virtual] == list(map(pytest.approx, limits))
    assert options.per_process_gpu_memory_fraction == 0, "TensorFlow refuses both"


@pytest.mark.usefixtures("two_gpus")
def test_a_limit_beyond_the_memory_is_refused() -> None:
    device_plan.session_config(Devices(device="gpu", gpu_memory_limit_mib=140 * 1024))
    with pytest.raises(UsageError, match="--gpu_memory_limit_mb=143361: a GPU here has 143360 MiB. Give less"):
        device_plan.session_config(Devices(device="gpu", gpu_memory_limit_mib=140 * 1024 + 1))


def test_a_cpu_run_names_no_gpu() -> None:
    config = device_plan.session_config(Devices(num_devices=4, num_intra_threads=2, num_inter_threads=1))
    assert dict(config.device_count) == {"CPU": 4, "GPU": 0}, "otherwise it would take all GPUs"
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (2, 1)
    assert config.gpu_options.visible_device_list == ""
