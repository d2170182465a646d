"""The devices of a run under TensorFlow's names, and checks that they exist. Placement is strict."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence

import tensorflow as tf

from benchmarks.cluster import cluster_spec
from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.errors import UsageError
from benchmarks.machine import gpu_support
from benchmarks.machine.hardware import Gpu, Inventory, describe_hardware, gpu_inventory, in_words
from benchmarks.process import subprocesses
from benchmarks.process.tensorflow_setup import SPLIT_FRACTION, Devices, Runtime
from results.text import counted
from variable_mgr.place import HOST, Place

_LOOK_SECONDS = 120.0
# TensorFlow reports why it cannot use a GPU when it looks for GPUs, below the level that a run shows.
_LOOK = "import os, tensorflow as tf; os.write(2, b'\\0'); tf.config.list_physical_devices('GPU')"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices that one process drives, by name.

    Attributes:
        place: the towers' devices, and those around them.
        shared: devices of shared variables and of averaged gradients, used in rotation.
        description: the devices in words.
    """

    place: Place
    shared: tuple[str, ...]
    description: str

    @property
    def towers(self) -> tuple[str, ...]:
        """One name per tower."""
        return self.place.towers


def plan(
    devices: Devices, *, shared_on: str, cluster: Cluster | None = None, manager: str = "", group: int = 1
) -> DevicePlan:
    """Names the devices of towers.

    Args:
        devices: their kind and number.
        shared_on: `cpu` for the host, `gpu` for the towers' own devices.
        cluster: the tasks; None for a single process.
        manager: the variable manager.
        group: see `variable_mgr.place.Place`.
    """
    count, is_split = devices.num_devices, devices.virtual_gpus > 1
    place = cluster_spec.place(devices.device, count, virtual=is_split, cluster=cluster, manager=manager, group=group)
    if not devices.on_gpu:
        facts = describe_hardware(Inventory())
        cores = counted(facts["cpu_cores_usable"], "core")
        cores += f", of which {facts['container_cores']:g} at a time" if "container_cores" in facts else ""
        description = f"{counted(count, 'logical CPU device')} sharing {cores}"
    elif is_split:
        description = f"{counted(count, 'virtual GPU')}, {devices.virtual_gpus} on each physical one"
    else:
        description = counted(count, "GPU")
    if cluster:
        description = f"{counted(cluster.num_workers, 'worker')}, each with {description}"
    shared = (place.host,) if shared_on == "cpu" else place.towers
    return DevicePlan(place=place, shared=shared, description=description)


def with_hardware(description: str, devices: Devices) -> str:
    """Adds the names of the GPUs, or the CPU's model, to a description of the devices of a task of a cluster."""
    # CUDA shows those that `prepare` chose, and those of other tasks perhaps too.
    facts = describe_hardware(gpu_inventory() if devices.on_gpu else Inventory())
    return f"{description}: {in_words(facts, range(devices.physical_gpus), shows_unused=False)}"


def gpus_of_its_own(devices: Devices) -> list[str]:
    """Returns the UUIDs of the whole GPUs of a task of a cluster, unless it leaves memory of them to others."""
    grows = devices.gpu_allow_growth or os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("1", "true")
    is_part = grows or devices.gpu_memory_fraction is not None or devices.gpu_memory_limit_mib is not None
    count = 0 if is_part else devices.physical_gpus
    gpus = gpu_inventory().gpus[:count] if count else ()
    return [gpu.uuid for gpu in gpus if gpu.uuid and not gpu.is_divided]


def require_gpus(devices: Devices, *, eager: bool = False) -> None:
    """Checks that TensorFlow sees the GPUs, if any are needed; with `eager`, the eager runtime may use them.

    Raises:
        UsageError: it sees too few, or ignores one, so that it numbers them unlike the driver.
    """
    if not devices.on_gpu:
        return
    needed = devices.physical_gpus
    seen, shown = len(tf.config.list_physical_devices("GPU")), gpu_inventory().gpus
    if not eager:
        # An input pipeline starts the eager runtime, which would take all GPUs' memory before the session.
        tf.config.set_visible_devices([], "GPU")
    if seen < max(needed, len(shown)):
        causes = " ".join(causes_of_missing_gpus(shown, is_cuda_build=tf.test.is_built_with_cuda()))
        raise UsageError(
            f"{counted(needed, 'GPU')} wanted; TensorFlow {tf.__version__} sees {seen}, and the driver {len(shown)}. "
            f"{causes} Name those that TensorFlow sees with --gpus, or use --device=cpu."
        )


def causes_of_missing_gpus(shown: Sequence[Gpu], *, is_cuda_build: bool) -> Iterator[str]:
    """Yields why TensorFlow may see fewer GPUs than the driver shows, and what TensorFlow itself reports."""
    if not is_cuda_build:
        yield "This TensorFlow has no CUDA: pip install -e '.[cuda]' in a new environment (Arm: docs/howto/gpus.md)."
        return
    if missing := gpu_support.missing_libraries():
        yield f"The extra 'cuda' is not installed (pip install -e '.[cuda]'); missing are {', '.join(missing)}."
    if any(gpu.is_divided for gpu in shown):
        yield "A GPU is divided (MIG): without an instance (nvidia-smi -L lists them) CUDA does not show it."
    if names := os.environ.get("CUDA_VISIBLE_DEVICES"):
        yield f"CUDA_VISIBLE_DEVICES={names} (--gpus sets it, too) may name a GPU that does not exist."
    if messages := _reported():
        yield f"TensorFlow reports: {' | '.join(messages)}."
    if any("CUDA_ERROR_SYSTEM_NOT_READY" in message for message in messages):
        yield "GPUs behind NVSwitch need NVIDIA's fabric manager, of the driver's version: start nvidia-fabricmanager."


def _reported() -> list[str]:
    """Returns the messages of TensorFlow while it looks for GPUs, in a process that shows all of them."""
    words, variables = (sys.executable, "-P", "-c", _LOOK), {"TF_CPP_MIN_LOG_LEVEL": "0"}
    _, output = subprocesses.captured(words, _LOOK_SECONDS, variables=variables)
    lines = output.decode(errors="replace").rpartition("\0")[2].splitlines()
    return [line.partition("] ")[2].rstrip(".") for line in lines if "] " in line]


def set_threads(devices: Devices) -> None:
    """Sets how many threads this process has, before anything has run in it.

    TensorFlow makes its thread pools once, for whatever runs first: a session, or the eager runtime, which an input
    pipeline starts.
    """
    if devices.num_intra_threads:
        tf.config.threading.set_intra_op_parallelism_threads(devices.num_intra_threads)
    if devices.num_inter_threads:
        tf.config.threading.set_inter_op_parallelism_threads(devices.num_inter_threads)


def set_arithmetic(runtime: Runtime) -> None:
    """Sets how this process computes, for its own sessions and for those that other tasks open on it.

    Neither is part of a graph, and TensorFlow's own default is TF32.
    """
    tf.config.experimental.enable_tensor_float_32_execution(runtime.precision == "tf32")
    if runtime.deterministic:
        tf.config.experimental.enable_op_determinism()


def require_nchw_on_cpu(devices: Devices) -> None:
    """Checks that this TensorFlow has NCHW kernels for the CPU: with oneDNN it has, without it has none.

    Raises:
        UsageError: it has none.
    """
    with tf.Graph().as_default(), tf.device(HOST):
        images = tf.ones((1, 1, 4, 4))
        kernel = tf.ones((2, 2, 1, 1))
        pooled = tf.nn.max_pool2d(tf.nn.conv2d(images, kernel, 1, "SAME", data_format="NCHW"), 2, 2, "VALID", "NCHW")
        # A feed keeps graph optimisation from computing the answer without the kernels.
        fed = tf.compat.v1.placeholder_with_default(pooled, pooled.shape)
        gradients = tf.gradients(fed, [kernel, images])
        on_cpu = session_config(dataclasses.replace(devices, device="cpu", num_devices=1))
        with tf.compat.v1.Session(config=on_cpu) as session:
            try:
                session.run(gradients)
            except tf.errors.OpError as error:
                raise UsageError(
                    "--data_format=NCHW: this TensorFlow has no NCHW convolutions for the CPU (they come with oneDNN, "
                    "which is off or missing here). Use --onednn=on if it is off, or --data_format=NHWC."
                ) from error


def session_config(devices: Devices) -> tf.compat.v1.ConfigProto:
    """Returns the session's configuration: strict placement, exactly the devices of `plan`.

    Limits of split GPUs are what all parts have together, and their memory does not grow. Threads and pinned memory are
    those of the whole process.

    Raises:
        UsageError: a GPU has less memory than the limit.
    """
    config = tf.compat.v1.ConfigProto(
        allow_soft_placement=False,
        log_device_placement=devices.log_device_placement,
        intra_op_parallelism_threads=devices.num_intra_threads,
        inter_op_parallelism_threads=devices.num_inter_threads,
        # A session takes all GPUs of its process unless it is told otherwise, also those that are hidden from the eager
        # runtime.
        device_count={"CPU": 1} if devices.on_gpu else {"CPU": devices.num_devices, "GPU": 0},
    )
    if devices.on_gpu:
        options = config.gpu_options
        options.allow_growth = devices.gpu_allow_growth
        options.force_gpu_compatible = devices.force_gpu_compatible
        # The others' memory is left alone.
        options.visible_device_list = ",".join(map(str, range(devices.physical_gpus)))
        # TensorFlow accepts either limits per virtual device, of which a GPU may have one, or a fraction per GPU.
        if devices.virtual_gpus > 1 or devices.gpu_memory_limit_mib:
            for each_mib in _mib_per_virtual_gpu(devices):
                options.experimental.virtual_devices.add().memory_limit_mb.extend([each_mib] * devices.virtual_gpus)
        elif devices.gpu_memory_fraction is not None:
            options.per_process_gpu_memory_fraction = devices.gpu_memory_fraction
    return config


def _mib_per_virtual_gpu(devices: Devices) -> list[float]:
    """Returns the memory of each of the equal parts of each physical GPU."""
    limit_mib, parts = devices.gpu_memory_limit_mib, devices.virtual_gpus
    memory_mib = [gpu.memory_bytes / 2**20 for gpu in gpu_inventory().gpus[: devices.physical_gpus]]
    if limit_mib is None:
        return [(devices.gpu_memory_fraction or SPLIT_FRACTION) / parts * mib for mib in memory_mib]
    if limit_mib > min(memory_mib, default=limit_mib):
        raise UsageError(
            f"--gpu_memory_limit_mb={limit_mib}: a GPU here has {min(memory_mib):.0f} MiB. Give less, or leave it out."
        )
    return [limit_mib / parts] * devices.physical_gpus


def configure_eager_runtime(devices: Devices) -> None:
    """Gives the eager runtime the devices of `plan`, before anything has run in it."""
    set_threads(devices)
    if not devices.on_gpu:
        if devices.num_devices > 1:  # one is what it has anyway
            (host,) = tf.config.list_physical_devices("CPU")
            logical = [tf.config.LogicalDeviceConfiguration()] * devices.num_devices
            tf.config.set_logical_device_configuration(host, logical)
        return
    physical = tf.config.list_physical_devices("GPU")[: devices.physical_gpus]
    tf.config.set_visible_devices(physical, "GPU")
    if devices.virtual_gpus == 1 and devices.gpu_memory_fraction is None and devices.gpu_memory_limit_mib is None:
        for gpu in physical:
            tf.config.experimental.set_memory_growth(gpu, devices.gpu_allow_growth)
        return
    for gpu, each_mib in zip(physical, _mib_per_virtual_gpu(devices), strict=True):
        limited = tf.config.LogicalDeviceConfiguration(memory_limit=each_mib)
        tf.config.set_logical_device_configuration(gpu, [limited] * devices.virtual_gpus)
