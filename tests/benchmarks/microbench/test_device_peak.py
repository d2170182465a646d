from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.devices.roofline import Peak
from benchmarks.errors import UsageError
from benchmarks.microbench import device_peak


class FakeDevice:
    """Does so much per second, after a while that each run takes to start; the clock shows what it has taken."""

    def __init__(self, amount_per_sec: float, start_seconds: float = 0.0002, first_seconds: float = 3.0) -> None:
        self.amount_per_sec, self.start_seconds, self.first_seconds = amount_per_sec, start_seconds, first_seconds
        self.now = 0.0
        self.prepared: list[tuple[int, int]] = []
        self.slow_downs: Iterator[float] = iter(())

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def prepare(self, size: int, times: int) -> Iterator[Any]:
        self.prepared.append((size, times))
        first = iter([self.first_seconds])

        def run() -> None:
            work = times * self.amount(size) / self.amount_per_sec
            self.now += next(first, 0.0) + self.start_seconds + work * next(self.slow_downs, 1.0)

        yield run

    @staticmethod
    def amount(size: int) -> float:
        return 2.0 * size**3

    def measured(self) -> tuple[float, bool]:
        return device_peak.best_rate(self.prepare, self.amount, (512, 1024, 2048, 4096, 8192, 16384), self.clock)


@pytest.mark.parametrize(
    ("flops_per_sec", "side"), [(1e9, 512), (50e9, 1024), (2e12, 4096), (67e12, 16384), (800e12, 16384), (1e16, 16384)]
)
def test_slow_and_fast_devices_get_a_sound_figure_in_a_few_seconds(flops_per_sec: float, side: int) -> None:
    device = FakeDevice(flops_per_sec, first_seconds=0.0)
    assert device.measured() == (pytest.approx(flops_per_sec, rel=0.01), True)
    assert device.prepared[-1][0] == side
    assert 1.0 <= device.now < 4.0


def test_the_first_run_of_each_size_does_not_count() -> None:
    assert FakeDevice(50e9, first_seconds=100.0).measured()[0] == pytest.approx(50e9, rel=0.01)


def test_starting_a_run_costs_many_short_pieces_of_work_nothing() -> None:
    device = FakeDevice(5e12)
    best, _ = device_peak.best_rate(device.prepare, device.amount, (800,), device.clock)
    assert best == pytest.approx(5e12, rel=0.01), "0.2 ms each, and as much to start a run"
    (_, once), (_, often) = device.prepared
    assert once == 1 and 100 < often < 1000


@pytest.mark.parametrize(
    ("slow_downs", "agree"),
    [
        ([1, 1, 1, 1, 1, 2.0, 2.0, 2.0, 1.5, 2.0, 2.0], False),
        ([1, 1, 1, 1, 1.05, 1, 2.0, 1.05, 1, 1.05, 1, 2.0], True),
    ],
)
def test_the_best_run_counts_and_repeats_agree_unless_most_are_slower(slow_downs: list[float], agree: bool) -> None:
    device = FakeDevice(50e9)
    device.slow_downs = iter(slow_downs)
    assert device.measured() == (pytest.approx(50e9, rel=0.01), agree)


def _executed(times: int, prepare: device_peak.Prepare, size: int) -> tuple[list[str], list[np.ndarray]]:
    """Runs it once, and returns the names of what TensorFlow really executed, and all variables' values."""
    with prepare(size, times) as run:
        session = tf.compat.v1.get_default_session()
        run()
        variables = session.run(tf.compat.v1.global_variables())
        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        session.run(session.graph.get_operations()[-1], options=options, run_metadata=metadata)
    nodes = [node.node_name for device in metadata.step_stats.dev_stats for node in device.node_stats]
    return nodes, variables


def test_every_product_is_really_computed() -> None:
    nodes, (factor, begin, end) = _executed(5, device_peak._products("cpu", "float32"), 64)
    assert len({name for name in nodes if "MatMul" in name}) == 5
    np.testing.assert_allclose(end, np.linalg.matrix_power(factor, 5) @ begin, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_neither_vanish_nor_overflow(dtype: str) -> None:
    with device_peak._products("cpu", dtype)(128, 20) as run:
        run()
        end = tf.compat.v1.get_default_session().run(tf.compat.v1.global_variables()[2])
    assert 0.05 < np.std(end.astype(np.float32)) < 20.0


def test_every_sum_is_really_computed_in_place() -> None:
    nodes, (total, summand) = _executed(4, device_peak._sums("cpu"), 1000)
    assert len({name for name in nodes if "AssignAdd" in name}) == 4
    assert (total == 4 * 0.5).all() and (summand == 0.5).all()


def test_tf32_is_used_only_if_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    is_on = tf.config.experimental.tensor_float_32_execution_enabled
    seen, works = [], []

    def best_rate(prepare: object, work: Callable[[int], float], *others: object) -> tuple[float, bool]:
        seen.append(is_on())
        works.append(work(10))
        return float(len(seen)), len(seen) == 1

    monkeypatch.setattr(device_peak, "best_rate", best_rate)
    assert device_peak.measure_peak("gpu", "tf32") == (Peak(flops_per_sec=1.0, bytes_per_sec=2.0), False)
    device_peak.measure_peak("gpu", "fp32")
    assert seen == [True, True, False, False]
    assert works[:2] == [2 * 10**3, 3 * 4 * 10], "multiplications and additions; two numbers read and one written"


def test_a_cpu_has_no_peak_in_tf32() -> None:
    with pytest.raises(UsageError, match="There is no peak of a CPU in tf32: pass --precision=fp32 or bf16"):
        device_peak.measure_peak("cpu", "tf32")
