from __future__ import annotations

import sys

import pytest

from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.machine import gpu_support, hardware, nvml
from benchmarks.machine.hardware import gpu_inventory
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from tests.support.nvidia import MACHINES, Machine, shown_to_tensorflow, stand_in


def test_logical_cpu_devices_are_there_under_their_names() -> None:
    import tensorflow as tf

    plan = device_plan.plan(Devices(num_devices=3), shared_on="gpu")
    assert plan.towers == ("/cpu:0", "/cpu:1", "/cpu:2")
    assert plan.shared == plan.towers
    assert device_plan.plan(Devices(num_devices=3), shared_on="cpu").shared == ("/cpu:0",)
    assert "3 logical CPU devices sharing" in plan.description
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=3))) as session,
    ):
        names = [device.name for device in session.list_devices() if device.device_type == "CPU"]
    assert len(names) == 3


def test_placement_is_strict() -> None:
    import tensorflow as tf

    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(config=device_plan.session_config(Devices(num_devices=2))) as session,
    ):
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
    monkeypatch.setattr(device_plan, "_reported", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-9")
    there = {"nvidia-cublas-cu12", "nvidia-nccl-cu12"}
    monkeypatch.setattr(gpu_support, "installed", lambda name: "12" if name in there else None)
    said = " ".join(device_plan.causes_of_missing_gpus((), is_cuda_build=True))
    assert "'.[cuda]'); missing are nvidia-cuda-cupti-cu12, " in said and "nvidia-cudnn-cu12" in said
    assert not any(name in said for name in there)
    assert "CUDA_VISIBLE_DEVICES=GPU-9 (--gpus sets it, too) may name a GPU that does not exist." in said
    assert "built without CUDA" in " ".join(device_plan.causes_of_missing_gpus((), is_cuda_build=False))


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
        ("", []),
        ("-1", []),
        ("1,9,2", [1]),
        ("0,-1,1", [0]),
        ("GPU-ab,GPU-cd", [0, 1]),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(setting: str | None, indices: list[int]) -> None:
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert nvml.visible_indices(4, environment) == indices


def test_hardware_is_described_without_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    import platform

    described = hardware.describe_hardware(hardware.Inventory((hardware.Gpu("H200", 141 * 2**30),)))
    assert described["cpu_cores_usable"] >= 1
    assert described["gpus"] == ["H200 141 GiB"]
    assert platform.node() not in str(described)


def test_the_environment_must_be_prepared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow  # noqa: F401 - it is too late once this has run

    with pytest.raises(RuntimeError, match="before TensorFlow"):
        tensorflow_setup.prepare(Runtime())


@pytest.mark.parametrize(
    ("before", "device", "visible", "after"),
    [
        (None, "cpu", None, "-1"),
        ("0,1", "cpu", None, "-1"),
        (None, "gpu", None, None),
        ("2,3", "gpu", None, "2,3"),
        (None, "gpu", (2, 0), "2,0"),
        ("5,6,7", "gpu", (2, 0), "7,5"),
    ],
)
def test_gpus_are_hidden_and_chosen(
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    device: str,
    visible: tuple[int, ...] | None,
    after: str | None,
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    monkeypatch.setattr(tensorflow_setup.os, "environ", variables)
    tensorflow_setup.prepare(Runtime(devices=Devices(device=device, visible_gpus=visible)))
    assert variables.get("CUDA_VISIBLE_DEVICES") == after
    assert variables["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize(
    ("asked", "mode", "count"),
    [
        (Devices(device="gpu"), "theirs", "9"),
        (Devices(device="gpu", gpu_thread_mode="global"), "global", "9"),
        (Devices(device="gpu", num_devices=3, gpu_thread_mode="gpu_shared", per_gpu_thread_count=2), "gpu_shared", "6"),
        (
            Devices(device="gpu", num_devices=3, gpu_thread_mode="gpu_private", per_gpu_thread_count=2),
            "gpu_private",
            "2",
        ),
    ],
)
def test_threads_of_gpus_are_the_users_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: Devices, mode: str, count: str
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {"TF_GPU_THREAD_MODE": "theirs", "TF_GPU_THREAD_COUNT": "9"}
    monkeypatch.setattr(tensorflow_setup.os, "environ", variables)
    tensorflow_setup.prepare(Runtime(devices=asked))
    assert (variables["TF_GPU_THREAD_MODE"], variables["TF_GPU_THREAD_COUNT"]) == (mode, count)


@pytest.mark.parametrize(("asked", "value"), [(None, "theirs"), (True, "1"), (False, "0")])
def test_batch_normalisation_is_as_the_user_set_it_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: bool | None, value: str
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {"TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT": "theirs"}
    monkeypatch.setattr(tensorflow_setup.os, "environ", variables)
    tensorflow_setup.prepare(Runtime(devices=Devices(device="gpu"), batchnorm_persistent=asked))
    assert variables["TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"] == value


def test_the_users_log_level_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    monkeypatch.setattr(tensorflow_setup.os, "environ", variables)
    tensorflow_setup.prepare(Runtime())
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "0"
