"""Commands on machines with GPUs, of which only the driver's answers exist."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.machine import hardware
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from benchmarks.run import runner
from tests.support.commands import RunBench
from tests.support.nvidia import MACHINES, Card, Machine, stand_in

_, FOUR, MIXED, MIG, *_ = MACHINES
V100 = Machine([Card("Tesla V100-SXM2-16GB", 16, (7, 0))])
BLACKWELL = Machine([Card("NVIDIA B200", 180, (10, 0))])


def test_a_machine_is_described_with_what_its_gpus_cannot_do(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, MACHINES[MIXED])
    found = json.loads(run_bench("devices", "--notensorflow", "--output_format=json").stdout)
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA A100-PCIE-40GB", "Tesla T4"]
    assert [gpu["memory_bytes"] for gpu in found["gpus"]] == [40 * 2**30, 15 * 2**30]
    flags = found["suggestion"]["flags"]
    assert flags == ["--variable_update=parameter_server", "--local_parameter_device=cpu"]
    assert any("Tesla T4: --precision=tf32" in limit["sentence"] for limit in found["limits"])
    explained = run_bench("explain", "--num_gpus=2", "--model=resnet50", *flags).stdout
    assert "resnet50, 2 towers of 128" in explained


@pytest.mark.parametrize(
    ("machine", "words", "problem"),
    [
        (V100, "", "Tesla V100-SXM2-16GB: cuDNN 9.28.0.42 has no code for compute capability 7.0"),
        (MACHINES[MIXED], "--gpus=1 --precision=tf32", "Tesla T4: --precision=tf32"),
        (MACHINES[MIG], "--num_gpus=2", "Of GPUs that are divided (MIG), CUDA shows a process one instance."),
        (
            MACHINES[MIG],
            "--all_reduce_spec=nccl",
            "NCCL needs a whole GPU for each tower, and here one is divided",
        ),
    ],
)
def test_what_these_gpus_cannot_do_is_refused_before_the_run(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, machine: Machine, words: str, problem: str
) -> None:
    stand_in(monkeypatch, machine, cudnn="9.28.0.42")
    done = run_bench("--device=gpu", "--model=resnet50", "--variable_update=replicated", *words.split())
    assert (done.status, done.stdout) == (2, "") and problem in done.stderr


@pytest.mark.parametrize(
    ("machine", "arguments", "notice"),
    [
        (BLACKWELL, [], "NVIDIA B200: TensorFlow"),
        (MACHINES[MIXED], ["--gpus=0", "--precision=bf16"], None),
    ],
)
def test_what_they_do_badly_is_a_notice(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, machine: Machine, arguments: list[str], notice: str | None
) -> None:
    stand_in(monkeypatch, machine)
    done = run_bench("--device=gpu", "--model=resnet50", *arguments, "--print_config")
    notices = json.loads(done.stdout)["notices"]
    assert [one.startswith(notice or "?") for one in notices] == ([True] if notice else []), notices


@pytest.mark.parametrize(("name", "value"), [("CUDA_DEVICE_ORDER", "FASTEST_FIRST"), ("NVIDIA_TF32_OVERRIDE", "0")])
def test_variables_that_contradict_the_run_are_refused(
    run_bench: RunBench, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    stand_in(monkeypatch, MACHINES[FOUR])
    done = run_bench("--device=gpu", "--precision=tf32", "--print_config", **{name: value})
    assert done.status == 2 and f"{name}={value}" in done.stderr
    assert run_bench("--device=cpu", "--print_config", **{name: value}).status == 0


def test_an_instance_of_a_gpu_reduces_around_a_ring(run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MACHINES[MIG])
    done = run_bench("--device=gpu", "--variable_update=collective_all_reduce", "--print_config")
    assert json.loads(done.stdout)["modifiers"]["all_reduce_spec"] is None


def test_an_instance_that_is_named_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MACHINES[MIG])
    (gpu,) = hardware.gpu_inventory({"CUDA_VISIBLE_DEVICES": "MIG-0/1"}).gpus
    assert (gpu.memory_bytes, gpu.is_divided) == (10 * 2**30, True)


@pytest.mark.parametrize(("machine", "shown"), [(MIG, None), (MIXED, (0,))])
def test_an_instance_is_not_named_by_its_position(
    monkeypatch: pytest.MonkeyPatch, machine: str, shown: tuple[int, ...] | None
) -> None:
    stand_in(monkeypatch, MACHINES[machine])
    given = flag.parse(["--device=gpu", "--gpus=0"], run_flags.RUN_FLAGS).values
    chosen = config.resolve(given, hardware.count_gpus)
    assert chosen.devices.visible_gpus == runner._visible_gpus(chosen.devices, "replicated") == shown
    assert runner._visible_gpus(chosen.devices, "mirrored_strategy") == shown


def test_the_chosen_gpu_is_the_one_that_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, MACHINES[MIXED])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    tensorflow_setup.prepare(Runtime(devices=Devices(device="gpu", visible_gpus=(1,))))
    assert [(gpu.name, gpu.memory_bytes) for gpu in hardware.gpu_inventory().gpus] == [("Tesla T4", 15 * 2**30)]
