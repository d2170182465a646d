"""What TensorFlow would make of a run's graph on GPUs. It needs none: its Linux build has their kernels on every host.

TensorFlow's public API neither lists kernels nor optimises a graph for devices that do not exist.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import device_properties_pb2
from tensorflow.python.framework import kernels
from tensorflow.python.grappler import cluster, tf_optimizer

from benchmarks.config.config import Config
from benchmarks.devices import device_plan
from benchmarks.graph import run_graph
from tests.support.settings import resolve

GPUS = 8
_WORKER = tf.DeviceSpec.from_string("/job:localhost/replica:0/task:0")
# TensorFlow replaces these by other operations before it looks for kernels.
_REPLACED = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
_REPLACED |= {"PartitionedCall", "StatefulPartitionedCall"}
_ALWAYS_ON_HOSTS = (tf.resource, tf.variant, tf.string)
_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative", "_FusedConv2D")


@dataclasses.dataclass(frozen=True)
class Built:
    """A run's graph, and how it was configured."""

    graph: tf.Graph
    config: Config
    fetches: list[Any]


def build(*words: str) -> Built:
    """Builds what a run with these flags builds on a host with eight GPUs."""
    chosen = resolve(*words, gpus=GPUS)
    assert chosen.devices.device == "gpu"
    planned = device_plan.plan(
        chosen.devices,
        shared_on=chosen.variables.shared_on,
        cluster=chosen.processes.cluster,
        manager=chosen.variables.variable_update,
    )
    with (
        tf.Graph().as_default() as made,
        tf.device(chosen.processes.cluster.own.device if chosen.processes.cluster else None),
    ):
        built = run_graph.build(chosen, planned)
        built.drift(), built.finite(), built.penalty()
    fetches = [one for loop in built.step.loops for one in (loop.loss, loop.operation, *loop.observed.values())]
    return Built(made, chosen, fetches)


def without_kernel(made: tf.Graph) -> set[str]:
    """Returns the types of the operations on GPUs, also within functions, that have no kernel for one."""
    definition = made.as_graph_def()
    within = [each.node_def for each in definition.library.function if "_XlaMustCompile" not in each.attr]
    nodes = [node for node in itertools.chain(definition.node, *within) if _is_gpu(node.device)]
    assert nodes
    return {_described(node) for node in nodes if node.op not in _REPLACED and _kernel(node) is None}


def large_on_hosts(made: tf.Graph, least_bytes: int = 4096) -> set[str]:
    """Returns the operations on GPUs whose kernels take so many bytes in host memory, where GPUs would copy them to."""
    found = set()
    for one in filter(lambda each: _is_gpu(each.device), made.get_operations()):
        kernel = _kernel(one.node_def)
        for tensor, name in zip(one.inputs, _names_of_inputs(one), strict=True):
            if kernel and name in kernel.host_memory_arg and tensor.dtype not in _ALWAYS_ON_HOSTS:
                size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
                found |= (
                    {f"{_described(one.node_def)}: {size} bytes of {tensor.name}"} if size >= least_bytes else set()
                )
    return found


def optimised(built: Built, capability: str = "9.0", memory_gib: int = 80) -> tf.compat.v1.GraphDef:
    """Returns the graph of a step as Grappler leaves it, with a session's options, for a GPU of this capability."""
    with built.graph.as_default():
        for fetched in built.fetches:
            built.graph.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, fetched)
        described = tf.compat.v1.train.export_meta_graph(graph=built.graph)
    for node in described.graph_def.node:
        node.device = _WORKER.make_merged_spec(tf.DeviceSpec.from_string(node.device)).to_string() * bool(node.device)
    imagined = [
        _device("CPU", 0),
        *(_device("GPU", index, memory_gib, architecture=capability) for index in range(GPUS)),
    ]
    with_gpus = cluster.Cluster(devices=imagined)
    return tf_optimizer.OptimizeGraph(
        run_graph.session_config(built.config.devices, built.config.runtime),
        described,
        verbose=False,
        cluster=with_gpus,
    )


def layouts(nodes: tf.compat.v1.GraphDef) -> Counter[str]:
    """Counts the convolutions and their gradients by layout."""
    return Counter(node.attr["data_format"].s.decode() for node in nodes.node if node.op.startswith(_CONVOLUTIONS))


def transposes(nodes: tf.compat.v1.GraphDef) -> int:
    """Counts what changes the layout of images on GPUs."""
    return sum(node.op == "Transpose" and _is_gpu(node.device) for node in nodes.node)


def _is_gpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


def _device(kind: str, index: int, memory_gib: int = 80, **environment: str) -> Any:
    properties = device_properties_pb2.DeviceProperties(
        type=kind,
        frequency=1500,
        num_cores=132,
        memory_size=memory_gib << 30,
        bandwidth=2 * 10**9,
        environment=environment,
    )
    name = _WORKER.replace(device_type=kind, device_index=index).to_string()
    return device_properties_pb2.NamedDevice(properties=properties, name=name)


@functools.cache
def _registered(operation: str) -> list[Any]:
    return [one for one in kernels.get_registered_kernels_for_op(operation).kernel if not one.label]


def _kernel(node: Any) -> Any:
    """Returns the kernel that runs a node on a GPU, as FindKernelRegistration finds it (framework/op_kernel.cc)."""
    for device in ("GPU", "DEFAULT"):
        for kernel in _registered(node.op):
            if kernel.device_type == device and all(
                set(_types(node, rule.name)) <= set(rule.allowed_values.list.type) for rule in kernel.constraint
            ):
                return kernel
    return None


def _types(node: Any, name: str) -> list[int]:
    value = node.attr[name]
    return list(value.list.type) or [value.type]


def _described(node: Any) -> str:
    names = sorted(name for name, value in node.attr.items() if value.type or value.list.type)
    types = (tf.as_dtype(one).name for name in names for one in _types(node, name))
    return f"{node.op}[{', '.join(dict.fromkeys(types))}]"


def _names_of_inputs(operation: tf.Operation) -> Iterator[str]:
    """Yields the name of the argument of each input."""
    for argument in operation.op_def.input_arg:
        count = 1
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(operation.get_attr(argument.type_list_attr))
        yield from [argument.name] * count
