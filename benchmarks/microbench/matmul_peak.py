"""What a device reaches at most: operations per second of a large matrix product, and bytes per second of its memory.

Measured in a graph and a session like any run, so all cores take part as they do there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from benchmarks.errors import UsageError
from benchmarks.measure.timing import Clock
from benchmarks.microbench.roofline import Peak
from benchmarks.topology import devices
from benchmarks.topology.devices import HOST
from models.seeds import seed_at_run_time

_TYPES = {"fp32": tf.float32, "tf32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}

# Sides of square matrices. The largest takes an H200 in bf16 11 ms, and 0.5 GB each.
_SIDES = tuple(2**power for power in range(9, 15))
# Far more than caches hold: 256 MiB of float32.
_SUMMANDS = 2**26

# A product that takes so long is large enough; starting it takes some 0.1 ms.
_ENOUGH_SECONDS = 0.02
# A session's run holds as many products as take so long.
_RUN_SECONDS = 0.1
_MOST_IN_A_RUN = 1000
_MEASURED_SECONDS = 1.0
_FEWEST_RUNS = 3

# Makes what does a piece of work of some size so often, one after the other, whenever it is called.
Prepare = Callable[[int, int], AbstractContextManager[Callable[[], object]]]


def measure(device: str, precision: str, clock: Clock = time.perf_counter) -> Peak:
    """Measures one device for some seconds; of CPU devices, which share the cores, the host.

    Args:
        device: `cpu`, or `gpu` for the first.
        precision: `fp32`, `tf32`, `bf16` or `fp16`: of the factors of the product.
        clock: seconds, monotonic.

    Raises:
        UsageError: the device has no such precision.
    """
    if precision not in _TYPES or (precision == "tf32" and device == "cpu"):
        kinds = [kind for kind in _TYPES if kind != "tf32" or device == "gpu"]
        raise UsageError(f"There is no precision '{precision}' on a {device.upper()}: say {', '.join(kinds)}.")
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
    """Returns the best amount per second that was seen.

    The first size that takes long enough is repeated for about a second. Smaller ones are seen on the way, and count,
    too: what they take to start makes them look slower, never faster.

    Args:
        prepare: makes the work.
        amount: what is done once, by size.
        sizes: ascending.
        clock: seconds, monotonic.
    """
    best = 0.0
    for size in sizes:
        (seconds,) = _run_seconds(prepare, size, 1, clock, lambda spent: len(spent) == 1)
        best = max(best, amount(size) / seconds)
        if seconds >= _ENOUGH_SECONDS:
            break
    times = min(max(1, round(_RUN_SECONDS / seconds)), _MOST_IN_A_RUN)
    spent = _run_seconds(prepare, size, times, clock, _is_enough)
    return max(best, times * amount(size) / min(spent))


def _is_enough(spent: Sequence[float]) -> bool:
    return len(spent) >= _FEWEST_RUNS and sum(spent) >= _MEASURED_SECONDS


def _run_seconds(
    prepare: Prepare, size: int, times: int, clock: Clock, done: Callable[[Sequence[float]], bool]
) -> list[float]:
    """Returns how long runs took, but for the first, which pays for graph optimisation and memory."""
    spent: list[float] = []
    with prepare(size, times) as run:
        run()
        while not done(spent):
            begin = clock()
            run()
            spent.append(clock() - begin)
    return spent


def _products(device: str, dtype: tf.DType) -> Prepare:
    """Returns what prepares matrix products, each of a fixed matrix and the product before, by side.

    Variables cannot be folded as constants, no two products are alike, and the last one is kept, so none can be left
    out. Random elements with a variance of 1/side keep the products' size.
    """

    @contextlib.contextmanager
    def prepare(side: int, times: int) -> Iterator[Callable[[], object]]:
        with tf.Graph().as_default(), tf.device(_name(device)):
            draws = [tf.random.stateless_normal((side, side), seed_at_run_time((number, 7))) for number in range(2)]
            factor = tf.Variable(tf.cast(draws[0] / side**0.5, dtype), trainable=False)
            begin = tf.Variable(tf.cast(draws[1], dtype), trainable=False)
            end = tf.Variable(tf.zeros((side, side), dtype), trainable=False)
            left, product = factor.read_value(), begin.read_value()
            for _ in range(times):
                product = tf.matmul(left, product)
            with _session(device, [factor, begin, end]) as session:
                yield session.make_callable(tf.raw_ops.AssignVariableOp(resource=end.handle, value=product))

    return prepare


def _sums(device: str) -> Prepare:
    """Returns what prepares sums of two arrays of float32 into the first, which move 3 x 4 bytes an element.

    In place: new memory is mapped page by page, which takes a CPU longer than to write it.
    """

    @contextlib.contextmanager
    def prepare(count: int, times: int) -> Iterator[Callable[[], object]]:
        with tf.Graph().as_default(), tf.device(_name(device)):
            total, summand = (tf.Variable(tf.fill((count,), value), trainable=False) for value in (0.0, 0.5))
            added: list[tf.Operation] = []
            for _ in range(times):
                with tf.control_dependencies(added):
                    value = summand.read_value()
                    added = [tf.raw_ops.AssignAddVariableOp(resource=total.handle, value=value)]
            with _session(device, [total, summand]) as session:
                yield session.make_callable(added[0])

    return prepare


def _name(device: str) -> str:
    return HOST if device == "cpu" else "/gpu:0"


@contextlib.contextmanager
def _session(device: str, variables: Sequence[tf.Variable]) -> Iterator[tf.compat.v1.Session]:
    """Yields a session in which the variables have their values; of a GPU's memory it takes what it needs."""
    config = devices.session_config(device, 1, gpu_allow_growth=True)
    with tf.compat.v1.Session(config=config) as session:
        session.run([variable.initializer for variable in variables])
        yield session
