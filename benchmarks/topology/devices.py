"""Which devices a run uses, under TensorFlow's names, and whether they are there. Nothing is placed softly."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from benchmarks.errors import UsageError
from benchmarks.system.hardware import gpu_inventory, usable_cores
from benchmarks.topology import placement
from benchmarks.topology.cluster import Cluster
from benchmarks.topology.placement import HOST
from variable_mgr.place import Place

# What is left of a GPU that is split: the CUDA context and libraries need some memory of their own.
_DEFAULT_SPLIT_FRACTION = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices that one process drives.

    Attributes:
        place: the towers' devices, and what is around them.
        shared: where shared variables live and copied gradients are averaged, in turn.
        description: the same in words.
    """

    place: Place
    shared: tuple[str, ...]
    description: str

    @property
    def towers(self) -> tuple[str, ...]:
        """Returns one name per tower."""
        return self.place.towers


def plan(
    kind: str,
    count: int,
    *,
    virtual_gpus: int,
    shared_on: str,
    cluster: Cluster | None = None,
    manager: str = "",
    group: int = 1,
) -> Devices:
    """Names the devices of `count` towers.

    Args:
        kind: `cpu` or `gpu`.
        count: how many.
        virtual_gpus: logical GPUs per physical GPU.
        shared_on: `cpu` for the host, `gpu` for the towers' own devices.
        cluster: the tasks; None for a single process.
        manager: the variable manager.
        group: see `variable_mgr.place.Place`.
    """
    place = placement.place(kind, count, virtual=virtual_gpus > 1, cluster=cluster, manager=manager, group=group)
    plural = "s" * (count > 1)
    if kind == "cpu":
        cores = usable_cores()
        description = f"{count} logical CPU device{plural} sharing {cores} core{'s' * (cores > 1)}"
    elif virtual_gpus > 1:
        description = f"{count} virtual GPU{plural}, {virtual_gpus} on each physical one"
    else:
        description = f"{count} GPU{plural}"
    if cluster:
        description = f"{cluster.num_workers} workers, each with {description}"
    shared = (place.host,) if shared_on == "cpu" else place.towers
    return Devices(place=place, shared=shared, description=description)


def require_gpus(count: int, *, virtual_gpus: int, eager: bool = False) -> None:
    """Checks that TensorFlow itself can use the GPUs that the driver showed; `eager` leaves them to the eager runtime.

    Raises:
        UsageError: it sees fewer than are needed.
    """
    needed = -(-count // virtual_gpus)
    seen = tf.config.list_physical_devices("GPU")
    if not eager:
        # Building an input pipeline starts the eager runtime, which would take all GPUs' memory before the session.
        tf.config.set_visible_devices([], "GPU")
    if len(seen) < needed:
        built = "was built without CUDA" if not tf.test.is_built_with_cuda() else "does not find its CUDA libraries"
        raise UsageError(
            f"{needed} GPU{'s' * (needed > 1)} wanted; TensorFlow {tf.__version__} sees {len(seen)}, though the "
            f"driver shows enough: probably it {built}. Install the extra 'cuda' (pip install -e '.[cuda]'), or say "
            "--device=cpu."
        )


def set_threads(threads: tuple[int, int]) -> None:
    """Decides how many threads this process has, before anything has run in it; see `session_config`.

    TensorFlow makes its pools once, as whatever comes first wants them, be it a session, or the eager runtime, which an
    input pipeline starts.
    """
    within, at_once = threads
    if within:
        tf.config.threading.set_intra_op_parallelism_threads(within)
    if at_once:
        tf.config.threading.set_inter_op_parallelism_threads(at_once)


def require_nchw_on_cpu(threads: tuple[int, int] = (0, 0)) -> None:
    """Checks that this TensorFlow has NCHW kernels for the CPU: with oneDNN it has, without it has none.

    Args:
        threads: of the process, which this may be the first to make; see `session_config`.

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
        with tf.compat.v1.Session(config=session_config("cpu", 1, threads=threads)) as session:
            try:
                session.run(gradients)
            except tf.errors.OpError as error:
                raise UsageError(
                    "--data_format=NCHW: this TensorFlow has no NCHW convolutions for the CPU (they come with oneDNN, "
                    "which is off or missing here). Say --onednn=on if you have not, or --data_format=NHWC."
                ) from error


def session_config(
    kind: str,
    count: int,
    *,
    threads: tuple[int, int] = (0, 0),
    virtual_gpus: int = 1,
    gpu_memory: tuple[float | None, bool] = (None, False),
    log_device_placement: bool = False,
) -> tf.compat.v1.ConfigProto:
    """Returns the session's configuration: strict placement, exactly the devices of `plan`.

    Args:
        kind: `cpu` or `gpu`.
        count: number of towers.
        threads: within one operation, and operations at a time; 0 leaves the choice to TensorFlow.
        virtual_gpus: logical GPUs per physical GPU; they share its memory evenly.
        gpu_memory: share of a GPU's memory that may be taken (None: TensorFlow's default), and whether it is taken
            only as needed.
        log_device_placement: print where each operation runs.
    """
    config = tf.compat.v1.ConfigProto(
        allow_soft_placement=False,
        log_device_placement=log_device_placement,
        intra_op_parallelism_threads=threads[0],
        inter_op_parallelism_threads=threads[1],
        device_count={"CPU": count} if kind == "cpu" else {"CPU": 1},
    )
    if kind == "gpu":
        fraction, growth = gpu_memory
        config.gpu_options.allow_growth = growth
        physical = -(-count // virtual_gpus)  # the others' memory is left alone
        config.gpu_options.visible_device_list = ",".join(map(str, range(physical)))
        if virtual_gpus > 1:  # TensorFlow accepts either limits per virtual device or a fraction per GPU
            _split_gpus(config, physical, virtual_gpus, fraction or _DEFAULT_SPLIT_FRACTION)
        elif fraction is not None:
            config.gpu_options.per_process_gpu_memory_fraction = fraction
    return config


def _split_gpus(config: tf.compat.v1.ConfigProto, physical: int, virtual_gpus: int, fraction: float) -> None:
    for each_mib in _mib_per_virtual_gpu(physical, virtual_gpus, fraction):
        config.gpu_options.experimental.virtual_devices.add().memory_limit_mb.extend([each_mib] * virtual_gpus)


def _mib_per_virtual_gpu(physical: int, virtual_gpus: int, fraction: float) -> list[float]:
    return [fraction * gpu.memory_bytes / 2**20 / virtual_gpus for gpu in gpu_inventory().gpus[:physical]]


def configure_eager_runtime(
    kind: str,
    count: int,
    *,
    threads: tuple[int, int] = (0, 0),
    virtual_gpus: int = 1,
    gpu_memory: tuple[float | None, bool] = (None, False),
) -> None:
    """Gives the eager runtime the devices of `plan`, before anything has run in it; arguments as `session_config`."""
    set_threads(threads)
    if kind == "cpu":
        if count > 1:  # one is what it has anyway
            (host,) = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(host, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    fraction, growth = gpu_memory
    physical = tf.config.list_physical_devices("GPU")[: -(-count // virtual_gpus)]
    tf.config.set_visible_devices(physical, "GPU")
    if virtual_gpus == 1 and fraction is None:
        for gpu in physical:
            tf.config.experimental.set_memory_growth(gpu, growth)
        return
    limits = _mib_per_virtual_gpu(len(physical), virtual_gpus, fraction or _DEFAULT_SPLIT_FRACTION)
    for gpu, each_mib in zip(physical, limits, strict=True):
        limited = tf.config.LogicalDeviceConfiguration(memory_limit=each_mib)
        tf.config.set_logical_device_configuration(gpu, [limited] * virtual_gpus)
