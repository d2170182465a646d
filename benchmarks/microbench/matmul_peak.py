"""Measures the peak of a device: operations per second of a large matrix product, bytes per second of its memory.

Both are measured in a graph and a session, as in a run, so that all cores take part.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal

import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.devices.device_plan import HOST
from benchmarks.devices.roofline import Peak
from benchmarks.errors import UsageError
from benchmarks.measure.timing import Clock
from benchmarks.process.tensorflow_setup import Devices
from models.seeds import seed_at_run_time

_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}

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

# From a size and a count to a callable that does work of this size so many times in succession.
Prepare = Callable[[int, int], AbstractContextManager[Callable[[], object]]]


def measure(device: Literal["cpu", "gpu"], precision: str, clock: Clock = time.perf_counter) -> Peak:
    """Measures one device for some seconds. Logical CPU devices share the cores, so `cpu` measures the host.

    The precision is that of the factors of the product: `fp32`, `tf32`, `bf16` or `fp16`.

    Raises:
        UsageError: the device does not support the precision.
    """
    if precision not in _TYPES or (precision == "tf32" and device == "cpu"):
        kinds = [kind for kind in _TYPES if kind != "tf32" or device == "gpu"]
        raise UsageError(f"There is no peak of a {device.upper()} in '{precision}': pass one of {', '.join(kinds)}.")
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    try:
        return Peak(
            flops_per_sec=best_rate(_products(device, _TYPES[precision]), lambda side: 2 * side**3, _SIDES, clock),
            bytes_per_sec=best_rate(_sums(device), lambda count: 3 * 4 * count, (_SUMMANDS,), clock),
        )
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def best_rate(prepare: Prepare, amount: Callable[[int], float], sizes: Sequence[int], clock: Clock) -> float:
    """Returns the highest amount of work per second of any run.

    Of the ascending sizes, the first that takes long enough is repeated for about a second. Smaller sizes count too:
    their start-up time makes them slower, never faster.
    """
    best = 0.0
    for size in sizes:
        (seconds,) = _run_seconds(prepare, size, 1, clock, runs=1, in_total=0.0)
        best = max(best, amount(size) / seconds)
        if seconds >= _ENOUGH_SECONDS:
            break
    times = min(max(1, round(_RUN_SECONDS / seconds)), _MOST_IN_A_RUN)
    spent = _run_seconds(prepare, size, times, clock, runs=_FEWEST_RUNS, in_total=_MEASURED_SECONDS)
    return max(best, times * amount(size) / min(spent))


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


def _products(device: Literal["cpu", "gpu"], dtype: tf.DType) -> Prepare:
    """Prepares matrix products, each of a fixed matrix and the product before, by side.

    TensorFlow can leave out no product: variables are no constants, all products differ, and the last one is stored.
    Random elements with a variance of 1/side keep the size of the products.
    """

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

    @contextlib.contextmanager
    def prepare(size: int, times: int) -> Iterator[Callable[[], object]]:
        with tf.Graph().as_default(), tf.device(HOST if device == "cpu" else "/gpu:0"):
            variables, operation = build(size, times)
            config = device_plan.session_config(Devices(device=device, gpu_allow_growth=True))
            with tf.compat.v1.Session(config=config) as session:
                session.run([variable.initializer for variable in variables])
                yield session.make_callable(operation)

    return prepare
