"""What a machine has: its processors, its memory, its GPUs, and a driver that hangs."""

from __future__ import annotations

import os
import threading
import types
from pathlib import Path

import pynvml
import pytest

from benchmarks.doctor import machine_checks
from benchmarks.errors import BenchError, UsageError
from benchmarks.machine import hardware, linux, nvml
from tests.support.nvidia import Card, Machine


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
    driver = Machine([Card(name, instances_gib=(5,) * mig_mode[0])])
    monkeypatch.setattr(driver, "nvmlDeviceGetMigMode", lambda gpu: mig_mode, raising=False)
    (gpu,) = hardware.inventory_of(nvml.opened({}, driver)).gpus
    assert (gpu.name, gpu.is_divided) == (called, bool(mig_mode[0]))


CPUINFO = """processor\t: 0
physical id\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Xeon
stepping\t: 8
flags\t\t: fpu avx2 avx512f amx_bf16

processor\t: 1
physical id\t: 1
"""


def test_a_host_is_described_with_the_limits_of_its_container(tmp_path: Path) -> None:
    for name, text in {
        "proc/cpuinfo": CPUINFO,
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/memory.max": "2097152\n",
        "sys/fs/cgroup/pod/container/memory.max": "4194304\n",
        "sys/fs/cgroup/pod/container/cpu.max": "150000 100000\n",
        "sys/devices/system/node/node0/online": "1\n",
        "sys/devices/system/node/node1/online": "1\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = hardware.describe_host(tmp_path)
    assert (found["cpu_model"], found["sockets"], found["numa_nodes"]) == ("Xeon (6/143/8)", 2, 2)
    assert found["extensions"] == ["AVX2", "AVX-512", "AMX BF16"]
    assert (found["container_cores"], found["container_memory_bytes"]) == (1.5, 2**21)
    assert found["threads_usable"] == hardware.usable_cores()


def test_processors_of_arm_are_told_apart_by_their_part(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    models = set()
    for part in ("0xd0c", "0xd40"):
        text = f"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\nCPU revision\t: 1\n"
        (tmp_path / "proc/cpuinfo").write_text(text)
        models.add(hardware.describe_host(tmp_path)["cpu_model"].partition(" ")[2])
    assert models == {"(0x41/0xd0c/1)", "(0x41/0xd40/1)"}


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "50000 100000\n"},
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/pod\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
    ],
)
def test_less_cpu_time_is_other_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    limits = linux.cpu_limits(tmp_path)
    monkeypatch.setattr(linux, "cpu_limits", lambda: limits)
    facts = hardware.describe_hardware(hardware.Inventory())
    assert facts.get("container_cores") == (None if "-1\n" in files.values() else 0.5)


def test_a_host_that_hides_itself_is_unknown(tmp_path: Path) -> None:
    found = hardware.describe_host(tmp_path)
    hidden = ("sockets", "numa_nodes", "extensions", "container_cores", "container_memory_bytes")
    assert {found[name] for name in hidden} == {None}


def test_usable_cores_are_those_of_the_start_also_where_openmp_binds_the_main_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = hardware.usable_cores()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(before + 1)})
    assert hardware.usable_cores() == before


def test_an_old_package_that_hides_nvidias_is_a_sentence() -> None:
    old = Machine(1, answers={"nvmlSystemGetDriverVersion": b"570.86", "nvmlDeviceGetName": b"NVIDIA H200"})
    with pytest.raises(UsageError, match="install 'pynvml>=11.5'"):
        nvml.opened({}, old)


def test_a_driver_that_hangs_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_ANSWER_SECONDS", 0.1)
    released = threading.Event()
    driver = types.SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlInit=released.wait, nvmlDeviceGetCount=lambda: 0)
    driver.nvmlSystemGetDriverVersion = b"\xff".decode  # as one in WSL
    driver.nvmlSystemGetCudaDriverVersion = lambda: 12080
    with pytest.raises(BenchError, match="has not answered for 0.1 s .*--device=cpu"):
        nvml.opened({}, driver)
    (found,) = machine_checks.look_at_gpus({}, driver)
    assert found.is_disturbing and "nvidia-smi would hang" in found.advice
    released.set()
    assert nvml.opened({}, driver) == nvml.Driver(cuda_version="12.8")
