"""The verb `devices`: what is in a machine, here and with made-up GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.devices import devices_verb
from benchmarks.machine import gpu_topology, hardware
from benchmarks.machine.provenance import describe_software
from tests.support.commands import RunBench
from tests.support.nvidia import NO_PEERS, SWITCH, Machine

HOST = {
    "cpu_model": "Intel(R) Xeon(R) 8481C (6/143/8)",
    "sockets": 2,
    "cores": 104,
    "threads": 208,
    "threads_usable": 16,
    "container_cores": 15.5,
    "numa_nodes": 2,
    "extensions": ["AVX2", "AMX BF16"],
    "memory_bytes": 2**41,
    "container_memory_bytes": 2**37,
}
SOFTWARE = {
    "python_version": "3.12.3",
    "tensorflow_version": "2.21.0",
    "cuda_version": "12.5.82",
    "cudnn_version": "9.3.0.75",
    "nccl_version": None,
}
BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9", "gpus_found": 0, "onednn": "on"}


@pytest.mark.row("S3.5")
def test_a_machine_without_gpus_is_described(run_bench: RunBench) -> None:
    done = run_bench("devices", "--notensorflow").succeeded()
    assert "NVIDIA driver: no NVIDIA driver" in done.stdout
    assert "By topology (a rule of thumb, not measured): --device=cpu" in done.stdout
    assert describe_software()["tensorflow_version"] in done.stdout


def test_json_has_the_build_of_tensorflow(run_bench: RunBench) -> None:
    found = json.loads(run_bench("devices", "--output_format=json").stdout)
    assert set(found["tensorflow_build"]) >= {"is_cuda_build", "gpus_found", "onednn"}
    assert (found["gpus"], found["suggestion"]["flags"], found["cluster"]) == ([], ["--device=cpu"], None)
    assert found["host"]["threads_usable"] == hardware.usable_cores()


@pytest.mark.row("S3.5")
def test_gpus_and_their_connections_are_two_tables() -> None:
    machine = Machine(2, nvlinks=dict.fromkeys(range(2), [SWITCH] * 18), ancestor=50)
    topology = gpu_topology.read_gpu_links({}, machine, Path("/nowhere"))
    lines = devices_verb.lines(topology, HOST, SOFTWARE, BUILD)
    assert lines[:7] == [
        "CPU:           Intel(R) Xeon(R) 8481C (6/143/8)",
        "cores:         16 of 208 threads usable (104 cores, 2 sockets, 2 NUMA nodes); the container has the time of "
        "15.5",
        "instructions:  AVX2, AMX BF16",
        "memory:        2048.0 GiB; the container has 128.0 GiB",
        "NVIDIA driver: 570.86, CUDA up to 12.8",
        "libraries:     CUDA 12.5.82, cuDNN 9.3.0.75",
        "TensorFlow:    2.21.0, built with CUDA 12.5.1 and cuDNN 9, finds 0 of 2 GPUs; oneDNN on",
    ]
    assert lines[9:17] == [
        "GPU  name         memory     UUID          compute  PCIe   ECC  MIG  NUMA",
        "0    NVIDIA H200  140.0 GiB  GPU-0a2b3c4d  9.0      5 x16  on   off  ?",
        "1    NVIDIA H200  140.0 GiB  GPU-1a2b3c4d  9.0      5 x16  on   off  ?",
        "",
        "      GPU0  GPU1",
        "GPU0  X     NV18",
        "GPU1  NV18  X",
        "NVn: n NVLinks",
    ]
    made = devices_verb.as_json(topology, HOST, SOFTWARE, BUILD)
    assert json.loads(json.dumps(made))["connections"] == [
        {"between": [0, 1], "nvlinks": 18, "path": "SYS", "has_peer_access": True}
    ]


def test_a_lack_of_peer_access_is_named_only_if_the_driver_reports_it() -> None:
    unknown = Machine(2, refused=("nvmlDeviceGetP2PStatus",))
    for machine, is_named in ((Machine(2, peers=NO_PEERS), True), (unknown, False)):
        topology = gpu_topology.read_gpu_links({}, machine, Path("/nowhere"))
        lines = devices_verb.lines(topology, HOST, SOFTWARE, BUILD)
        assert ("Some GPUs have no access to each other's memory." in lines) == is_named
