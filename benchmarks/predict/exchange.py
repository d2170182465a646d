"""What a step computes and exchanges: a model's parts, and stages of links from a manager's own `transfers()`.

All devices, and all hosts, do the same, so one device of one host stands for all, with its share of common links. Of
hosts with parameter servers it is the one whose server has most to do. Imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.cluster import cluster_spec
from benchmarks.cluster.cluster_spec import Cluster, Task
from benchmarks.config.variable_update import Variables
from benchmarks.errors import UsageError
from benchmarks.graph.sent_bytes import manager_on_real_devices
from benchmarks.predict.hosts import (
    BETWEEN_GPUS,
    COPIES,
    HOST_MEMORY,
    LOOPBACK,
    NCCL_1,
    NETWORK_IN,
    NETWORK_OUT,
    PCIE_DOWN,
    PCIE_UP,
)
from benchmarks.predict.step_graph import Exchange, Hop, LayerShare, Layout, Stage, When, shares
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.training import flop_count
from models import building, specs
from models.building import ModelVariable
from variable_mgr import factory
from variable_mgr.catalog import IN_GRAPH, MANAGERS, WorksIn
from variable_mgr.manager import VariableManager
from variable_mgr.transfers import FLOAT32_BYTES, Transfer, by_kind, by_link, summed, weight_elements


def exchange_of(
    variables: Variables,
    layout: Layout,
    model_variables: Sequence[ModelVariable],
    *,
    nccl_1: bool = False,
    on_cpus: bool = False,
) -> Exchange:
    """Returns what a configuration exchanges.

    Args:
        variables: the manager and its modifiers.
        layout: of devices and hosts.
        model_variables: of the model.
        nccl_1: NCCL is version 1, as in 2017: a device does not compute while it reduces.
        on_cpus: the device is the host's CPU: it does not compute while it sends, receives or adds.

    Raises:
        UsageError: the manager does not work so, or does not state what it sends.
    """
    modifiers, name = variables.modifiers, variables.variable_update
    weights = FLOAT32_BYTES * sum(weight_elements(model_variables))
    if layout.hosts == 1 and WorksIn.ONE in MANAGERS[name].processes:
        if on_cpus:
            return Exchange()  # the one device has all variables
        manager = manager_on_real_devices(Devices(device="gpu", num_devices=layout.devices), variables)
        sent, is_old = manager.transfers(model_variables), nccl_1 and modifiers.uses_nccl
        reads, gradients = _in_one_process(sent, layout.devices, weights, variables, with_nccl_1=is_old)
    else:
        sent = _in_cluster(variables, layout).transfers(model_variables)
        if not by_link(sent):
            raise UsageError(f"predict has no model of {name} on several hosts: it does not state what it sends.")
        reads, gradients = _between_hosts(sent, layout, weights, variables, on_cpus=on_cpus)
    if on_cpus:
        reads, gradients = _by_cores(reads), _by_cores(gradients)
    when: When = "as they come"
    if modifiers.asynchronous:
        when = "without waiting"
    elif modifiers.staged_vars or modifiers.relaxed_consistency:
        when = "a step later"
    elif modifiers.gradient_repacking or modifiers.local_sgd_steps or on_cpus:
        when = "all at the end"  # the cores of a CPU compute first
    return Exchange(reads, gradients, when, modifiers.local_sgd_steps or 1)


def _in_one_process(
    sent: Sequence[Transfer], devices: int, weights: int, variables: Variables, *, with_nccl_1: bool
) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    reads = _by_link_of_device([one for one in sent if one.what == "read"], devices)
    others = _by_link_of_device([one for one in sent if one.what != "read"], devices)
    stages: list[Stage] = []
    for link in (BETWEEN_GPUS, PCIE_UP, PCIE_DOWN):
        if others.get(link):
            used = NCCL_1 if with_nccl_1 and link == BETWEEN_GPUS else link
            stages.append((Hop(used, others[link], _messages(variables, devices), on_device=used == NCCL_1),))
        if link == PCIE_UP and others.get(link):
            # The host reads all gradients; it writes their mean, or reads and writes the weights.
            extra = 2 if MANAGERS[variables.variable_update].one_copy else 1
            stages.append((Hop(HOST_MEMORY, devices * others[link] + extra * weights, messages=0),))
    return tuple((Hop(link, size),) for link, size in reads.items() if size), tuple(stages)


def _messages(variables: Variables, towers: int) -> int:
    """Returns how many messages follow each other to reduce one tensor."""
    spec = variables.modifiers.all_reduce_spec or ""
    return 2 * (towers - 1) if spec.startswith(("xring", "collective", "nccl")) else 1


def _by_link_of_device(sent: Sequence[Transfer], devices: int) -> dict[str, float]:
    return {kind: size / devices for kind, (_, size) in (by_kind(sent) or {}).items()}


def _in_cluster(variables: Variables, layout: Layout) -> VariableManager:
    """Makes the manager of a worker of a cluster, or of the client that drives all."""
    name = variables.variable_update
    hosts = tuple(f"host_{number}:1" for number in range(layout.hosts))
    servers = hosts[: layout.servers or layout.hosts] if WorksIn.SERVERS in MANAGERS[name].processes else ()
    cluster = Cluster(ps=servers, workers=hosts, own=Task("worker", 0))
    place = cluster_spec.place("gpu", layout.devices, cluster=cluster, manager=name)
    try:
        return factory.make(name, place, shared_devices=(place.host,), modifiers=variables.modifiers)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _between_hosts(
    sent: Sequence[Transfer], layout: Layout, weights: int, variables: Variables, *, on_cpus: bool
) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    ends = ((end, one.size_bytes) for one in sent for end in (one.source, one.target))
    loads = _summed((end, size) for end, size in ends if end.startswith("ps "))
    if not loads:
        return (), _around_ring(max(by_link(sent).values()), layout, on_cpus=on_cpus)
    devices = layout.devices
    server = max(loads, key=lambda end: loads[end])
    worker = server.replace("ps", "worker")

    def hop(link: str, among: Sequence[Transfer], **fields: Any) -> Hop:
        by_layer = _summed((one.variable.rpartition("/")[0], one.size_bytes) for one in among)
        return Hop(link, sum(by_layer.values()), by_layer=by_layer, **fields)

    def crossing(among: Sequence[Transfer]) -> Stage:
        """Returns what this host sends to others and gets from them, and what its own processes send each other."""
        own = {worker, server}
        return (
            hop(NETWORK_OUT, [one for one in among if one.source in own and one.target not in own]),
            hop(NETWORK_IN, [one for one in among if one.target in own and one.source not in own]),
            hop(LOOPBACK, [one for one in among if {one.source, one.target} == own]),
        )

    # One client that does not wait sends the gradients of each tower.
    takes_mean = not (variables.modifiers.asynchronous and variables.variable_update in IN_GRAPH)
    read = [one for one in sent if one.what == "read"]
    back = [one for one in sent if one.what != "read"]
    wire = sum(one.size_bytes for one in back if one.source == worker)
    added = [one for one in back if one.target == server]
    # The server reads all gradients, and reads and writes its weights.
    added += [one for one in read if (one.source, one.target) == (server, worker) for _ in range(2)]
    to_server: Sequence[Stage] = (
        (Hop(BETWEEN_GPUS, (devices - 1) / devices * weights if takes_mean else 0),),  # of a worker's own gradients
        (Hop(PCIE_UP, wire / devices),),
        crossing(back),
        (hop(HOST_MEMORY, added, messages=0),),
    )
    to_worker: Sequence[Stage] = (crossing(read), (Hop(PCIE_DOWN, weights),))
    to_worker, to_server = (
        tuple(used for stage in stages if (used := tuple(hop for hop in stage if hop.size_bytes)))
        for stages in (to_worker, to_server)
    )
    return (to_worker, to_server) if MANAGERS[variables.variable_update].one_copy else ((), (*to_server, *to_worker))


def _by_cores(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Returns the stages of a host without GPUs: its cores copy what its processes send and get, and add."""
    found: list[Stage] = []
    for stage in stages:
        sent = [hop for hop in stage if hop.link in (NETWORK_OUT, NETWORK_IN)]
        inside = [hop for hop in stage if hop.link == LOOPBACK]
        copied = [*sent, *inside, *inside, *(hop for hop in stage if hop.link == HOST_MEMORY)]  # both ends are here
        if copied:
            by_layer = _summed((layer, size) for hop in copied for layer, size in (hop.by_layer or {}).items())
            size = sum(hop.size_bytes for hop in copied)
            found.append((*sent, Hop(COPIES, size, on_device=True, by_layer=by_layer or None)))
    return tuple(found)


def _summed(sizes: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns the sums of sizes by key."""
    return {layer: size for layer, (_, size) in summed((layer, 1, size) for layer, size in sizes).items()}


def _around_ring(size_bytes: float, layout: Layout, *, on_cpus: bool) -> tuple[Stage, ...]:
    """Returns the stages of an all-reduce of all devices: each sends as much to the next, the last to the next host.

    NCCL has a tree between hosts where there are many, which sends as much and has fewer messages.
    """
    messages = 2 * (layout.hosts - 1 if on_cpus else math.ceil(math.log2(layout.hosts)))
    hops = [Hop(link, size_bytes, messages) for link in (NETWORK_OUT, NETWORK_IN)]
    if layout.devices == 1:
        return (tuple(hops),)
    # Both links send at the same time, but a message passes first the one and then the other.
    within = Hop(BETWEEN_GPUS, 0.0, 2 * (layout.devices - 1))
    return ((*hops, Hop(BETWEEN_GPUS, size_bytes, messages=0)), (within,))


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """A model's variables, its parts, its operations per image forward and backward, and the bytes of its gradients."""

    variables: Sequence[ModelVariable]
    parts: Sequence[LayerShare]
    flops_per_image: float
    gradient_bytes: int


def model_parts(name: str, num_classes: int | None) -> ModelParts:
    """Builds a model for so many classes (None: as many as it usually has), and counts its layers.

    Raises:
        UsageError: an operation cannot be counted, or there is nothing to compute.
    """
    spec = specs.find_model(name)
    model = building.build(spec, data_format="NHWC", num_classes=num_classes or spec.usual_outputs, seed=0)
    try:
        layers = flop_count.by_layer(model)
    except ValueError as error:
        raise UsageError(f"predict cannot divide the work of a step over layers: {name} has {error}") from error
    forward, gradients = sum(layer.forward_flops for layer in layers), sum(layer.weight_bytes for layer in layers)
    if not forward:
        raise UsageError(f"{name} has no convolution or dense layer, so nothing is known of its time.")
    return ModelParts(model.variables, shares(layers), 3.0 * forward, gradients)
