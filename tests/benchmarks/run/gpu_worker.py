"""A worker that only reports GPUs, beside a real one: TensorFlow places, optimises and divides graphs for it.

Instead of running its part of a graph, it keeps the part and fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import device_attributes_pb2, graph_pb2

from benchmarks.cluster import launch_plan
from benchmarks.graph import run_graph
from tests.benchmarks.run.gpu_graphs import GPUS, Built

_KEPT = "the part of this worker is kept"
_AS_LARGE_AS_NEEDED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class GpuWorker:
    """The first task of a cluster is a server in this process, the second one has GPUs that do not exist."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.parts: list[tf.compat.v1.GraphDef] = []

    def place(self, built: Built) -> int:
        """Lets TensorFlow place a step's graph strictly; returns how many tensors a step sends between GPUs.

        Raises:
            tf.errors.OpError: it cannot.
        """
        self.parts.clear()
        options = tf.compat.v1.ConfigProto()
        options.CopyFrom(run_graph.session_config(built.config.devices, built.config.runtime))
        options.ClearField("device_count")
        options.gpu_options.Clear()
        options.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        with tf.compat.v1.Session(self._target, graph=built.graph, config=options) as session:
            try:
                session.run(built.fetches)
            except tf.errors.UnimplementedError as error:
                if _KEPT not in error.message:
                    raise
        assert self.parts
        return _tensors_sent([node for part in self.parts for node in part.node])


def _tensors_sent(nodes: list[Any]) -> int:
    device, between = {node.name: node.device for node in nodes}, set()
    for node in nodes:
        for name in node.input:
            source = name.lstrip("^").partition(":")[0]
            ends = device.get(source, node.device), node.device
            if ends[0] != ends[1] and all("GPU" in end for end in ends):
                between.add((name, *ends))
    return sum(not name.startswith("^") for name, *_ in between)


@contextlib.contextmanager
def started() -> Iterator[GpuWorker]:
    """Starts both tasks. TensorFlow's own server stays until the process ends."""
    addresses = launch_plan.with_free_ports(launch_plan.on_this_host("worker:2")).workers
    service = grpc.server(futures.ThreadPoolExecutor(8), options=_AS_LARGE_AS_NEEDED)
    service.add_insecure_port(addresses[1])
    own = tf.distribute.Server({"worker": list(addresses)}, job_name="worker", task_index=0)
    worker = GpuWorker(own.target)
    service.add_generic_rpc_handlers([_Service(worker.parts)])
    service.start()
    try:
        yield worker
    finally:
        service.stop(None)


class _Service(grpc.GenericRpcHandler):
    """Answers tensorflow.WorkerService."""

    def __init__(self, parts: list[tf.compat.v1.GraphDef]) -> None:
        self._parts = parts

    def service(self, call: Any) -> Any:
        """Returns what answers a call."""

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if call.method.endswith("/GetStatus"):
                return _GetStatusResponse(device_attributes=_devices()).SerializeToString()
            if call.method.endswith("/RegisterGraph"):
                self._parts.extend(_RegisterGraphRequest.FromString(request).graph_def)
                context.abort(grpc.StatusCode.UNIMPLEMENTED, _KEPT)
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


def _devices() -> Iterator[device_attributes_pb2.DeviceAttributes]:
    for number, (kind, index) in enumerate([("CPU", 0), *(("GPU", index) for index in range(GPUS))]):
        name = f"/job:worker/replica:0/task:1/device:{kind}:{index}"
        yield device_attributes_pb2.DeviceAttributes(
            name=name, device_type=kind, memory_limit=80 << 30, incarnation=1000 + number
        )


def _message(name: str, field: str, number: int, of: Any) -> Any:
    """Returns the class of a message of tensorflow/core/protobuf/worker.proto, whose Python classes are not installed.

    It has one repeated field; others are ignored.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/{name}.proto", package="tests", syntax="proto3", dependency=[of.DESCRIPTOR.file.name]
    )
    repeated = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    file.message_type.add(name=name).field.add(
        name=field, number=number, label=repeated, type=11, type_name=f".{of.DESCRIPTOR.full_name}"
    )
    described = descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(described.message_types_by_name[name])


_GetStatusResponse = _message("GetStatusResponse", "device_attributes", 1, device_attributes_pb2.DeviceAttributes)
_RegisterGraphRequest = _message("RegisterGraphRequest", "graph_def", 2, graph_pb2.GraphDef)
