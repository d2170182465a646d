"""What a session is told about GPUs; no GPU is needed to check it."""

from __future__ import annotations

import pytest

from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.machine.hardware import Gpu, Inventory
from benchmarks.process.tensorflow_setup import Devices


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("H200", 140 * 2**30)
    monkeypatch.setattr(device_plan, "gpu_inventory", lambda: Inventory((gpu, gpu)))


def test_only_the_gpus_that_are_needed_are_taken() -> None:
    config = device_plan.session_config(Devices(device="gpu", gpu_memory_fraction=0.5, gpu_allow_growth=True))
    assert config.gpu_options.visible_device_list == "0"
    assert config.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert config.gpu_options.allow_growth
    assert not config.allow_soft_placement
    assert device_plan.session_config(Devices(device="gpu", num_devices=2)).gpu_options.visible_device_list == "0,1"


@pytest.mark.parametrize("pinned", [True, False])
def test_memory_of_the_host_is_pinned_on_request(pinned: bool) -> None:
    config = device_plan.session_config(Devices(device="gpu", force_gpu_compatible=pinned))
    assert config.gpu_options.force_gpu_compatible == pinned


def test_virtual_gpus_share_the_memory_evenly() -> None:
    config = device_plan.session_config(Devices(device="gpu", num_devices=3, virtual_gpus=2))
    assert config.gpu_options.visible_device_list == "0,1"
    limits = [list(gpu.memory_limit_mb) for gpu in config.gpu_options.experimental.virtual_devices]
    half = 0.9 * 140 * 1024 / 2
    assert limits == [pytest.approx([half, half])] * 2


def test_a_share_of_split_gpus_is_a_limit_for_each_part() -> None:
    config = device_plan.session_config(Devices(device="gpu", num_devices=2, virtual_gpus=2, gpu_memory_fraction=0.5))
    assert config.gpu_options.per_process_gpu_memory_fraction == 0, "TensorFlow refuses both"
    (gpu,) = config.gpu_options.experimental.virtual_devices
    assert list(gpu.memory_limit_mb) == pytest.approx([0.25 * 140 * 1024] * 2)


@pytest.mark.row("S0.11")
def test_a_limit_is_that_of_each_whole_gpu() -> None:
    config = device_plan.session_config(
        Devices(device="gpu", num_devices=2, gpu_memory_limit_mib=30_000, gpu_allow_growth=True)
    )
    limits = [list(gpu.memory_limit_mb) for gpu in config.gpu_options.experimental.virtual_devices]
    assert limits == [[30_000], [30_000]]
    assert config.gpu_options.per_process_gpu_memory_fraction == 0, "TensorFlow refuses both"
    assert config.gpu_options.allow_growth


def test_the_parts_of_a_split_gpu_share_its_limit() -> None:
    config = device_plan.session_config(
        Devices(device="gpu", num_devices=2, virtual_gpus=2, gpu_memory_limit_mib=30_000)
    )
    (gpu,) = config.gpu_options.experimental.virtual_devices
    assert list(gpu.memory_limit_mb) == [15_000, 15_000]


def test_a_limit_beyond_the_memory_is_refused() -> None:
    device_plan.session_config(Devices(device="gpu", gpu_memory_limit_mib=140 * 1024))
    with pytest.raises(UsageError, match="--gpu_memory_limit_mb=143361: a GPU here has 143360 MiB. Give less"):
        device_plan.session_config(Devices(device="gpu", gpu_memory_limit_mib=140 * 1024 + 1))


def test_a_cpu_run_names_no_gpu() -> None:
    config = device_plan.session_config(Devices(num_devices=4, num_intra_threads=2, num_inter_threads=1))
    assert dict(config.device_count) == {"CPU": 4, "GPU": 0}, "else it would take all GPUs of its process"
    assert (config.intra_op_parallelism_threads, config.inter_op_parallelism_threads) == (2, 1)
    assert config.gpu_options.visible_device_list == ""
