"""The first lines of a run: what was decided without a flag is named with its reason."""

from __future__ import annotations

import pytest

from benchmarks.config import config, flag, run_flags
from benchmarks.graph.run_graph import shown_facts
from benchmarks.machine import hardware
from tests.support.nvidia import MACHINES, stand_in

PLACEMENT = {"devices": "8 GPUs", "manager": "copies", "variables": 8, "variable_bytes_per_device": {"/GPU:0": 1e6}}


def facts(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    stand_in(monkeypatch, MACHINES["8 H100, NVSwitch"])
    values = flag.parse(["--num_gpus=8", "--variable_update=replicated", *words], run_flags.RUN_FLAGS).values
    return shown_facts(config.resolve(values, hardware.count_gpus), "synthetic", PLACEMENT)


def test_what_gpus_decided_is_shown_with_its_reason_and_the_way_to_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = facts(monkeypatch)
    assert "training, tf32, NCHW (tf32: TensorFlow's default on these GPUs; --precision=fp32 turns " in shown["Model"]
    assert shown["Batch size"].startswith("2048 global, 256 per device (256: NVIDIA DeepLearningExamples RN50v1.5")
    nccl = "(nccl: NVLink between all GPUs; --all_reduce_spec=psgpu as tf_cnn_benchmarks)"
    assert shown["Variables"] == f"replicated: copies {nccl}"


def test_what_flags_decide_needs_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = facts(monkeypatch, "--precision=bf16", "--batch_size=64", "--all_reduce_spec=psgpu")
    assert shown["Model"].endswith("training, bf16, NHWC") and shown["Batch size"] == "512 global, 64 per device"
    assert shown["Variables"] == "replicated: copies" and shown["Optimizer"].startswith("sgd, learning rate ")
    assert "Optimizer" not in facts(monkeypatch, "--forward_only"), "nothing is trained"
