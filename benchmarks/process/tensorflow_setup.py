"""Sets the environment of TensorFlow and imports it. No other module sets environment variables.

Variables that the user has set win, except where this suite cannot work with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.console import stderr_is, warn

# TensorFlow's C++ log level: 2 shows errors only; 3 not even those, since a run on a CPU need not report that there is
# no CUDA. Errors that stop a run are exceptions anyway.
_QUIET = {"gpu": "2", "cpu": "3"}

# The share of a GPU's memory that all sessions on it take together if it is split or shared: the CUDA context and
# libraries of each process need the rest.
SPLIT_FRACTION = 0.9

# Whether cuDNN's persistent kernels train batch normalisation (tensorflow/core/kernels/fused_batch_norm_op.cc).
PERSISTENT_BATCH_NORM = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"

# Keras imports matplotlib.pyplot, and TensorFlow scipy.sparse, if they are installed: two of twelve seconds. Keras
# imports pandas, too.
_NOT_NEEDED = ("matplotlib", "pandas", "scipy")

# Options of mallopt(3). M_MMAP_MAX: no block is mapped on its own; M_ARENA_MAX: one heap for all; M_TRIM_THRESHOLD and
# M_TOP_PAD: the heap never shrinks, and grows in large steps.
_MALLOC_OPTIONS = {-4: 0, -8: 1, -1: 2**31 - 1, -2: 2**28}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """What one process asks of TensorFlow: of its environment before the import, and of each of its sessions.

    Attributes:
        device: `cpu` hides all GPUs.
        num_devices: logical CPU devices, or GPUs, whole or split.
        virtual_gpus: logical GPUs per physical GPU; they share its memory evenly.
        visible_gpus: indices, among the GPUs visible now, of those that may be used; None leaves all.
        gpu_memory_fraction: share of a GPU's memory that may be taken; None is TensorFlow's default.
        gpu_memory_limit_mib: MiB of a GPU's memory that may be taken; None is TensorFlow's default.
        gpu_allow_growth: take a GPU's memory only as it is needed.
        gpu_thread_mode: whose threads launch GPU kernels: `global`, `gpu_private` or `gpu_shared`; None leaves it to
            TensorFlow and the user's variables.
        per_gpu_thread_count: such threads per GPU; 0 is TensorFlow's default.
        force_gpu_compatible: all tensors on the host are in pinned memory.
        batchnorm_persistent: whether cuDNN's persistent kernels train batch normalisation; None: TensorFlow's choice.
        num_intra_threads: threads within an operation; 0 is TensorFlow's default.
        num_inter_threads: operations at a time; 0 is TensorFlow's default.
        onednn: whether CPUs compute with oneDNN's kernels, `on` or `off`; None leaves it to TensorFlow and the user's
            variable.
        fpmath: oneDNN's math mode of products in float32, such as `BF16`; None leaves it to oneDNN and the user's
            variable.
        precision: with `tf32`, products in float32 round their factors; otherwise they do not.
        deterministic: equal runs give equal bits; operations that cannot do so fail.
        log_device_placement: print where each operation runs.
        peers: addresses (host:port) of all tasks of a cluster; they are reached without a proxy.
    """

    device: str = "cpu"
    num_devices: int = 1
    virtual_gpus: int = 1
    visible_gpus: Sequence[int] | None = None
    gpu_memory_fraction: float | None = None
    gpu_memory_limit_mib: int | None = None
    gpu_allow_growth: bool = False
    gpu_thread_mode: str | None = None
    per_gpu_thread_count: int = 0
    force_gpu_compatible: bool = False
    batchnorm_persistent: bool | None = None
    num_intra_threads: int = 0
    num_inter_threads: int = 0
    onednn: str | None = None
    fpmath: str | None = None
    precision: str = "fp32"
    deterministic: bool = False
    log_device_placement: bool = False
    peers: Sequence[str] = ()

    def session_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `devices.session_config`."""
        return {name: getattr(self, name) for name in _OF_SESSIONS}


_OF_SESSIONS = (
    "virtual_gpus",
    "gpu_memory_fraction",
    "gpu_memory_limit_mib",
    "gpu_allow_growth",
    "force_gpu_compatible",
    "num_intra_threads",
    "num_inter_threads",
    "log_device_placement",
)


def prepare(runtime: Runtime) -> None:
    """Sets the environment variables that TensorFlow, Keras and CUDA read when they are imported."""
    if "tensorflow" in sys.modules:
        raise RuntimeError("The environment must be prepared before TensorFlow is imported.")
    # TensorFlow prints the placement to stdout, and at its lowest log level to stderr once more.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _QUIET[runtime.device])
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # count GPUs as the driver and nvidia-smi do
    _await_steps()
    if runtime.peers:
        hosts = {address.rpartition(":")[0].strip("[]") for address in runtime.peers}
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # or gRPC complains when a process is started
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
        _keep_freed_memory()
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the models are built into TensorFlow graphs
    if runtime.onednn:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if runtime.onednn == "on" else "0"
    if runtime.fpmath:
        os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = runtime.fpmath
    if runtime.batchnorm_persistent is not None:
        os.environ[PERSISTENT_BATCH_NORM] = str(int(runtime.batchnorm_persistent))
    if runtime.gpu_thread_mode:
        os.environ["TF_GPU_THREAD_MODE"] = runtime.gpu_thread_mode
        sharing = runtime.num_devices if runtime.gpu_thread_mode == "gpu_shared" else 1
        if runtime.per_gpu_thread_count:
            os.environ["TF_GPU_THREAD_COUNT"] = str(runtime.per_gpu_thread_count * sharing)
    if runtime.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    elif runtime.visible_gpus is not None:
        now = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = now.split(",") if now else None
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] if names else str(i) for i in runtime.visible_gpus)


def _await_steps() -> None:
    """Has a step end when its GPUs have ended it: otherwise it ends when all is enqueued, and its time is that."""
    given = os.environ.get("TF_SYNC_ON_FINISH", "1")
    if given.lower() not in ("1", "true"):
        warn(
            f"TF_SYNC_ON_FINISH={given} is replaced by 1: without it the time of a step would be that of enqueueing it."
        )
    os.environ["TF_SYNC_ON_FINISH"] = "1"


def _keep_freed_memory() -> None:
    """Keeps freed host memory for the next step; the C library would return large blocks to the kernel.

    Data from the network is received into new memory in every step. This took AlexNet with a parameter server and two
    workers on one host from 60,000 to 1,500 page faults per step, and a tenth off the step time. ResNet-50 in a single
    process gains nothing.
    """
    set_by_user = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library
    if mallopt and not set_by_user:
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


@contextlib.contextmanager
def _hidden_imports() -> Iterator[None]:
    """Hides packages that TensorFlow and Keras import only if they are installed."""
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # so that it counts as missing
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras without packages that no run needs, and without their notices.

    TensorFlow writes notices to file descriptor 2 before it reads the log level, so the descriptor is redirected during
    the import. They are shown if the import fails, or if the user has set a log level.
    """
    try:
        with _hidden_imports():
            _import_quietly()
    except ImportError as error:  # another package may need what is hidden
        if (error.name or "").partition(".")[0] not in _NOT_NEEDED:
            raise
        _import_quietly()


def _import_quietly() -> None:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") not in _QUIET.values():
        import keras

        return
    stderr = os.dup(2)
    with os.fdopen(os.memfd_create("stderr"), "w+b") as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            with stderr_is(stderr):
                import keras  # noqa: F401 - imports TensorFlow
        except BaseException:
            held_back.seek(0)
            os.write(stderr, held_back.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
