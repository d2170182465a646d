"""The peak of a device and a run's share of it: operations per second of a large matrix product, and bytes per second.

Both are measured in a graph and a session, as in a run, so that all cores take part, and are kept in a cache.
TensorFlow is imported late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from benchmarks.config.workload import Workload
from benchmarks.devices.roofline import Peak, Roofline
from benchmarks.errors import BenchError, UsageError
from benchmarks.machine import contention, hardware, provenance
from benchmarks.machine.cache import CacheFile
from benchmarks.measure.timing import Clock
from benchmarks.process import apart, tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from models import specs
from models.model_spec import ModelSpec
from results.environment import plausible
from results.measurement import Derived
from results.quality import OTHERS_SHARE
from results.record import key_of
from results.text import amount, counted
from variable_mgr.place import HOST

if TYPE_CHECKING:
    import tensorflow as tf

FILE = CacheFile("peaks.json", "measured peaks")
_LIMIT_SECONDS = 300.0  # of a measurement in a process of its own
_TYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# Sides of square matrices. A product of the largest takes an H200 11 ms in bf16, and each matrix takes 0.5 GB.
_SIDES = tuple(2**power for power in range(9, 15))
# 256 MiB of float32, far more than caches hold.
_SUMMANDS = 2**26

# A product of this duration is large enough: starting it takes some 0.1 ms.
_ENOUGH_SECONDS = 0.02
# Duration of the products in one run of a session.
_RUN_SECONDS = 0.1
_MOST_IN_A_RUN = 1000
_MEASURED_SECONDS = 1.0
_FEWEST_RUNS = 3
# The median of the repeats over the best one. On a busy machine it is 0.6.
_AGREEING = 0.9
# A run that does this many times the stored peak proves it wrong; with less, it may do fewer operations than counted.
_BY_FAR = 1.1

# From a size and a count to a callable that does work of this size so many times in succession.
Prepare = Callable[[int, int], AbstractContextManager[Callable[[], object]]]


def peak_key(facts: Mapping[str, Any], tensorflow_version: str | None, precision: str) -> str:
    """Returns the key of a peak in the cache: containers that share it may have other limits of CPU time.

    `facts` are at least those of `hardware.describe_hardware`. Of its GPUs only the first counts, whose peak it is.
    """
    names = ("cpu_model", "cpu_cores_usable", "container_cores", "memory_gib")
    one_device = {name: facts[name] for name in names if name in facts}
    return f"{key_of({**one_device, 'gpus': facts['gpus'][:1]})} {tensorflow_version} {precision}"


def peak_key_here(inventory: hardware.Inventory, precision: str) -> str:
    """Returns the key of the peak of this host, with these GPUs."""
    version = provenance.describe_software()["tensorflow_version"]
    return peak_key(hardware.describe_hardware(inventory), version, precision)


def stored_peak(key: str) -> Peak | None:
    """Returns the peak in the cache; None without one. A damaged entry is ignored with a warning."""
    return FILE.saved(key, Peak)


def peak(device: Literal["cpu", "gpu"], precision: str, disturbing: Sequence[str] = ()) -> tuple[Peak, str]:
    """Measures the peak of one GPU, or of this host's cores together; returns the best so far, and why not to trust it.

    A busy machine makes a peak too low; nothing makes it too high. So it is stored only if it is trusted: nothing
    disturbed the machine before (`disturbing`, in words), others used hardly any CPU meanwhile, and repeats agree.

    The measurement takes some seconds, and afterwards this process holds memory of the GPU.
    `tensorflow_setup.prepare` must have been called before.

    Raises:
        UsageError: the device is missing, or does not support the precision.
    """
    key = peak_key_here(hardware.gpu_inventory() if device == "gpu" else hardware.Inventory(), precision)
    tensorflow_setup.import_tensorflow()
    from benchmarks.devices import device_plan

    device_plan.require_gpus(Devices(device=device))
    begun = contention.read()
    measured, is_steady = measure_peak(device, precision)
    others = contention.cores_used_by_others(begun, contention.read())

    known = stored_peak(key)
    peaks = [dataclasses.asdict(each) for each in (measured, known) if each]
    best = {name: max(each[name] for each in peaks) for name in peaks[0]}
    distrust = _distrust(disturbing, others, is_steady)
    if not distrust:
        FILE.put(key, best)
    return Peak(**best), distrust and (
        f"This peak may be too low ({distrust}), so it is not stored, and runs "
        f"{'are compared with the one that is' if known else 'print no share of it'}. Measure it on a quiet machine."
    )


def _distrust(disturbing: Sequence[str], others: float | None, is_steady: bool) -> str:
    cores = hardware.usable_cores()
    reasons = [f"the machine is not quiet: {', '.join(disturbing)}"] if disturbing else []
    if others is not None and others > OTHERS_SHARE * cores:
        reasons.append(f"other processes used {others:.1f} of {counted(cores, 'core')} meanwhile")
    if not is_steady:
        reasons.append("its repeats differ")
    return "; ".join(reasons)


def beside_peak(
    derived: Derived,
    flops_per_image: float | None,
    environment: Mapping[str, Any],
    *,
    device: str,
    precision: str,
    count: int,
) -> tuple[Derived, list[str]]:
    """Adds a run's share of the measured peak, if the cache holds one; measures nothing.

    A run that exceeds the peak has no share, and returns a warning. A peak that it exceeds by far is removed: it is
    no peak for other runs either.

    `flops_per_image` is None if the operations were not counted. `environment` is that of the run's record, with the
    GPUs that it used. The run could use the peak `count` times; see `roofline.devices_with_a_peak`.
    """
    # A client without GPUs: its cached peak is its CPU's. Different GPUs: there is no common peak.
    without_peak = device == "gpu" and len(set(environment["gpus"])) != 1
    if derived.images_per_sec is None or not flops_per_image or without_peak:
        return derived, []
    key = peak_key(environment, environment["tensorflow_version"], precision)
    stored = stored_peak(key)
    if stored is None:
        return derived, []
    reachable, reached = count * stored.flops_per_sec, flops_per_image * derived.images_per_sec
    if reached <= reachable:
        return replace(derived, measured_peak_tflops=reachable / 1e12, mfu_of_measured_peak=reached / reachable), []
    removed = ""
    if reached > _BY_FAR * reachable:
        FILE.put(key, None)
        removed = " It is removed."
    return derived, [
        f"The MFU is unknown: the run reached {amount(reached, 'FLOP/s')}, more than the peak that was measured here "
        f"({amount(reachable, 'FLOP/s')}, {precision}), so that was too low.{removed} 'run_bench.py doctor' measures "
        "it again on a quiet machine."
    ]


def measure_roofline(
    spec: ModelSpec,
    workload: Workload,
    device: Literal["cpu", "gpu"],
    precision: str,
    images_per_sec: float,
    disturbing: Sequence[str] = (),
) -> tuple[Roofline, str]:
    """Measures the peak of one device and counts the work of a model's step; runs no step.

    The device is all cores of this host, or one GPU; `images_per_sec` is the rate that a run reached on it. Returns
    the roofline, and why not to trust its peak; for `disturbing` see `peak`.

    Raises:
        UsageError: as `peak` does; or operations of the model cannot be counted.
    """
    of_device, distrust = peak(device, precision, disturbing)
    from benchmarks.training import flop_count
    from models import building

    batch, layout, classes = workload.batch_per_device, workload.data_format, workload.num_classes
    model = building.build(spec, data_format=layout, num_classes=classes, seed=0, precision=precision)
    work = flop_count.of_built(model, batch=batch, forward_only=workload.forward_only)
    if work.uncounted:
        raise UsageError(f"{spec.name} has operations that cannot be counted: {', '.join(work.uncounted)}.")
    roofline = Roofline(
        flops_per_image=work.flops / batch,
        bytes_per_image=work.moved_bytes / batch,
        peak=of_device,
        images_per_sec=images_per_sec,
    )
    return roofline, distrust


def roofline_apart(
    workload: Workload,
    device: Literal["cpu", "gpu"],
    precision: str,
    images_per_sec: float,
    disturbing: Sequence[str] = (),
) -> tuple[Roofline | None, str]:
    """Measures the roofline of one device in a process of its own, so that this process holds no GPU memory.

    `images_per_sec` is the rate that a run reached on it. Returns the roofline and why not to trust it, or None and the
    reason; for `disturbing` see `peak`.
    """
    runtime = Runtime(devices=Devices(device=device))  # what is visible has been inherited
    spec = specs.find_model(workload.model)
    try:
        return apart.call(
            runtime, _LIMIT_SECONDS, measure_roofline, spec, workload, device, precision, images_per_sec, disturbing
        )
    except BenchError as error:
        return None, str(error)


def to_dict(roofline: Roofline) -> dict[str, Any]:
    """Returns it as JSON can hold it."""
    derived = {name: getattr(roofline, name) for name in ("limit", "most_images_per_sec", "share_of_bound")}
    mfu = plausible(roofline.mfu)
    return {**dataclasses.asdict(roofline), **derived, "mfu": mfu, "sentences": roofline.sentences()}


def measure_peak(device: Literal["cpu", "gpu"], precision: str) -> tuple[Peak, bool]:
    """Measures one device for some seconds; returns its peak, and whether repeats agree with it.

    Logical CPU devices share the cores, so `cpu` measures the host.

    The precision is that of the factors of the product: `fp32`, `tf32`, `bf16` or `fp16`.

    Raises:
        UsageError: the device does not support the precision.
    """
    if (device, precision) == ("cpu", "tf32"):
        raise UsageError("There is no peak of a CPU in tf32: pass --precision=fp32 or bf16.")
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    flops, flops_agree = best_rate(_products(device, _TYPES[precision]), lambda side: 2 * side**3, _SIDES)
    size, sizes_agree = best_rate(_sums(device), lambda count: 3 * 4 * count, (_SUMMANDS,))
    return Peak(flops_per_sec=flops, bytes_per_sec=size), flops_agree and sizes_agree


def best_rate(
    prepare: Prepare, work: Callable[[int], float], sizes: Sequence[int], clock: Clock = time.perf_counter
) -> tuple[float, bool]:
    """Returns the highest amount of work per second of any run, and whether at least half of the repeats come near it.

    Of the ascending sizes, the first that takes long enough is repeated for about a second. Smaller sizes count too:
    their start-up time makes them slower, never faster.
    """
    best = 0.0
    for size in sizes:
        (seconds,) = _run_seconds(prepare, size, 1, clock, runs=1, in_total=0.0)
        best = max(best, work(size) / seconds)
        if seconds >= _ENOUGH_SECONDS:
            break
    times = min(max(1, round(_RUN_SECONDS / seconds)), _MOST_IN_A_RUN)
    spent = _run_seconds(prepare, size, times, clock, runs=_FEWEST_RUNS, in_total=_MEASURED_SECONDS)
    best = max(best, times * work(size) / min(spent))
    return best, times * work(size) / statistics.median(spent) >= _AGREEING * best


def _run_seconds(prepare: Prepare, size: int, times: int, clock: Clock, *, runs: int, in_total: float) -> list[float]:
    """Returns the seconds of each run, without the first, which pays for graph optimisation and memory."""
    spent: list[float] = []
    with prepare(size, times) as run:
        run()
        while len(spent) < runs or sum(spent) < in_total:
            begin = clock()
            run()
            spent.append(clock() - begin)
    return spent


def _products(device: Literal["cpu", "gpu"], dtype: str) -> Prepare:
    """Prepares matrix products, each of a fixed matrix and the product before, by side.

    TensorFlow can leave out no product: variables are no constants, all products differ, and the last one is stored.
    Random elements with a variance of 1/side keep the size of the products.
    """
    import tensorflow as tf

    from models.seeds import seed_at_run_time

    def build(side: int, times: int) -> tuple[list[tf.Variable], tf.Operation]:
        draws = [tf.random.stateless_normal((side, side), seed_at_run_time((number, 7))) for number in range(2)]
        factor = tf.Variable(tf.cast(draws[0] / side**0.5, dtype), trainable=False)
        begin = tf.Variable(tf.cast(draws[1], dtype), trainable=False)
        end = tf.Variable(tf.zeros((side, side), dtype), trainable=False)
        left, product = factor.read_value(), begin.read_value()
        for _ in range(times):
            product = tf.matmul(left, product)
        return [factor, begin, end], tf.raw_ops.AssignVariableOp(resource=end.handle, value=product)

    return _in_session(device, build)


def _sums(device: Literal["cpu", "gpu"]) -> Prepare:
    """Returns what prepares sums of two arrays of float32 into the first, which move 3 x 4 bytes per element.

    The sums are in place: new memory is mapped page by page, which takes a CPU longer than to write it.
    """
    import tensorflow as tf

    def build(count: int, times: int) -> tuple[list[tf.Variable], tf.Operation]:
        total, summand = (tf.Variable(tf.fill((count,), value), trainable=False) for value in (0.0, 0.5))
        added: list[tf.Operation] = []
        for _ in range(times):
            with tf.control_dependencies(added):
                value = summand.read_value()
                added = [tf.raw_ops.AssignAddVariableOp(resource=total.handle, value=value)]
        return [total, summand], added[0]

    return _in_session(device, build)


def _in_session(
    device: Literal["cpu", "gpu"], build: Callable[[int, int], tuple[list[tf.Variable], tf.Operation]]
) -> Prepare:
    """Returns what prepares an operation in its own graph and session, with the variables initialised."""
    import tensorflow as tf

    from benchmarks.devices import device_plan

    @contextlib.contextmanager
    def prepare(size: int, times: int) -> Iterator[Callable[[], object]]:
        with tf.Graph().as_default(), tf.device(HOST if device == "cpu" else "/gpu:0"):
            variables, operation = build(size, times)
            config = device_plan.session_config(Devices(device=device, gpu_allow_growth=True))
            with tf.compat.v1.Session(config=config) as session:
                session.run([variable.initializer for variable in variables])
                yield session.make_callable(operation)

    return prepare
