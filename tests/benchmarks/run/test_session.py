from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.graph import run_graph
from benchmarks.process.tensorflow_setup import Devices
from tests.support.settings import resolve


@pytest.mark.parametrize(
    ("word", "drawn"), [("--nocross_replica_sync", [1, 1, 1]), ("--cross_replica_sync", [1, 2, 3])]
)
def test_only_towers_that_step_together_draw_in_turn(fake_imagenet: Path, word: str, drawn: list[int]) -> None:
    """Those draw for the towers before them, too; asynchronous ones would throw these batches away."""
    chosen = resolve("--device=cpu", "--num_gpus=3", f"--data_dir={fake_imagenet}", word, "--model=trivial")
    plan = device_plan.plan(Devices(num_devices=3), shared_on="cpu")
    with tf.Graph().as_default():
        spec = run_graph.input_spec(chosen)
        towers = run_graph.build_input(chosen.workload, chosen.data, spec, plan.towers).towers
        assert [len(_drawn_by(tower.stage)) for tower in towers] == drawn


def test_filling_the_stages_of_weights_puts_the_next_batch_where_towers_have_taken_one(fake_imagenet: Path) -> None:
    chosen = resolve("--device=cpu", "--num_gpus=2", f"--data_dir={fake_imagenet}", "--staged_vars", "--model=trivial")
    with tf.Graph().as_default():
        step = run_graph.build(chosen, run_graph.plan_devices(chosen)).step
    assert [len(_drawn_by(operation)) for operation in step.init_ops] == [0, 2]
    assert [len(_drawn_by(operation)) for operation in step.resume_ops] == [0]


def _drawn_by(operation: tf.Operation) -> set[str]:
    """Returns the names of the operations that draw a batch whenever this one runs."""
    seen, waiting = {operation.name}, [operation]
    found = set()
    while waiting:
        one = waiting.pop()
        if one.type == "IteratorGetNext":
            found.add(one.name)
        for before in [*(tensor.op for tensor in one.inputs), *one.control_inputs]:
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return found
