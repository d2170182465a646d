"""What a traced step did, from TensorFlow's RunMetadata: tensors that crossed between devices, and times of towers."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf

from benchmarks.training.placement_table import COLLECTIVES
from variable_mgr.transfers import BETWEEN_DEVICES, NETWORK, TO_DEVICE, TO_HOST, summed

# What a GPU's driver reports, such as `MemcpyH2D kind_src:... size:4096 dest:0`.
_COPY = re.compile(r"Memcpy(\w++).*?\bsize:(\d+)")
# Of a GPU, at the end of a device's name.
COPIES, KERNELS = "/memcpy", "/stream:all"
# Of a device's name; what the driver reports begins with it, and has no process.
OF_GPU = "/device:GPU:"
# Of a GPU's memory, by its number in the process; the allocators of pinned host memory have other names.
_GPU_ALLOCATOR = re.compile(r"GPU_\d+_bfc|gpu_async_\d+")
NO_KERNELS = (
    "The trace of a step has no kernels of the GPUs, so only their launches are known: TensorFlow could not use CUPTI. "
    "If the driver reserves it for administrators (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES), load its module with "
    "NVreg_RestrictProfilingToAdminUsers=0, or give a container --cap-add=SYS_ADMIN. TF_CPP_MIN_LOG_LEVEL=0 shows "
    "TensorFlow's reason."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossings:
    """The transfers of a step. Each mapping has the number of transfers and their bytes.

    Attributes:
        by_kind: of tensors from one device to another, by kind of link.
        scalars: of scalars, and of empty tensors that only keep an order, over all links.
        unknown: number of tensors in `by_kind` whose bytes the trace does not have, which count as 0.
        collectives: number of collective operations in the step. Their transfers are not observed: `by_kind` has what
            a ring sends to reduce the tensors that they got.
        received: number of tensors that servers report as received from another process.
        copies: copies that GPUs' driver reports, by kind (`H2D`, `D2H`, `D2D`, `P2P`), images included.
    """

    by_kind: Mapping[str, tuple[float, float]]
    scalars: tuple[int, int] = (0, 0)
    unknown: int = 0
    collectives: int = 0
    received: int = 0
    copies: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


def crossings(
    metadata: tf.compat.v1.RunMetadata, *, cpu_is_host: bool, towers_in_total: int = 1, workers: int = 1
) -> Crossings:
    """Returns the transfers of a step that was traced with its partition graphs.

    Args:
        metadata: of the step.
        cpu_is_host: whether CPU 0 of a process counts as the host; if not, as the device of a tower.
        towers_in_total: that collectives reduce over.
        workers: that drive these towers together, each with a trace of its own.
    """
    sizes = _output_bytes(metadata)
    sent: list[tuple[str, float, float]] = []  # kind of link, number, bytes
    scalars = []
    unknown = collectives = 0
    origins = received(metadata)
    for sender, receiver, tensor in _sends(metadata):
        origin = (sender, *tensor)
        while origin in origins:  # a tensor from another process goes on to another device
            origin = origins[origin]
        is_scalar, size = sizes.get(origin, (False, None))
        if is_scalar:
            scalars.append(size or 0)
            continue
        unknown += size is None
        sent.append((_kind(sender, receiver, cpu_is_host=cpu_is_host), 1, size or 0))
    for device, name in _collectives(metadata) if towers_in_total > 1 else ():
        collectives += 1
        number, share = 2 * (towers_in_total - 1), 2 * (towers_in_total - 1) / towers_in_total
        # The last tower of a worker sends to the next worker.
        outside = workers / towers_in_total if workers > 1 else 0.0
        bytes_sent = share * (sizes.get((device, name, 0), (False, 0))[1] or 0)
        sent.append((NETWORK, outside * number, outside * bytes_sent))
        sent.append((BETWEEN_DEVICES, (1 - outside) * number, (1 - outside) * bytes_sent))
    by_kind = {kind: (round(n), round(size)) for kind, (n, size) in summed(sent).items() if round(n)}
    reports = [(stats.device, event) for stats in metadata.step_stats.dev_stats for event in stats.node_stats]
    copies = [_COPY.match(event.timeline_label) for device, event in reports if device.endswith(COPIES)]
    return Crossings(
        by_kind=by_kind,
        scalars=(len(scalars), sum(scalars)),
        unknown=unknown,
        collectives=collectives,
        received=sum(event.node_name == "RecvTensor" for _, event in reports),
        copies=summed((copy[1], 1, int(copy[2])) for copy in copies if copy),
    )


def lacks_kernels(metadata: tf.compat.v1.RunMetadata) -> bool:
    """Returns whether GPUs took part in a step that was traced fully, and only their launches are known."""
    devices = {stats.device for stats in metadata.step_stats.dev_stats}
    return any(OF_GPU in device for device in devices) and not any(device.endswith(KERNELS) for device in devices)


def peak_gpu_memory_bytes(metadata: tf.compat.v1.RunMetadata) -> int | None:
    """Returns the most memory that an allocator of a GPU had in use in a traced step; None if none reports that.

    It reports when an operation has ended, so what this has freed before, such as a workspace of cuDNN, is added.
    """
    used = [
        memory.allocator_bytes_in_use + memory.peak_bytes - memory.live_bytes
        for stats in metadata.step_stats.dev_stats
        for node in stats.node_stats
        for memory in node.memory
        if _GPU_ALLOCATOR.fullmatch(memory.allocator_name) and memory.allocator_bytes_in_use
    ]
    return max(used, default=None)


def tower_seconds(metadata: tf.compat.v1.RunMetadata, towers: int) -> list[float] | None:
    """Returns how long each tower took, from the start of its first operation to the end of its last one.

    Its operations are those in the name scope `tower_N`: its forward and backward pass, including its waits for weights
    and images. On GPUs they are kernels. None if a tower has none, such as without CUPTI.
    """
    begun, ended = [math.inf] * towers, [0.0] * towers
    devices = {stats.device for stats in metadata.step_stats.dev_stats}
    on_gpus = any(":GPU:" in device for device in devices)
    for stats in metadata.step_stats.dev_stats:
        # What the host records of a GPU's operations is when they were launched.
        if on_gpus and not stats.device.endswith(KERNELS):
            continue
        for event in stats.node_stats:
            scope = event.node_name.partition("/")[0].removeprefix("tower_")
            if scope != event.node_name and scope.isdecimal() and int(scope) < towers:
                begun[int(scope)] = min(begun[int(scope)], event.all_start_micros)
                ended[int(scope)] = max(ended[int(scope)], event.all_start_micros + event.all_end_rel_micros)
    seconds = [1e-6 * (end - begin) for begin, end in zip(begun, ended, strict=True)]
    return seconds if min(seconds) > 0 else None


def _output_bytes(metadata: tf.compat.v1.RunMetadata) -> dict[tuple[str, str, int], tuple[bool, int | None]]:
    """Returns by device, node and output whether it is a scalar or empty, and its bytes."""
    found = {}
    for stats in metadata.step_stats.dev_stats:
        for node in stats.node_stats:
            for output in node.output:
                tensor = output.tensor_description
                lengths = [dimension.size for dimension in tensor.shape.dim]
                if tensor.dtype:
                    size = math.prod(lengths) * tf.as_dtype(tensor.dtype).size
                    found[stats.device, node.node_name, output.slot] = (not lengths or not size, size)
    return found


def _sends(metadata: tf.compat.v1.RunMetadata) -> Iterator[tuple[str, str, tuple[str, int]]]:
    """Yields once, for each tensor and receiving device, the sender, the receiver, and the node with its output."""
    seen = set()
    for node, sender, receiver in _ends(metadata, "_Send", "_HostSend"):
        key = (sender, receiver, _input(node))
        if sender != receiver and key not in seen:
            seen.add(key)
            yield key


def received(metadata: tf.compat.v1.RunMetadata) -> dict[tuple[str, str, int], tuple[str, str, int]]:
    """Returns by receiving device, node and output 0 the device, node and output that the tensor came from."""
    sent = {
        (sender, receiver, node.attr["tensor_name"].s): (sender, *_input(node))
        for node, sender, receiver in _ends(metadata, "_Send", "_HostSend")
    }
    found = {}
    for node, sender, receiver in _ends(metadata, "_Recv", "_HostRecv"):
        origin = sent.get((sender, receiver, node.attr["tensor_name"].s))
        if origin:
            found[receiver, node.name, 0] = origin
    return found


def _ends(metadata: tf.compat.v1.RunMetadata, *types: str) -> Iterator[tuple[tf.compat.v1.NodeDef, str, str]]:
    """Yields the operations of these types that connect two devices, with the sender and the receiver."""
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if node.op in types and not node.attr["client_terminated"].b:
                yield node, node.attr["send_device"].s.decode(), node.attr["recv_device"].s.decode()


def _input(node: tf.compat.v1.NodeDef) -> tuple[str, int]:
    name, _, output = node.input[0].partition(":")
    return name, int(output or 0)


def _collectives(metadata: tf.compat.v1.RunMetadata) -> Iterator[tuple[str, str]]:
    for graph in metadata.partition_graphs:
        yield from ((node.device, node.name) for node in graph.node if node.op in COLLECTIVES)


def _kind(sender: str, receiver: str, *, cpu_is_host: bool) -> str:
    ends = [tf.DeviceSpec.from_string(device) for device in (sender, receiver)]
    if len({(end.job, end.task) for end in ends}) > 1:
        return NETWORK
    from_host, to_host = (cpu_is_host and (end.device_type, end.device_index) == ("CPU", 0) for end in ends)
    return TO_DEVICE if from_host else TO_HOST if to_host else BETWEEN_DEVICES
