"""The environment of a run, for the record: versions, variables, what others used. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.console import warn_once
from benchmarks.machine import contention, hardware
from results.masking import without_secrets
from results.record import Identity, identify
from results.text import one_line

# The variables that may move a number: all of these libraries, and others by their exact names, since a prefix such as
# TF_ or NVIDIA_ is also that of passwords (Terraform's TF_VAR_..., NVIDIA_API_KEY), and records are published.
_RECORDED_LIBRARIES = ("CUBLAS", "CUDNN_", "DNNL_", "NCCL_", "OMP_", "ONEDNN_")
# Ends of names that move none, as NVIDIA's images and launchers set them.
_MOVES_NOTHING = ("_VERSION", "_HOME", "CUDNN_PATH", "NCCL_DEBUG_FILE", "NCCL_COMM_ID", "NCCL_HOSTID")
_RECORDED_VARIABLES = frozenset(
    """
    TF_ENABLE_ONEDNN_OPTS TF_DISABLE_MKL TF_ENABLE_MKL_NATIVE_FORMAT TF_ONEDNN_USE_SYSTEM_ALLOCATOR
    TF_ONEDNN_ASSUME_FROZEN_WEIGHTS TF_ONEDNN_THREADPOOL_USE_CALLER_THREAD TF_SET_ONEDNN_FPMATH_MODE
    TF_XLA_FLAGS XLA_FLAGS XLA_PYTHON_CLIENT_PREALLOCATE TF_DISABLE_JIT_KERNELS
    TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS TF_OVERRIDE_GLOBAL_THREADPOOL TF_JIT_PROFILING
    TF_DETERMINISTIC_OPS TF_CONV2D_USE_FP16_ACCUMULATE TF_USE_LEGACY_KERAS KERAS_BACKEND TF_CONFIG
    TF_ENABLE_AUTO_MIXED_PRECISION TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE
    TF_CPP_MIN_LOG_LEVEL TF_CPP_MAX_VLOG_LEVEL TF_CPP_VMODULE TF_SYNC_ON_FINISH TORCH_CPP_LOG_LEVEL
    TF_GPU_ALLOCATOR TF_GPU_THREAD_MODE TF_GPU_THREAD_COUNT TF_GPU_HOST_MEM_LIMIT_IN_MB TF_PER_DEVICE_MEMORY_LIMIT_MB
    TF_DEVICE_MIN_SYS_MEMORY_IN_MB TF_CUDA_PLATFORM_GPU_DEVICE_SCHEDULE TF_DETERMINISTIC_ALLOCATOR
    TF_FORCE_GPU_ALLOW_GROWTH TF_FORCE_UNIFIED_MEMORY TF_ENABLE_GPU_GARBAGE_COLLECTION TF_CPU_ALLOCATOR_USE_BFC
    TF_CUDNN_DETERMINISTIC TF_CUDNN_USE_AUTOTUNE TF_CUDNN_USE_FRONTEND TF_CUDNN_USE_RUNTIME_FUSION
    TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT
    TF_CUDNN_WORKSPACE_LIMIT_IN_MB TF_CUDNN_RESET_RND_GEN_STATE TF_CUDNN_CTC_LOSS TF_AUTOTUNE_THRESHOLD
    TF_CUBLAS_WORKSPACE_LIMIT_IN_MB TF_USE_CUBLASLT TF_ENABLE_WINOGRAD_NONFUSED TF_DISABLE_SEGMENT_REDUCTION_OP
    TF_ENABLE_CUBLAS_TENSOR_OP_MATH_FP32 TF_ENABLE_CUDNN_TENSOR_OP_MATH_FP32 TF_ENABLE_CUDNN_RNN_TENSOR_OP_MATH_FP32
    TF_AUTOTUNE_MIN_WARMUP_ITERATIONS TF_MATMUL_AUTOTUNE_ENABLE TF_MATMUL_AUTOTUNE_MAX_ALGORITHMS
    TF_FP16_CONV_USE_FP32_COMPUTE TF_FP16_MATMUL_USE_FP32_COMPUTE TF_CUDNN_DISABLE_CONV_1X1_OPTIMIZATION
    TF_USE_DEFAULT_CONV_ALGO TF_USE_DEEP_CONV2D TF_ENABLE_MAXPOOL_NANPROP TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC
    TF_DATA_EXPERIMENT_OPT_IN TF_DATA_EXPERIMENT_OPT_OUT TF_GRPC_WORKER_CACHE_QUEUES TF_GRPC_WORKER_CACHE_THREADS
    GRPC_POLL_STRATEGY GRPC_EXPERIMENTS FI_PROVIDER FI_EFA_USE_DEVICE_RDMA
    NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING
    CUDA_CACHE_DISABLE CUDA_CACHE_MAXSIZE CUDA_FORCE_PTX_JIT CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_AUTO_BOOST
    GOMP_CPU_AFFINITY KMP_AFFINITY KMP_BLOCKTIME KMP_SETTINGS KMP_HW_SUBSET
    OPENBLAS_NUM_THREADS MKL_NUM_THREADS MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS MKL_DEBUG_CPU_TYPE
    TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL TF_ENABLE_ZENDNN_OPTS TF_MKL_ALLOC_MAX_BYTES
    TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE TF_USE_EIGEN_PARALLEL_FOR_IN_WORK_SHARDER TF_CPU_BFC_MEM_LIMIT_IN_MB
    MALLOC_ARENA_MAX MALLOC_MMAP_MAX_ MALLOC_MMAP_THRESHOLD_ MALLOC_TOP_PAD_ MALLOC_TRIM_THRESHOLD_ MALLOC_CONF
    PYTHONDEVMODE PYTHONMALLOC PYTHONTRACEMALLOC
    MALLOC_PERTURB_ GLIBC_TUNABLES LD_PRELOAD ATEN_CPU_CAPABILITY TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF TORCH_BLAS_PREFER_CUBLASLT TORCHINDUCTOR_FREEZING
    TORCHINDUCTOR_MAX_AUTOTUNE TORCHDYNAMO_DISABLE TORCH_COMPILE_DISABLE
    TORCH_NCCL_ASYNC_ERROR_HANDLING GLOO_SOCKET_IFNAME
    """.split()
)

# Packages that contain TensorFlow: its own, and those of makers of hardware.
_TENSORFLOWS = (
    *("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    *("tensorflow-rocm", "intel-tensorflow", "tensorflow-cpu-aws", "tensorflow-aarch64", "nvidia-tensorflow"),
)


def describe_software() -> dict[str, Any]:
    """Returns the versions that can move a number, as installed: TensorFlow need not have been imported."""
    return {
        "python_version": platform.python_version(),
        "tensorflow_version": installed(*_TENSORFLOWS),
        "keras_version": installed("keras", "keras-nightly"),
        "numpy_version": installed("numpy"),
        "cuda_version": installed("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        "cudnn_version": installed("nvidia-cudnn-cu12", "nvidia-cudnn"),
        "nccl_version": installed("nvidia-nccl-cu12", "nvidia-nccl"),
    }


def installed(*names: str) -> str | None:
    """Returns the version of the first of these packages that is installed."""
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def suite_commit() -> str | None:
    """Returns the commit of this suite's checkout, with '+' if it has been changed; None if it is no checkout."""
    root = Path(__file__).resolve().parents[2]
    return _commit(root, "--untracked-files=no") if (root / ".git").exists() else None


@functools.cache  # of the first use in this process, as what was imported
def file_at_commit(file: Path, sources: tuple[str, ...]) -> str:
    """Returns a file of a user's model with the commit of its repository, with '+' if one of the sources is changed."""
    folder = file.parent.resolve()
    try:
        root = git(folder, "rev-parse", "--show-toplevel")
    except (OSError, ValueError, subprocess.SubprocessError):  # a ValueError: the path is not UTF-8
        return file.name
    own = [source for source in sources if Path(source).is_relative_to(root)] or [str(folder / file.name)]
    commit = _commit(folder, "--untracked-files=all", "--ignored", "--", *own)
    return f"{(folder / file.name).relative_to(root)} at {commit or 'no commit'}"


def _commit(folder: Path, *words: str) -> str | None:
    """Returns the commit of a checkout, with '+' if `git status` with these words finds a change; None without one.

    If git fails, a warning gives its reason, such as that the checkout belongs to another user.
    """
    try:
        lines = git(folder, "--no-optional-locks", "status", "--porcelain=v2", "--branch", *words).splitlines()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        warn_once(f"The commit of {folder} is unknown, and records lack it ({why_git_failed(error)}).")
        return None
    facts = dict(line.split(" ", 2)[1:] for line in lines if line.startswith("# branch."))
    commit = facts.get("branch.oid", "(initial)")
    is_changed = any(not line.startswith("#") for line in lines)
    return None if commit == "(initial)" else commit[:12] + "+" * is_changed


def git(root: Path, *words: str, timeout_seconds: float = 10.0) -> str:
    """Runs git in a directory, in a session that Ctrl-C does not reach, and returns its stripped stdout.

    Raises:
        OSError: git cannot be started.
        subprocess.SubprocessError: it fails, or takes too long.
    """
    done = subprocess.run(
        ["git", "-C", str(root), *words],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=True,
        # A git hook sets some for its own repository; they would override the one that is named.
        env={k: value for k, value in os.environ.items() if not k.startswith("GIT_") or k.startswith("GIT_CONFIG")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    return done.stdout.strip()


def why_git_failed(error: Exception) -> str:
    """Returns the reason of an error that `git` raised, on one line: what git calls fatal, with its advice."""
    printed = str(getattr(error, "stderr", None) or "").strip()
    fatal = printed.partition("fatal: ")[2] or printed.rpartition("\n")[2]
    return one_line(fatal or str(error)).rstrip(".")


def is_recorded(variable: str) -> bool:
    """Returns whether records have this environment variable, because it may move a number."""
    of_library = variable.startswith(_RECORDED_LIBRARIES) and not variable.endswith(_MOVES_NOTHING)
    return variable in _RECORDED_VARIABLES or of_library


def recorded_variables() -> dict[str, str]:
    """Returns the environment variables of this process that may move a number, without secrets."""
    names = sorted(filter(is_recorded, os.environ))
    assignments = without_secrets([f"{name}={os.environ[name]}" for name in names])
    return {name: assignment.partition("=")[2] for name, assignment in zip(names, assignments, strict=True)}


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a record comes from. Made before a run; read after it, when TensorFlow's build is known.

    The commit is that of the start: these files were imported, and a long run may see another checkout.
    """

    command: Sequence[str]
    inventory: hardware.Inventory
    cores_used_by_others_before: float | None
    session_id: str = ""
    commit: str | None = None

    def identity(self, config: Mapping[str, Any]) -> Identity:
        """Returns the identity of a run; `config` holds only what can change the result."""
        return identify(
            command=self.command,
            suite_commit=self.commit,
            config=config,
            hardware=hardware.describe_hardware(self.inventory),
            software=describe_software(),
            session_id=self.session_id,
        )

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """Returns the description of machine and software, and what else may explain an odd number."""
        build: dict[str, Any] = {}
        if tensorflow := sys.modules.get("tensorflow"):
            info = dict(tensorflow.sysconfig.get_build_info())
            found = {name: info.get(name) for name in ("is_cuda_build", "cuda_version", "cudnn_version")}
            build = {"tensorflow_git_version": tensorflow.version.GIT_VERSION, "tensorflow_build": found}
        return {
            **hardware.describe_hardware(self.inventory),
            **describe_software(),
            **build,
            "operating_system": platform.platform(),
            "gpu_driver_version": self.inventory.driver_version,
            "variables": recorded_variables(),
            "cores_used_by_others_before": self.cores_used_by_others_before,
        }


def of_this_run(
    command: Sequence[str], *, on_gpus: bool, session_id: str = "", starts_alone: bool = True
) -> Provenance:
    """Looks at the machine before a run; at its GPUs only if the run is to use them.

    Args:
        command: for the record.
        on_gpus: whether the run uses GPUs.
        session_id: of the runs of one command.
        starts_alone: whether no other process of the same run starts on this host now, which would count as another's.
    """
    used = contention.used_before_run() if starts_alone else contention.inherited()
    inventory = hardware.gpu_inventory() if on_gpus else hardware.Inventory()
    return Provenance(command, inventory, used, session_id, suite_commit())
