from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from benchmarks.devices import device_plan
from benchmarks.graph import run_graph
from benchmarks.process.tensorflow_setup import Devices
from tests.support.settings import resolve


@pytest.mark.slow
def test_asynchronous_towers_throw_no_batch_away(fake_imagenet: Path) -> None:
    """Towers that draw in turn draw for those before them, too; each must draw for itself alone."""
    chosen = resolve(
        "--device=cpu", "--num_gpus=3", f"--data_dir={fake_imagenet}", "--nocross_replica_sync", "--model=trivial"
    )
    plan = device_plan.plan(Devices(num_devices=3), shared_on="cpu")
    with tf.Graph().as_default():
        spec = run_graph.input_spec(chosen)
        towers = run_graph.build_input(chosen.workload, chosen.data, spec, plan.towers).towers
        for tower in towers:
            assert len(_drawn_by(tower.stage)) == 1


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
