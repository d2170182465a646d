from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import tensorflow as tf

from benchmarks.cluster.agreement import disagreement, doubts, hello
from benchmarks.cluster.cluster_spec import Cluster, Task

CLUSTER = Cluster(ps=("h:1",), workers=("h:2", "h:3"), own=Task("worker", 0))
OPTIONS: dict[str, Any] = {
    "variable_update": "parameter_server",
    "batch_per_device": 32,
    "modifiers": {"asynchronous": False, "staged_vars": False},
    "pipeline": None,
}
LEADER = "worker 0"


def said(**changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each task said, but for changes by task (an underscore for the space), as it comes over the wire."""
    everyone = {str(task): hello(OPTIONS, "1 CPU") for task in CLUSTER.tasks}
    for task, change in changes.items():
        everyone[task.replace("_", " ")].update(change)
    return json.loads(json.dumps(everyone))


@pytest.mark.parametrize(
    ("told", "start"),
    [
        ({}, None),
        ({"worker_1": {"host": "elsewhere", "pid": 1, "devices": "8 GPUs"}}, None),
        ({"ps_0": {"options": {"variable_update": "parameter_server"}}}, None),  # it need not know all options
        (
            {"ps_0": {"options": {"variable_update": "distributed_replicated"}}},
            "ps 0 and worker 0 differ in variable_update: distributed_replicated and parameter_server. ",
        ),
        (
            {"ps_0": {"suite's commit": "aaaa"}, "worker_0": {"suite's commit": "bbbb"}},
            "ps 0 and worker 0 differ in suite's commit: aaaa and bbbb",
        ),
        ({"ps_0": {"suite's commit": None}, "worker_1": {"suite's commit": None}}, None),  # not known there
        ({"worker_1": {"Keras": "3.0.0"}}, "worker 1 and worker 0 differ in Keras: 3.0.0 and "),
        (
            {"ps_0": {"TensorFlow": "2.3.0"}},
            f"ps 0 and worker 0 differ in TensorFlow: 2.3.0 and {tf.__version__}. Start all tasks with the same soft",
        ),
        ({"worker_0": {"gpus": ["GPU-a", "GPU-b"]}, "worker_1": {"gpus": ["GPU-c"]}}, None),
        (
            {"worker_0": {"gpus": ["GPU-a", "GPU-b"]}, "worker_1": {"gpus": ["GPU-c", "GPU-b"]}},
            "worker 0 and worker 1 use the same GPU (GPU-b): give each its own, with --gpus",
        ),
        *(
            (
                {"worker_1": {"options": {**OPTIONS, name: value}}},
                f"worker 1 and worker 0 differ in {difference}. "
                "Start all tasks with the same flags, except --job_name and --task_index; where hosts have unlike "
                "GPUs, or none, also pass what follows from GPUs: --num_gpus, --precision and --batch_size.",
            )
            for name, value, difference in [
                ("batch_per_device", 64, "batch_per_device: 64 and 32"),
                ("batch_per_device", None, "batch_per_device: None and 32"),
                ("modifiers", {"asynchronous": False, "staged_vars": True}, "modifiers.staged_vars: True and False"),
                ("pipeline", {"stages": 2}, "pipeline.stages: 2 and None"),
            ]
        ),
    ],
)
def test_what_differs_from_the_leader_is_told(told: dict[str, Any], start: str | None) -> None:
    sentence = disagreement(said(**told), LEADER)
    assert sentence is None if start is None else sentence is not None and sentence.startswith(start)


def test_who_leads_is_what_others_are_compared_with() -> None:
    everyone = said(worker_1={"options": {**OPTIONS, "batch_per_device": 1}})
    everyone["controller 0"] = everyone["worker 0"]
    sentence = disagreement(everyone, "controller 0")
    assert sentence is not None and sentence.startswith("worker 1 and controller 0 differ in batch_per_device: ")


@pytest.mark.parametrize(
    ("told", "workers", "start"),
    [
        ({}, ("h:2", "h:3"), ""),
        ({"worker_1": {"variables": {"CUDA_VISIBLE_DEVICES": "1"}}}, ("h:2", "h:3"), ""),  # its own devices
        ({"ps_0": {"devices": "1 GPU", "variables": {"XLA_FLAGS": "a"}}}, ("h:2", "h:3"), ""),  # it does not train
        (
            {"worker_1": {"variables": {"XLA_FLAGS": "a"}}},
            ("h:2", "h:3"),
            "Workers have unlike environment variables (XLA_FLAGS), and the record has those of worker 0 only: ",
        ),
        (
            {"worker_1": {"devices": "1 GPU"}},
            ("h:2", "h:3"),
            "Workers have unlike devices (worker 0: 1 CPU; worker 1: 1 GPU), and the record names those of worker 0 ",
        ),
        (
            {},
            ("g:2", "h:3"),
            "The addresses name 2 hosts, and the tasks run on 1 host (one): write a host in the same way in all ",
        ),
        ({"worker_0": {"host": "two"}}, ("g:2", "h:3"), ""),
        ({"worker_0": {"boot_id": "b"}}, ("g:2", "h:3"), ""),  # two machines of one name
    ],
)
def test_tasks_that_differ_in_what_the_record_has_of_one_are_doubted(
    told: dict[str, Any], workers: tuple[str, ...], start: str
) -> None:
    everyone = {task: {**message, "variables": {}, "host": "one"} for task, message in said().items()}
    for task, change in told.items():
        everyone[task.replace("_", " ")].update(change)
    found = doubts(everyone, dataclasses.replace(CLUSTER, workers=workers))
    assert "".join(found).startswith(start) and len(found) == bool(start)
