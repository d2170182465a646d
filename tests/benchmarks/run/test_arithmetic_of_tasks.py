"""How a process computes that only serves the sessions of others: TF32 and determinism are not part of their graphs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

from benchmarks.config import config, flag, run_flags
from benchmarks.devices import device_plan
from benchmarks.devices.start_tensorflow import start
from benchmarks.process import tensorflow_setup
from benchmarks.process.deadlines import Deadlines
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.run import cluster_run


class JoinedError(Exception):
    """The task is about to serve."""


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Yields a list that has an entry when determinism has been set. TF32 is on, as TensorFlow has it."""
    calls: list[bool] = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: calls.append(True))
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield calls
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize(
    ("words", "tf32", "is_deterministic"),
    [([], False, []), (["--deterministic"], False, [True]), (["--precision=tf32"], True, [])],
)
def test_a_worker_that_serves_computes_as_the_run_does(
    monkeypatch: pytest.MonkeyPatch,
    deterministic: list[bool],
    words: list[str],
    tf32: bool,
    is_deterministic: list[bool],
) -> None:
    def joined(*_: object) -> None:
        raise JoinedError

    monkeypatch.setattr(cluster_run, "joined", joined)
    monkeypatch.setattr(device_plan, "require_gpus", lambda runtime: None)
    task = [
        "--worker_hosts=h0:1,h1:2",
        "--job_name=worker",
        "--task_index=1",
        "--variable_update=distributed_all_reduce",
    ]
    parsed = flag.parse([*task, "--device=gpu", *words], run_flags.RUN_FLAGS)
    chosen = config.resolve(parsed.values, lambda: 1)
    assert chosen.processes.cluster is not None
    with pytest.raises(JoinedError):
        cluster_run.take_part(chosen, chosen.processes.cluster, Deadlines().silent(), None)
    assert tf.config.experimental.tensor_float_32_execution_enabled() == tf32
    assert deterministic == is_deterministic


def test_a_bare_server_computes_fp32_as_fp32(monkeypatch: pytest.MonkeyPatch, deterministic: list[bool]) -> None:
    for name in ("prepare", "import_tensorflow"):
        monkeypatch.setattr(tensorflow_setup, name, lambda *_: None)
    start(Runtime())
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    assert deterministic == []
