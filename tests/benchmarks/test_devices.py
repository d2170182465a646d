from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import devices, hardware, nvml, process_environment
from benchmarks.errors import UsageError
from tests.support.commands import Finished

ROOT = Path(__file__).resolve().parents[2]


def test_logical_cpu_devices_are_there_under_their_names() -> None:
    import tensorflow as tf

    plan = devices.plan("cpu", 3, virtual_gpus=1, shared_on="gpu")
    assert plan.towers == ("/cpu:0", "/cpu:1", "/cpu:2")
    assert plan.shared == plan.towers
    assert devices.plan("cpu", 3, virtual_gpus=1, shared_on="cpu").shared == ("/cpu:0",)
    assert "3 logical CPU devices sharing" in plan.description
    with tf.Graph().as_default(), tf.compat.v1.Session(config=devices.session_config("cpu", 3)) as session:
        names = [device.name for device in session.list_devices() if device.device_type == "CPU"]
    assert len(names) == 3


def test_placement_is_strict() -> None:
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session(config=devices.session_config("cpu", 2)) as session:
        with tf.device("/cpu:5"):
            lost = tf.random.normal([1])
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(lost)


def test_gpus_that_tensorflow_does_not_see_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2 GPUs wanted; TensorFlow .* sees 0.*--device=cpu"):
        devices.require_gpus(2, virtual_gpus=1)


def test_nchw_is_refused_where_the_cpu_has_no_kernels() -> None:
    script = "from benchmarks import devices; devices.require_nchw_on_cpu()"
    variables = {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "PATH": "", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert "--onednn=on" in done.stderr.splitlines()[-1] and "--data_format=NHWC" in done.stderr.splitlines()[-1]


def test_the_cpus_kernels_are_those_that_were_asked_for(run_process: Callable[..., Finished]) -> None:
    """oneDNN's convolutions take images by channel, and TensorFlow's own do not."""
    flags = ("--device=cpu", "--model=resnet20", "--data_format=NCHW", "--batch_size=2", "--num_batches=2")
    assert run_process(*flags, "--onednn=off").status == 2
    done = run_process(*flags, "--onednn=on", TF_ENABLE_ONEDNN_OPTS="0")
    assert done.status == 0, done.stderr


_COUNT_THREADS = """
import contextlib, os, sys, time
from benchmarks import config, flags, process_environment
chosen = config.resolve(flags.parse(sys.argv[1:], flags.RUN_FLAGS).values, lambda: 0)
process_environment.prepare(device="cpu", visible_gpus=None, onednn=chosen.onednn)
import tensorflow as tf
from benchmarks import run_graph
run_graph.plan_devices(chosen)
tf.constant(1.0)  # starts the eager runtime, as an input pipeline does
with tf.Graph().as_default():
    product = tf.matmul(*[tf.random.normal([300, 300])] * 2)
    with tf.compat.v1.Session(config=run_graph.session_config(chosen)) as session:
        session.run(product)
def names_of_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
    return sorted(names)
before, names = [], names_of_threads()
while before != names:  # a thread gives itself its name
    time.sleep(0.5)
    before, names = names, names_of_threads()
print(names.count("tf_Compute"), len(names))
"""


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_threads_are_as_many_as_were_asked_for(layout: str) -> None:
    """Whatever else runs before the step: TensorFlow makes its pools once."""

    def counted(within: int, at_once: int) -> tuple[int, int]:
        threads = (f"--num_intra_threads={within}", f"--num_inter_threads={at_once}")
        command = [sys.executable, "-c", _COUNT_THREADS, "--device=cpu", "--onednn=on", f"--data_format={layout}"]
        done = subprocess.run([*command, *threads], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        operations, everything = map(int, done.stdout.split())
        return operations, everything - operations

    (few, others), (many, more_others) = counted(2, 3), counted(7, 9)
    assert many - few == 12, "the session's pool, and the eager runtime's"
    assert more_others - others == 5


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
        process_environment.prepare(device="cpu", visible_gpus=None)


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
    monkeypatch: pytest.MonkeyPatch, before: str | None, device: str, visible: tuple[int, ...] | None, after: str | None
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {} if before is None else {"CUDA_VISIBLE_DEVICES": before}
    monkeypatch.setattr(process_environment.os, "environ", variables)
    process_environment.prepare(device=device, visible_gpus=visible)
    assert variables.get("CUDA_VISIBLE_DEVICES") == after
    assert variables["KERAS_BACKEND"] == "tensorflow"


@pytest.mark.parametrize(
    ("threads", "mode", "count"),
    [(None, "theirs", "9"), (("global", 0), "global", "9"), (("gpu_shared", 6), "gpu_shared", "6")],
)
def test_threads_of_gpus_are_the_users_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, threads: tuple[str, int] | None, mode: str, count: str
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {"TF_GPU_THREAD_MODE": "theirs", "TF_GPU_THREAD_COUNT": "9"}
    monkeypatch.setattr(process_environment.os, "environ", variables)
    process_environment.prepare(device="gpu", visible_gpus=None, gpu_threads=threads)
    assert (variables["TF_GPU_THREAD_MODE"], variables["TF_GPU_THREAD_COUNT"]) == (mode, count)


def test_what_no_run_needs_is_not_imported_and_can_be_afterwards() -> None:
    script = (
        "import sys; from benchmarks import process_environment as environment; "
        "environment.prepare(device='cpu', visible_gpus=None); environment.import_tensorflow(); "
        "assert not {'matplotlib', 'scipy'} & set(sys.modules); import matplotlib, scipy.stats"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_the_users_log_level_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    variables = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    monkeypatch.setattr(process_environment.os, "environ", variables)
    process_environment.prepare(device="cpu", visible_gpus=None)
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "0"
