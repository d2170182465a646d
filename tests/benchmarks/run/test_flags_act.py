"""What is part of `config_key` acts: it changes the graph, the session or the environment of TensorFlow."""

from __future__ import annotations

import pytest
import tensorflow as tf

from benchmarks.config.config import Config
from benchmarks.config.run_flags import FLAGS
from benchmarks.devices import device_plan
from benchmarks.errors import UsageError
from benchmarks.graph import run_graph
from benchmarks.process.tensorflow_setup import Devices
from tests.benchmarks.config.test_rules import other_values, resolve
from tests.support.rotation import rotating

# Slow starts, not steps, depend on these; or the input of `--data_dir` does, which needs files.
NOT_IN_THE_GRAPH = {"num_warmup_batches", "data_dir"}
# Tried by tests of their own: XLA compiles for seconds, oneDNN and precision change kernels and casts.
TRIED_ELSEWHERE = {"model", "num_gpus", "xla", "xla_compile", "device", "variable_update", "local_cluster"}
RUNS = (
    ("--variable_update=parameter_server",),
    ("--variable_update=replicated",),
    ("--variable_update=independent",),
    ("--variable_update=replicated", "--optimizer=momentum"),
    ("--variable_update=parameter_server", "--forward_only"),
)
COMMON = ("--model=mlp", "--device=cpu", "--num_gpus=2", "--batch_size=2")


def _program(chosen: Config) -> tuple[bytes, bytes, str]:
    """Returns all that TensorFlow is given: the graph, the session's configuration, and the environment."""
    with tf.Graph().as_default() as built_in:
        run_graph.build(
            chosen,
            device_plan.plan(Devices(num_devices=chosen.devices.num_devices), shared_on=chosen.variables.shared_on),
        )
        nodes = built_in.as_graph_def().SerializeToString(deterministic=True)
    return (
        nodes,
        run_graph.session_config(chosen.devices, chosen.runtime).SerializeToString(deterministic=True),
        repr(chosen.runtime),
    )


@pytest.mark.slow
@rotating("run", RUNS, first=1, ids=" ".join)
def test_a_flag_that_changes_the_key_changes_what_runs(run: tuple[str, ...]) -> None:
    base, idle = resolve(*COMMON, *run), []
    expected = _program(base)
    assert _program(base) == expected, "the same twice"
    given = {word.removeprefix("--").split("=")[0] for word in (*COMMON, *run)}
    for one in (one for one in FLAGS.values() if one.name not in given | NOT_IN_THE_GRAPH | TRIED_ELSEWHERE):
        for value in other_values(one):
            try:
                chosen = resolve(*COMMON, *run, f"--{one.name}={value}")
                if chosen.processes.cluster or chosen.key_fields() == base.key_fields():
                    continue
                if _program(chosen) == expected:
                    idle.append(f"--{one.name}={value}")
            except UsageError:
                continue
    assert not idle, "equal runs have different keys"
