"""How traced steps are spread over time; what they find is in tests/verbs/test_placement.py."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.cluster.member import Alone
from benchmarks.errors import BenchError, ClusterError
from benchmarks.graph.run_session import RunSession
from benchmarks.measure.display import Display
from benchmarks.measure.run_log import RunLog
from benchmarks.tracing import traced_steps
from tests.support.settings import resolve


class TwoWorkers(Alone):
    """The other worker sends the same each time."""

    def __init__(self, other: list[int]) -> None:
        self._other = other

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        return {"worker 0": message, "worker 1": self._other}


@pytest.mark.parametrize(
    ("traced", "measured", "other", "agreed"),
    [
        (0.02, [0.01, 0.01], [20, 8], (20, 8)),  # every 0.1 s: one of 0.02 s and eight of 0.01 s
        (0.02, [0.005, 0.015], [20, 99], (20, 8)),
        (0.02, [0.01, 0.01], [7, 3], (7, 3)),
        (0.3, [0.25], [20, 20], (6, 0)),
        (3.0, [2.5], [20, 20], (0, 0)),
    ],
)
def test_traced_steps_are_spread_over_the_budget_and_equally_many_in_all_workers(
    traced: float, measured: list[float], other: list[int], agreed: tuple[int, int]
) -> None:
    assert traced_steps._agreed_steps(2.0, traced, measured, TwoWorkers(other)) == agreed


class OnOneGpu:
    """A session whose allocator has a peak."""

    def __init__(self) -> None:
        self.levels: list[int] = []

    def run(self, fetches: Any, options: tf.compat.v1.RunOptions, run_metadata: tf.compat.v1.RunMetadata) -> None:
        self.levels.append(options.trace_level)
        node = run_metadata.step_stats.dev_stats.add(device="/device:GPU:0").node_stats.add()
        node.memory.add(allocator_name="GPU_0_bfc", allocator_bytes_in_use=9 - 2 * len(self.levels))


def test_a_run_on_one_gpu_knows_its_memory_without_tracing_kernels() -> None:
    chosen = resolve("--device=gpu", gpus=1)
    session, log = OnOneGpu(), RunLog(images_per_step=1, towers=1)
    loop: Any = types.SimpleNamespace(loss=None, observed={}, staleness=None, operation=None)
    built: Any = types.SimpleNamespace(step=types.SimpleNamespace(loops=[loop, loop]))
    nothing: Any = None
    run = RunSession(
        chosen,
        built,
        session,
        tf.compat.v1.RunOptions(),
        nothing,
        nothing,
        nothing,
        log,
        Display(),
        Alone(),  # type: ignore[arg-type]
    )
    traced_steps.trace(run)
    assert log.own().peak_gpu_memory_bytes == 7, "of the first step; the second one had 5 in use"
    assert session.levels == [tf.compat.v1.RunOptions.SOFTWARE_TRACE] * 2
    assert "measured_per_step" not in log.placement


class InCluster(Alone):
    """A task that knows whether another one is lost."""

    def __init__(self, cause: BenchError | None) -> None:
        self._cause = cause

    def explain(self, error: Exception) -> BenchError | None:
        return self._cause


def test_an_error_while_a_step_is_traced_ends_the_run_only_if_a_task_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def trace(cause: BenchError | None) -> None:
        with traced_steps._excused(InCluster(cause)):
            raise tf.errors.InternalError(None, None, "no CUPTI")

    trace(None)
    assert "no CUPTI" in capsys.readouterr().err
    with pytest.raises(ClusterError, match="worker 1 is gone"):
        trace(ClusterError("worker 1 is gone"))
