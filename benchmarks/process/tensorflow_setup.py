"""Sets the environment of TensorFlow and imports it.

No other module sets environment variables; `models.outside_code` restores what a user's model has set.

Variables that the user has set win, except where this suite cannot work with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Literal

from benchmarks.console import stderr_is, warn
from benchmarks.errors import UsageError
from benchmarks.option import option

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
# What the dynamic linker says of a library that may not be loaded.
_NOT_MAPPED = re.compile(r"(?<!\S)[^\s:]++: failed to map segment from shared object")

# Options of mallopt(3). M_MMAP_MAX: no block is mapped on its own; M_ARENA_MAX: one heap for all; M_TRIM_THRESHOLD and
# M_TOP_PAD: the heap never shrinks, and grows in large steps.
_MALLOC_OPTIONS = {-4: 0, -8: 1, -1: 2**31 - 1, -2: 2**28}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The part of a configuration on devices.

    Attributes:
        device: `cpu` hides all GPUs.
        num_devices: towers, one per device, also logical CPU devices; in a pipeline, stages.
        virtual_gpus: into how many each GPU is split; they share its memory evenly.
        visible_gpus: of the GPUs visible now, numbers of those that may be used; None: all.
        gpu_memory_fraction, gpu_memory_limit_mib: of each GPU that may be taken; None: TensorFlow's default.
        gpu_thread_mode: None leaves it to TensorFlow and the user's variable.
        onednn: None leaves it to TensorFlow and the user's variable.
    """

    device: Literal["cpu", "gpu"] = "cpu"
    num_devices: int = 1
    virtual_gpus: int = 1
    visible_gpus: tuple[int, ...] | None = None
    gpu_memory_fraction: float | None = option(
        "fraction of each GPU's memory that TensorFlow may allocate",
        default=None,
        flag="gpu_memory_frac",
        above=0,
        at_most=1,
    )
    gpu_memory_limit_mib: int | None = option(
        "memory in MiB that TensorFlow may allocate on each GPU, instead of --gpu_memory_frac; virtual GPUs share it",
        default=None,
        flag="gpu_memory_limit_mb",
        at_least=1,
    )
    gpu_allow_growth: bool = option(
        "allocate GPU memory as it is needed, not all at the start", default=False, flag="allow_growth"
    )
    gpu_thread_mode: Literal["global", "gpu_private", "gpu_shared"] | None = option(
        "threads that launch GPU kernels: global, private to each GPU, or shared by all",
        default=None,
        default_text="gpu_private with --data_dir, else TensorFlow's",
    )
    per_gpu_thread_count: int = option(
        "threads per GPU of the modes gpu_private and gpu_shared; 0: TensorFlow's default", default=0, at_least=0
    )
    force_gpu_compatible: bool = option(
        "allocate all host tensors in pinned memory, which GPUs copy directly",
        default=False,
        default_text="true if images come from the host",
    )
    num_intra_threads: int = option("threads within an operation; 0: TensorFlow's default", default=0, at_least=0)
    num_inter_threads: int = option(
        "operations that run at the same time; 0: TensorFlow's default", default=0, at_least=0
    )
    onednn: Literal["on", "off"] | None = option(
        "use oneDNN kernels on CPUs",
        default=None,
        default_text="TensorFlow's choice: on where the CPU has AVX512-VNNI or similar",
    )
    log_device_placement: bool = option("print the device of each operation", default=False, in_key=False)

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs compute."""
        return self.device == "gpu"

    @property
    def physical_gpus(self) -> int:
        """GPUs that are used, whole or split; 0 on a CPU."""
        return -(-self.num_devices // self.virtual_gpus) if self.on_gpu else 0

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """The numbers of these GPUs among those visible now."""
        return (self.visible_gpus or tuple(range(self.physical_gpus)))[: self.physical_gpus]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """What one process asks of TensorFlow: of its environment before the import, and of each of its sessions.

    Attributes:
        devices: those of this process.
        batchnorm_persistent: whether cuDNN's persistent kernels train batch normalisation; None: TensorFlow's choice.
        fpmath: oneDNN's math mode of products in float32, such as `BF16`; None leaves it to oneDNN and the user's
            variable.
        precision: with `tf32`, products in float32 round their factors; otherwise they do not.
        deterministic: equal runs give equal bits; operations that cannot do so fail.
        peers: addresses (host:port) of all tasks of a cluster; they are reached without a proxy.
    """

    devices: Devices = Devices()
    batchnorm_persistent: bool | None = None
    fpmath: str | None = None
    precision: str = "fp32"
    deterministic: bool = False
    peers: Sequence[str] = ()


def prepare(runtime: Runtime) -> None:
    """Sets the environment variables that TensorFlow, Keras and CUDA read when they are imported.

    Raises:
        UsageError: TensorFlow has been imported.
    """
    devices = runtime.devices
    if "tensorflow" in sys.modules:
        raise UsageError(
            "TensorFlow was imported before its environment was set, as by %run in a notebook or a sitecustomize.py: "
            "start run_bench.py as a process of its own (!python run_bench.py ...), in which nothing else imports it."
        )
    # TensorFlow prints the placement to stdout, and at its lowest log level to stderr once more.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _QUIET[devices.device])
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # count GPUs as the driver and nvidia-smi do
    _await_steps()
    if runtime.peers:
        hosts = {address.rpartition(":")[0].strip("[]") for address in runtime.peers}
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # or gRPC complains when a process is started
        os.environ["no_grpc_proxy"] = ",".join(sorted(hosts))
        _keep_freed_memory()
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the models are built into TensorFlow graphs
    os.environ.pop("TF_USE_LEGACY_KERAS", None)  # or tf.keras, in a user's model, is Keras 2
    if devices.onednn:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1" if devices.onednn == "on" else "0"
    if runtime.fpmath:
        os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = runtime.fpmath
    if runtime.batchnorm_persistent is not None:
        os.environ[PERSISTENT_BATCH_NORM] = str(int(runtime.batchnorm_persistent))
    if devices.gpu_thread_mode:
        os.environ["TF_GPU_THREAD_MODE"] = devices.gpu_thread_mode
        sharing = devices.num_devices if devices.gpu_thread_mode == "gpu_shared" else 1
        if devices.per_gpu_thread_count:
            os.environ["TF_GPU_THREAD_COUNT"] = str(devices.per_gpu_thread_count * sharing)
    if devices.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    elif devices.visible_gpus is not None:
        now = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = now.split(",") if now else None
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] if names else str(i) for i in devices.visible_gpus)


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
        for parameter, value in _MALLOC_OPTIONS.items():
            mallopt(parameter, value)


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

    Raises:
        UsageError: Keras cannot read, or refuses, the user's keras.json; or a library finds no room, or may not run.
    """
    try:
        with _hidden_imports():
            _import_quietly()
    except ImportError as error:  # another package may need what is hidden
        if unmapped := _NOT_MAPPED.search(str(error)):
            raise UsageError(
                f"TensorFlow cannot be imported: {unmapped[0]}. Raise this process's limit of address space (ulimit -v "
                "unlimited); if it has none, install TensorFlow on a file system that is not mounted noexec."
            ) from error
        if (error.name or "").partition(".")[0] not in _NOT_NEEDED:
            raise
        _import_quietly()
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        path = frame.f_globals.get("_config_path")  # of keras.src.backend.config
        if path is None:
            raise
        what_to_do = f"Correct or remove {path}, or set KERAS_HOME to another directory."
        # Before 3.14, Keras asserts the values, without a message.
        reason = str(error).rstrip(".") or traceback.extract_tb(error.__traceback__)[-1].line
        raise UsageError(f"Keras cannot be imported: {reason}. {what_to_do}") from error


def _import_quietly() -> None:
    # A Python that was built for an old C library has no memfd_create: the notices are shown.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") not in _QUIET.values() or not hasattr(os, "memfd_create"):
        import keras

        return
    stderr = os.dup(2)
    with os.fdopen(os.memfd_create("stderr"), "w+b") as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            with stderr_is(stderr):
                import keras  # noqa: F401 - imports TensorFlow
        except Exception:  # not after Ctrl-C
            held_back.seek(0)
            os.write(stderr, held_back.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
