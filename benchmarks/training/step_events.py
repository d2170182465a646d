"""What each device did in a traced step and when, from TensorFlow's RunMetadata: computing, exchange and input."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from benchmarks.training import step_trace

COMPUTE, EXCHANGE, INPUT = "compute", "exchange", "input"
KINDS = (COMPUTE, EXCHANGE, INPUT)
_EXCHANGES = re.compile(r"_?(Host)?(Send|Recv)|RecvTensor|Collective|Nccl|Queue")
_INPUTS = re.compile(r"Iterator|\w*Dataset")
_OF_INPUT = re.compile(r"input|synthetic_\d+")  # the name scopes of what is read and of what is made
_LABEL = re.compile(r"\S+ = (\w+)\(")  # on CPUs, such as `tower_0/add = AddV2(a, b)`
_COPY = re.compile(r"Memcpy\w+")


@dataclasses.dataclass(frozen=True)
class Event:
    """An operation, a kernel or a transfer.

    Attributes:
        device: that did it, such as `/job:worker/replica:0/task:1/device:GPU:0`; in one process, `/device:GPU:0`.
        kind: one of `KINDS`. Compute includes updates and sums of gradients.
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
    types = {node.name: node.op for graph in metadata.partition_graphs for node in graph.node}
    every = {stats.device for stats in metadata.step_stats.dev_stats}
    reporting = {name.removesuffix(step_trace.KERNELS) for name in every if name.endswith(step_trace.KERNELS)}
    found = []
    for stats in metadata.step_stats.dev_stats:
        device, is_copy = stats.device, stats.device.endswith(step_trace.COPIES)
        if device.endswith((step_trace.KERNELS, step_trace.COPIES)):
            device = device.rpartition("/")[0]
        elif "/stream:" in device or any(device.endswith(name) for name in reporting):
            continue  # a part of all streams; launches
        for node in stats.node_stats:
            name = node.node_name
            copied, labelled = _COPY.match(node.timeline_label), _LABEL.match(node.timeline_label)
            if name in ("_SOURCE", "_SINK"):
                continue
            of_type = copied[0] if copied else types.get(name) or (labelled[1] if labelled else name)
            kind = EXCHANGE if is_copy or copied else _kind(name, of_type)
            found.append(Event(_short(device), kind, of_type, name, node.all_start_micros, node.all_end_rel_micros))
    return sorted([*found, *_transfers(metadata, reporting)], key=lambda event: event.begin_us)


def _kind(name: str, of_type: str) -> str:
    if _EXCHANGES.match(of_type):
        return EXCHANGE
    return INPUT if _INPUTS.match(of_type) or _OF_INPUT.fullmatch(name.partition("/")[0]) else COMPUTE


def _transfers(metadata: tf.compat.v1.RunMetadata, reporting: set[str]) -> Iterator[Event]:
    """Yields the transfers between devices that do not report copies, on the device that received the tensor."""
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
        if made is None or not used or any(end.endswith(one) for one in reporting for end in (sender, receiver)):
            continue
        begin = made.all_start_micros + made.all_end_rel_micros
        ready = min(user.scheduled_micros or user.all_start_micros for user in used)
        yield Event(_short(receiver), EXCHANGE, "transfer or wait", name, begin, max(0, ready - begin))


def _short(device: str) -> str:
    return device.replace("/job:localhost/replica:0/task:0", "")


@dataclasses.dataclass(frozen=True)
class Work:
    """What a device spent on operations of one type.

    Attributes:
        device, kind, type: see `Event`.
        per_step: number of operations.
        ms_per_step: their time. Operations that ran at the same time count each.
        share: of the time of all operations on all devices.
    """

    device: str
    kind: str
    type: str
    per_step: float
    ms_per_step: float
    share: float


def by_type(steps: Sequence[Sequence[Event]]) -> list[Work]:
    """Returns the work of these steps by type of operation, the longest first."""
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    for event in (event for step in steps for event in step):
        key = (event.device, event.kind, event.type)
        count, micros = totals.get(key, (0, 0))
        totals[key] = count + 1, micros + event.duration_us
    whole = sum(micros for _, micros in totals.values()) or 1
    rows = [
        Work(*key, per_step=count / len(steps), ms_per_step=micros / 1000 / len(steps), share=micros / whole)
        for key, (count, micros) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row.ms_per_step)
