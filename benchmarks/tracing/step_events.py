"""What each device did in a traced step and when, from TensorFlow's RunMetadata: computing, exchange and input."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.tracing import step_trace

COMPUTE, EXCHANGE, INPUT = "compute", "exchange", "input"
_EXCHANGES = re.compile(r"_?(Host)?(Send|Recv)|RecvTensor|Collective|[Nn]ccl|Queue")
_INPUTS = re.compile(r"Iterator|\w*Dataset")
_OF_INPUT = re.compile(r"input|synthetic_\d+")  # the name scopes of what is read and of what is made
_LABEL = re.compile(r"\S+ = (\w+)\(")  # on CPUs, such as `tower_0/add = AddV2(a, b)`
_COPY = re.compile(r"Memcpy\w+")
# What a GPU does for an operation has its name and type (tensorflow/core/profiler/convert/xplane_to_step_stats.cc).
# NCCL's kernels have the name of the call, such as `ncclAllReduce`, and kernels of no operation their own C++ name.
_OF_OPERATION = re.compile(r"([^:]+):(\w+)")


@dataclasses.dataclass(frozen=True)
class Event:
    """An operation, a kernel or a transfer.

    Attributes:
        device: that did it, such as `/job:worker/replica:0/task:1/device:GPU:0`; in one process, `/device:GPU:0`.
        kind: `COMPUTE`, with updates and sums of gradients, `EXCHANGE` or `INPUT`.
        type: of the operation, such as `MatMul`.
        name: of the operation in the graph; of a transfer, of the tensor.
        begin_us: by the clock of the device's host, in µs since 1970.
        duration_us: in µs.
    """

    device: str
    kind: str
    type: str
    name: str
    begin_us: int
    duration_us: int


def events(metadata: tf.compat.v1.RunMetadata) -> list[Event]:
    """Returns what happened in a step that was traced with its partition graphs.

    A GPU's events are its kernels and copies, if it reports any, and not their launches by the host. TensorFlow does
    not time a transfer to a CPU device. It lasts from the end of the operation that made the tensor until the first
    operation that uses it could start, which may have waited for other tensors, too.
    """
    nodes = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
    by_process = list(_by_process(metadata))
    reporting = {process for process, stats in by_process if stats.device.endswith(step_trace.KERNELS)}
    found = []
    for process, stats in by_process:
        of_gpu, of_copies = stats.device.startswith(step_trace.OF_GPU), stats.device.endswith(step_trace.COPIES)
        if of_gpu and not stats.device.endswith((step_trace.KERNELS, step_trace.COPIES)):
            continue  # a part of all streams; waits of the host
        if not of_gpu and step_trace.OF_GPU in stats.device and process in reporting:
            continue  # launches
        for node in stats.node_stats:
            name, device, of_type = node.node_name, stats.device, ""
            if name in ("_SOURCE", "_SINK"):
                continue
            if of_gpu:
                device = process + device.rpartition("/")[0]
                if operation := _OF_OPERATION.fullmatch(name):
                    name, of_type = operation.groups()
                if name in nodes and not of_copies and step_trace.OF_GPU in nodes[name].device:
                    device = nodes[name].device  # it may be a part of a split GPU, which the driver does not know
            copied, labelled = _COPY.match(node.timeline_label), _LABEL.match(node.timeline_label)
            if copied:
                # Inside an operation, such as of the statistics of a batch normalisation, it leaves no device.
                kind, of_type = _kind(name, of_type) if of_type else EXCHANGE, copied[0]
            else:
                of_type = nodes[name].op if name in nodes else of_type or (labelled[1] if labelled else name)
                kind = _kind(name, of_type)
            found.append(Event(_short(device), kind, of_type, name, node.all_start_micros, node.all_end_rel_micros))
    return sorted([*found, *_transfers(metadata, reporting)], key=lambda event: event.begin_us)


def _by_process(metadata: tf.compat.v1.RunMetadata) -> Iterator[tuple[str, Any]]:
    """Yields what devices report, and the process, such as `/job:worker/replica:0/task:0`.

    A process reports first what its GPUs did, by names without the process, and then its devices
    (tensorflow/core/distributed_runtime/worker.cc).
    """
    process = ""
    for stats in reversed(metadata.step_stats.dev_stats):
        process = stats.device.partition("/device:")[0] or process
        yield process, stats


def _kind(name: str, of_type: str) -> str:
    if _EXCHANGES.match(of_type):
        return EXCHANGE
    return INPUT if _INPUTS.match(of_type) or _OF_INPUT.fullmatch(name.partition("/")[0]) else COMPUTE


def _transfers(metadata: tf.compat.v1.RunMetadata, reporting: set[str]) -> Iterator[Event]:
    """Yields the transfers between devices that do not report copies, on the device that received the tensor.

    `reporting`: the processes whose GPUs do.
    """
    nodes = {
        (stats.device, node.node_name): node for stats in metadata.step_stats.dev_stats for node in stats.node_stats
    }
    users: dict[tuple[str, str], list[str]] = {}
    for graph in metadata.partition_graphs:
        for node in graph.node:
            for tensor in node.input:
                users.setdefault((node.device, tensor.removeprefix("^").partition(":")[0]), []).append(node.name)
    origins = step_trace.received(metadata)
    for (receiver, received, _), (sender, name, _) in origins.items():
        made = nodes.get((sender, name))
        used = [nodes[receiver, user] for user in users.get((receiver, received), ()) if (receiver, user) in nodes]
        if made is None or not used:
            continue
        if any(step_trace.OF_GPU in end and end.partition("/device:")[0] in reporting for end in (sender, receiver)):
            continue
        begin = made.all_start_micros + made.all_end_rel_micros
        ready = min(user.scheduled_micros or user.all_start_micros for user in used)
        yield Event(_short(receiver), EXCHANGE, "transfer or wait", name, begin, max(0, ready - begin))


def _short(device: str) -> str:
    return device.replace("/job:localhost/replica:0/task:0", "")


class Work(NamedTuple):
    """What a device spent on operations of one type: their number and time per step, and their share of all time."""

    device: str
    kind: str
    type: str
    per_step: float
    ms_per_step: float
    share: float


def by_type(steps: Sequence[Sequence[Event]]) -> list[Work]:
    """Returns the work of these steps by type of operation, the longest first; what overlaps counts each."""
    micros: dict[tuple[str, str, str], list[int]] = {}
    for event in itertools.chain.from_iterable(steps):
        micros.setdefault((event.device, event.kind, event.type), []).append(event.duration_us)
    whole = sum(map(sum, micros.values())) or 1
    rows = [
        Work(*key, len(each) / len(steps), sum(each) / 1000 / len(steps), sum(each) / whole)
        for key, each in micros.items()
    ]
    return sorted(rows, key=lambda row: -row.ms_per_step)
