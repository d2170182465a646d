"""What TensorFlow cannot do on a GPU with this driver and these libraries. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Mapping

from benchmarks.machine.hardware import Inventory
from benchmarks.machine.provenance import installed

Version = tuple[int, ...]
# From a version, and below another one; None: no bound.
Range = tuple[Version | None, Version | None]
_ANY: Range = (None, None)
_THESE = ((2, 20), (2, 22))  # the versions of TensorFlow whose machine code was looked at


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """What cannot be done, or not well, where all of this holds. An unknown version is in no range that has a bound.

    Attributes:
        capability: compute capability of the GPU.
        driver_cuda: the newest CUDA of the driver.
        cudnn: the version of cuDNN's Python package.
        tensorflow: its version.
        asks: the name and the value of a flag; None: whatever the flags.
        problem: the sentence, with `{capability}`, `{driver_cuda}`, `{cudnn}` and `{tensorflow}`.
        is_fatal: whether it cannot be done at all.
        source: where this is known from.
    """

    capability: Range = _ANY
    driver_cuda: Range = _ANY
    cudnn: Range = _ANY
    tensorflow: Range = _THESE
    asks: tuple[str, str] | None = None
    problem: str
    is_fatal: bool = True
    source: str


LIMITS = (
    Limit(
        driver_cuda=(None, (12, 0)),
        problem="the driver supports CUDA up to {driver_cuda}, and TensorFlow {tensorflow} needs 12: install driver "
        "525 or later.",
        source="NVIDIA, CUDA Compatibility: minor version compatibility",
    ),
    Limit(
        capability=(None, (6, 0)),
        problem="TensorFlow {tensorflow} has no code for compute capability {capability} and ignores this GPU: choose "
        "others with --gpus, or use --device=cpu.",
        source="tf.sysconfig.get_build_info()['cuda_compute_capabilities']; "
        "tensorflow/core/common_runtime/gpu/gpu_device.cc",
    ),
    Limit(
        capability=((6, 0), (7, 5)),
        cudnn=((9, 11), None),
        tensorflow=_ANY,
        problem="cuDNN {cudnn} has no code for compute capability {capability}: install an older one (pip install -e "
        "'.[cuda-volta]').",
        source="NVIDIA, cuDNN support matrix; machine code in libcudnn_ops.so.9",
    ),
    Limit(
        capability=((9, 0), (10, 0)),
        driver_cuda=(None, (12, 5)),
        problem="the driver supports CUDA up to {driver_cuda}, and TensorFlow {tensorflow} has most kernels for "
        "compute capability {capability} as PTX 8.5 only, which needs CUDA 12.5: install driver 555 or later.",
        source="machine code in libtensorflow_cc.so.2; NVIDIA, PTX ISA: release notes",
    ),
    Limit(
        capability=((10, 0), None),
        asks=("xla", "jit"),
        problem="--xla=jit: XLA in TensorFlow {tensorflow} writes PTX 8.5, which does not know compute capability "
        "{capability}, and LLVM ends the process: use --xla=off.",
        source="tensorflow/tensorflow issue 111958",
    ),
    Limit(
        capability=((10, 0), None),
        problem="TensorFlow {tensorflow} has no machine code for compute capability {capability}: the driver compiles "
        "its kernels, which can take minutes of the first step. Set CUDA_CACHE_MAXSIZE=4294967296, so that it keeps "
        "them, and a longer --step_timeout_seconds.",
        is_fatal=False,
        source="machine code in libtensorflow_cc.so.2",
    ),
    Limit(
        capability=(None, (8, 0)),
        tensorflow=_ANY,
        asks=("precision", "tf32"),
        problem="--precision=tf32: compute capability {capability} has no TF32, so this would compute in fp32: use "
        "fp32 or fp16.",
        source="NVIDIA, CUDA C++ Programming Guide: compute capabilities",
    ),
    Limit(
        capability=(None, (8, 0)),
        tensorflow=_ANY,
        asks=("precision", "bf16"),
        problem="--precision=bf16: compute capability {capability} has no bfloat16 instructions, so TensorFlow "
        "converts to float32 and back: use fp16.",
        is_fatal=False,
        source="NVIDIA, CUDA C++ Programming Guide: compute capabilities; tensorflow/core/kernels/conv_ops_gpu.h",
    ),
)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A limit that some GPU meets here, as a sentence that names the GPU; `is_fatal`: see `Limit`."""

    sentence: str
    is_fatal: bool


def judge(inventory: Inventory, software: Mapping[str, str | None], *asked: tuple[str, str]) -> list[Judgement]:
    """Returns what cannot be done with these GPUs, what is fatal first. Of what is unknown (None) nothing is said.

    `software` is that of `provenance.describe_software`, and `asked` are flags with values, such as `xla` and `jit`.
    """
    gpus = {gpu.name: gpu.compute_capability for gpu in inventory.gpus}
    differ = f"The GPUs differ ({', '.join(gpus)}): a step of all ends with the slowest one. --gpus chooses equal ones."
    judgements = [Judgement(differ, is_fatal=False)] if len(gpus) > 1 else []
    for name, capability in gpus.items():
        versions = {
            "capability": capability,
            "driver_cuda": inventory.cuda_version,
            "cudnn": software["cudnn_version"],
            "tensorflow": software["tensorflow_version"],
        }
        judgements += [
            Judgement(f"{name}: {limit.problem.format(**versions)}", limit.is_fatal)
            for limit in LIMITS
            if limit.asks in (None, *asked)
            and all(_within(version, getattr(limit, key)) for key, version in versions.items())
        ]
    return sorted(judgements, key=lambda judgement: not judgement.is_fatal)


def _within(version: str | None, bounds: Range) -> bool:
    low, high = bounds
    if bounds == _ANY:
        return True
    if version is None:
        return False
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return (low is None or low <= numbers) and (high is None or numbers < high)


def missing_libraries() -> list[str]:
    """Returns which Python packages of CUDA's libraries that TensorFlow's extra `and-cuda` names are not installed."""
    try:
        required = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if '"and-cuda"' in line]
    return [name for name in names if installed(name) is None]
