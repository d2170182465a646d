"""What connects the GPUs of a machine, from the answers of a made-up driver, and which manager that suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest

from benchmarks.machine import gpu_topology, nvml
from benchmarks.machine.gpu_topology import SUGGESTIONS, advice, suggestion_for
from benchmarks.machine.hardware import Connection, Gpu, Inventory
from tests.support.nvidia import NO_PEERS, SWITCH, Machine
from tests.support.settings import resolve

SYS, NODE, PHB, PXB, PIX, ONE_BOARD = 50, 40, 30, 20, 10, 0
PATHS = {ONE_BOARD: "PIX", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS", 99: "?"}
DGX1 = {  # the hybrid cube mesh of eight P100: four links each, not to all others
    0: [1, 2, 3, 4],
    1: [0, 2, 3, 5],
    2: [0, 1, 3, 6],
    3: [0, 1, 2, 7],
    4: [5, 6, 7, 0],
    5: [4, 6, 7, 1],
    6: [4, 5, 7, 2],
    7: [4, 5, 6, 3],
}


def read(machine: Machine, **environment: str) -> Inventory:
    return gpu_topology.read_gpu_links(environment, machine, Path("/nowhere"))


def test_a_gpu_is_described(tmp_path: Path) -> None:
    slot = tmp_path / "sys/bus/pci/devices/face:01:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("1\n")
    found = gpu_topology.read_gpu_links({"CUDA_VISIBLE_DEVICES": "1"}, Machine(2), tmp_path)
    assert (found.driver_version, found.cuda_version, found.connections) == ("570.86", "12.8", {})
    assert found.gpus == (
        Gpu(
            index=1,
            uuid="GPU-1a2b3c4d-1234-5678-9abc-def012345678",
            name="NVIDIA H200",
            memory_bytes=140 * 2**30,
            compute_capability="9.0",
            has_ecc=True,
            is_divided=False,
            pcie_generation=5,
            pcie_width=16,
            numa_node=1,
        ),
    )


@pytest.mark.parametrize(
    ("nvlinks", "ancestor", "first_row", "has_nvlink"),
    [
        (dict.fromkeys(range(3), [SWITCH] * 18), SYS, ["X", "NV18", "NV18"], True),
        (DGX1, SYS, ["X", *["NV1"] * 4, *["SYS"] * 3], True),
        ({0: [1, 1], 1: [0, 0]}, SYS, ["X", "NV2", "SYS"], False),
        *(({}, number, ["X", name], False) for number, name in PATHS.items()),
    ],
)
def test_connections_have_the_names_of_nvidia_smi(
    nvlinks: dict[int, list[Any]], ancestor: int, first_row: list[str], has_nvlink: bool
) -> None:
    """NVLinks may lead through a switch, or through other GPUs; a root complex ends at its host bridge."""
    found = read(Machine(len(first_row), nvlinks=nvlinks, ancestor=ancestor))
    assert found.matrix()[0] == first_row == [row[0] for row in found.matrix()]
    assert found.has_nvlink == has_nvlink
    assert found.is_one_root_complex == (ancestor <= PHB)


def test_some_gpus_keep_what_connects_them() -> None:
    found = read(Machine(3, nvlinks={0: [1, 1], 1: [0, 0]}, ancestor={(0, 1): PIX, (0, 2): SYS, (1, 2): SYS}))
    assert found.only([1, 0]).has_nvlink and not found.only([2, 0]).has_nvlink and not found.only([0]).has_nvlink
    assert found.only([2, 1, 9]).matrix() == [["X", "SYS"], ["SYS", "X"]], "there is no tenth"


def test_links_of_a_virtual_machine_lead_to_a_switch_outside_it(tmp_path: Path) -> None:
    for gpu in range(3):
        (tmp_path / f"sys/bus/pci/devices/face:{gpu:02x}:00.0").mkdir(parents=True)
    outside = Machine(3, nvlinks=dict.fromkeys(range(3), [9] * 18), ancestor=PHB)
    assert gpu_topology.read_gpu_links({}, outside, tmp_path).matrix()[0] == ["X", "NV18", "NV18"]
    direct = Machine(3, nvlinks={0: [1], 1: [0]}, ancestor=PHB)
    assert gpu_topology.read_gpu_links({}, direct, tmp_path).matrix()[0] == ["X", "NV1", "PHB"]


@pytest.mark.parametrize(("status", "has_access"), [(pynvml.NVML_P2P_STATUS_OK, True), (NO_PEERS, False)])
def test_peer_access_is_reported(status: int, has_access: bool) -> None:
    assert read(Machine(2, peers=status)).has_peer_access == has_access


def test_what_the_driver_does_not_report_is_unknown() -> None:
    names = ("Name", "UUID", "CudaComputeCapability", "EccMode", "MaxPcieLinkGeneration", "PciInfo", "NvLinkState")
    names += ("TopologyCommonAncestor", "P2PStatus")
    found = read(Machine(2, refused=(*(f"nvmlDeviceGet{name}" for name in names), "nvmlSystemGetCudaDriverVersion")))
    gpu = found.gpus[0]
    assert (gpu.name, gpu.uuid, gpu.compute_capability, gpu.has_ecc) == ("unknown GPU", None, None, None)
    assert (found.cuda_version, gpu.pcie_generation, gpu.numa_node) == (None, None, None)
    assert found.connections == {(0, 1): Connection(nvlinks=0, path=None, has_peer_access=None)}
    assert not found.has_peer_access


def test_a_name_that_is_no_text_is_unknown() -> None:
    """As in WSL under drivers 555.85 and 555.99: github.com/gpuopenanalytics/pynvml/issues/53."""
    machine = Machine(1)
    machine._answers["nvmlDeviceGetName"] = lambda gpu: b"\xf8".decode()
    assert [gpu.name for gpu in read(machine).gpus] == ["unknown GPU"]


def broken(number: int) -> Machine:
    """Returns a machine whose driver does not start, with this error."""
    machine = Machine(2)

    def fail() -> None:
        raise pynvml.NVMLError(number)

    machine._answers["nvmlInit"] = fail
    return machine


MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, ""),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, ""),
        (MISMATCH, "version mismatch"),
    ],
)
def test_without_a_driver_there_is_nothing(error: int, problem: str) -> None:
    found = read(broken(error))
    assert problem in found.problem and found == Inventory(problem=found.problem if problem else "")


@pytest.mark.parametrize(
    ("absent", "file", "text", "problem"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "dev/nvidia0", "", "'utility' in NVIDIA_DRIVER_CAPABILITIES"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "dev/nvidia-uvm", "", ""),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, str(nvml._IN_WSL), "", "; /usr/lib/wsl/lib must be in LD_LIBRARY_PATH"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "class", "0x030200", "driver does not start (Driver Not Loaded)"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "class", "0x068000", ""),  # a switch between GPUs
    ],
)
def test_a_gpu_without_its_driver_is_missed(
    absent: int, file: str, text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    for folder in (slot, tmp_path / "dev", (tmp_path / nvml._IN_WSL).parent):
        folder.mkdir(parents=True)
    (slot / "vendor").write_text("0x10de\n")
    (slot / file if file == "class" else tmp_path / file).write_text(text)
    monkeypatch.setattr(nvml, "ROOT", tmp_path)
    found = read(broken(absent))
    assert problem in found.problem and bool(found.problem) == bool(problem)


@pytest.mark.parametrize("setting", ["all", "2", '"0,1"', "0 1", "cuda:0", "[0]", "1,0,1"])
def test_a_choice_of_gpus_that_shows_none_is_a_problem(setting: str) -> None:
    found = read(Machine(2), CUDA_VISIBLE_DEVICES=setting)
    assert not found.gpus and found.problem.startswith(f"CUDA_VISIBLE_DEVICES='{setting}' shows no GPU: it must begin")


@pytest.mark.parametrize("setting", ["", " ", "-1", "-1,0", "none", "void", "NoDevFiles"])
def test_gpus_may_be_hidden_also_where_the_driver_has_a_problem(setting: str) -> None:
    for machine in (Machine(2), Machine(4, lost={1: pynvml.NVML_ERROR_GPU_IS_LOST}), broken(MISMATCH)):
        found = read(machine, CUDA_VISIBLE_DEVICES=setting)
        assert (found.gpus, found.problem) == ((), "")


def test_a_gpu_that_does_not_answer_hides_no_other() -> None:
    machine = Machine(4, lost={1: pynvml.NVML_ERROR_GPU_IS_LOST})
    found = read(machine)
    assert [gpu.index for gpu in found.gpus] == [0, 2, 3]
    assert found.problem == "GPU 1 of the driver does not answer (GPU is lost)"
    named = read(machine, CUDA_VISIBLE_DEVICES="GPU-3a,GPU-2a")
    assert [gpu.index for gpu in named.gpus] == [3, 2]
    alone = read(Machine(1, lost={0: pynvml.NVML_ERROR_GPU_IS_LOST}), CUDA_VISIBLE_DEVICES="GPU-0a")
    assert (alone.gpus, alone.problem) == ((), "GPU 0 of the driver does not answer (GPU is lost)")
    of_others = read(Machine(4, lost={1: pynvml.NVML_ERROR_NO_PERMISSION}))
    assert (len(of_others.gpus), of_others.problem) == (3, "")


# What the connections suggest.

ON_GPUS = ("--variable_update=parameter_server", "--local_parameter_device=gpu")
ON_HOST = ("--variable_update=parameter_server", "--local_parameter_device=cpu")
NCCL = ("--variable_update=replicated", "--all_reduce_spec=nccl")


@pytest.mark.row("G4.3")
@pytest.mark.parametrize(
    ("machine", "flags"),
    [
        (Machine(0), ("--device=cpu",)),
        (Machine(1, nvlinks={0: [SWITCH] * 18}), ("--variable_update=parameter_server",)),
        (Machine(8, nvlinks=dict.fromkeys(range(8), [SWITCH] * 18), ancestor=SYS), NCCL),
        (Machine(8, ancestor=PXB), ON_GPUS),
        (Machine(8, ancestor=PXB, peers=NO_PEERS), ON_HOST),
        (Machine(8, ancestor=SYS), ON_HOST),
    ],
)
def test_connections_suggest_a_manager(machine: Machine, flags: tuple[str, ...]) -> None:
    found = read(machine)
    assert suggestion_for(found).flags == flags
    line = advice(found)
    count = len(found.gpus)
    assert "not measured" in line and " ".join(flags) in line
    assert (f"--num_gpus={count} " in line) == bool(count)
    given = [*flags, *([f"--num_gpus={count}"] if count else [])]
    resolve(*given, gpus=count)


def test_only_the_last_rule_holds_always() -> None:
    found = read(Machine(2, peers=NO_PEERS))
    assert [one for one in SUGGESTIONS if one.holds(found)] == [SUGGESTIONS[-1]]
