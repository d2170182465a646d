"""What the tasks of a cluster tell each other of themselves, and what they must have in common."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.cluster.cluster_spec import Cluster
from benchmarks.machine import linux
from benchmarks.machine.provenance import describe_software, recorded_variables, suite_commit
from results.environment import unlike_variables
from results.quality import UNLIKE_WORKERS
from results.record import differing, flat
from results.text import counted


def hello(must_agree: Mapping[str, Any], devices: str, gpus: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what a task sends to the others about itself; `gpus` are those that no other may use."""
    return {
        "TensorFlow": tf.__version__,
        "Keras": describe_software()["keras_version"],
        "suite's commit": suite_commit(),
        "options": must_agree,
        "devices": devices,
        "variables": recorded_variables(),
        "gpus": list(gpus),
        "host": socket.gethostname(),
        "boot_id": linux.boot_id(),
        "pid": os.getpid(),
    }


def disagreement(messages: Mapping[str, Mapping[str, Any]], leader: str) -> str | None:
    """Returns a sentence if tasks differ in what all must have in common, or have the same GPU."""
    wanted = messages[leader]
    for task, message in messages.items():
        for what in ("TensorFlow", "Keras", "suite's commit"):
            own, theirs = message.get(what), wanted.get(what)  # None: not known there
            if own != theirs and None not in (own, theirs):
                return (
                    f"{task} and {leader} differ in {what}: {own} and {theirs}. Start all tasks with the same software."
                )
        for name, value in message["options"].items():
            if value != (other := wanted["options"].get(name, value)):
                fields = differing(flat({name: value}), flat({name: other})) or {name: (value, other)}
                field, (own, theirs) = next(iter(fields.items()))
                return (
                    f"{task} and {leader} differ in {field}: {own} and {theirs}. "
                    "Start all tasks with the same flags, except --job_name and --task_index; where hosts have unlike "
                    "GPUs, or none, also pass what follows from GPUs: --num_gpus, --precision and --batch_size."
                )
    return _shared_gpu(messages)


def _shared_gpu(messages: Mapping[str, Mapping[str, Any]]) -> str | None:
    users: dict[str, str] = {}
    for task, message in messages.items():
        for gpu in message.get("gpus", ()):
            if (other := users.setdefault(gpu, task)) != task:
                return (
                    f"{other} and {task} use the same GPU ({gpu}): give each its own, with --gpus or "
                    "CUDA_VISIBLE_DEVICES, or let them share its memory, such as with --gpu_memory_frac=0.45."
                )
    return None


def doubts(messages: Mapping[str, Mapping[str, Any]], cluster: Cluster) -> list[str]:
    """Returns a sentence for the record on each thing in which tasks may differ, and that it has of one task only."""
    found = []
    workers = {f"worker {index}": messages[f"worker {index}"] for index in range(cluster.num_workers)}
    leader = str(cluster.leader)  # may be the controller, which the record is of
    if names := unlike_variables([*workers.values(), messages[leader]]):
        found.append(
            f"{UNLIKE_WORKERS} environment variables ({', '.join(names)}), and the record has those of {leader} "
            "only: start all tasks with the same."
        )
    if len({message["devices"] for message in workers.values()}) > 1:
        each = "; ".join(f"{worker}: {message['devices']}" for worker, message in workers.items())
        found.append(
            f"{UNLIKE_WORKERS} devices ({each}), and the record names those of {cluster.leader} only: do not "
            "compare the rate with that of equal hosts."
        )
    hosts = {(message["host"], message["boot_id"]) for message in messages.values()}
    if len(hosts) < cluster.num_hosts:
        of_hosts = ", ".join(sorted({name for name, _ in hosts}))
        found.append(
            f"The addresses name {cluster.num_hosts} hosts, and the tasks run on {counted(len(hosts), 'host')} "
            f"({of_hosts}): write a host in the same way in all addresses, since the record counts hosts by them."
        )
    return found
