"""What a variable manager or a reduction sends where, read from the graph that it builds. Imports TensorFlow."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping

import tensorflow as tf

from benchmarks.training.optimizers import GradientDescent
from benchmarks.training.traffic import manager_on_real_devices, model_traffic
from models import building, specs
from models.model_spec import IMAGENET_CLASSES
from variable_mgr import factory
from variable_mgr.manager import Explanation, TowerUpdate, VariableManager
from variable_mgr.modifiers import Modifiers
from variable_mgr.place import Place, Turn
from variable_mgr.reductions.algorithms import find
from variable_mgr.traffic import Traffic

MODEL, BATCH = "vgg16", 64
GPUS = 4
HOST = "host"


@dataclasses.dataclass(frozen=True)
class Flow:
    """A step of a manager.

    Attributes:
        copies: the weights that each device or process holds, by its name in a picture.
        sent: what goes from where to where: `weights`, `gradients` or `means`.
        explained: as `run_bench.py explain` prints it, with the names of a picture.
        links: MB per step of the model by link between processes.
        traffic: of the model, between the devices of one process.
    """

    copies: Mapping[str, tuple[str, ...]]
    sent: frozenset[tuple[str, str, str]]
    explained: Explanation
    links: Mapping[tuple[str, str], float]
    traffic: Traffic | None


@dataclasses.dataclass(frozen=True)
class _Weight:
    """A small weight."""

    name: str
    shape: tuple[int, ...] = (16,)
    dtype: str = "float32"
    kind: str = "weight"

    def initial_value(self) -> tf.Tensor:
        return tf.zeros(self.shape)


@functools.cache
def model() -> building.Model:
    """Returns the model whose bytes the pictures state."""
    return building.build(specs.find(MODEL), data_format="NHWC", num_classes=IMAGENET_CLASSES, seed=0)


def in_one_process(manager: str, *, shared_on: str = "cpu", **modifiers: object) -> Flow:
    """Returns the flow on the GPUs of one host."""
    place = Place(tuple(f"/gpu:{tower}" for tower in range(GPUS)), "/cpu:0")
    shared = (place.host,) if shared_on == "cpu" else place.towers
    made = Modifiers(**modifiers)  # type: ignore[arg-type]
    copies, sent, explained = _built(manager, place, shared, made, ["weights"])
    on_real = manager_on_real_devices(manager, made, device="gpu", towers=GPUS, shared_on=shared_on)
    return Flow(copies, sent, explained, {}, model_traffic(on_real, model(), BATCH))


def explained(manager: str, **modifiers: object) -> Explanation:
    """Returns how data flows on the GPUs of one host."""
    return in_one_process(manager, **modifiers).explained  # type: ignore[arg-type]


def across_processes(manager: str, *, servers: int, workers: int = 2, gpus: int = 2, **modifiers: object) -> Flow:
    """Returns the flow over workers, each of which builds its own graph, and parameter servers."""
    made = Modifiers(**modifiers)  # type: ignore[arg-type]
    ps = tuple(f"/job:ps/task:{index}/cpu:0" for index in range(servers))
    copies: dict[str, tuple[str, ...]] = {}
    sent: set[tuple[str, str, str]] = set()
    for worker in reversed(range(workers)):  # worker 0 last: what it explains is shown
        job = f"/job:worker/task:{worker}"
        place = Place(
            tuple(f"{job}/gpu:{gpu}" for gpu in range(gpus)), f"{job}/cpu:0", ps=ps, workers=workers, worker=worker
        )
        own_copies, own_sent, explained = _built(manager, place, (), made, _weights(servers))
        copies |= own_copies
        sent |= own_sent
    return Flow(copies, frozenset(sent), explained, _links(manager, place, made), None)


def of_one_client(manager: str, *, servers: int, workers: int = 2, gpus: int = 2) -> Flow:
    """Returns the flow over workers whose towers one client drives, and parameter servers."""
    hosts = tuple(f"/job:worker/task:{worker}/cpu:0" for worker in range(workers) for _ in range(gpus))
    towers = tuple(host.replace("cpu:0", f"gpu:{number % gpus}") for number, host in enumerate(hosts))
    ps = tuple(f"/job:ps/task:{index}/cpu:0" for index in range(servers))
    place = Place(towers, "/job:worker/task:0/cpu:0", ps=ps, hosts=hosts)
    copies, sent, explained = _built(manager, place, (), Modifiers(), _weights(servers))
    return Flow(copies, sent, explained, _links(manager, place, Modifiers()), None)


def _weights(servers: int) -> list[str]:
    """Returns the names of weights in a picture: one for each server."""
    return [f"weights {letter}" for letter in "AB"[:servers]] or ["weights"]


def _links(manager: str, place: Place, modifiers: Modifiers) -> dict[tuple[str, str], float]:
    links = factory.make(manager, place, shared_devices=(), modifiers=modifiers).links(model().variables)
    return {(source, target): size / 1e6 for link, size in links.items() for source, target in [link.split(" -> ")]}


def of_reduction(algorithm: str, *, workers: int = 1) -> frozenset[tuple[str, str, str]]:
    """Returns what an algorithm sends to reduce one tensor over the GPUs."""
    towers = [f"/gpu:{tower}" for tower in range(GPUS)]
    hosts: tuple[str, ...] = ()
    if workers > 1:
        each = GPUS // workers
        towers = [f"/job:worker/task:{tower // each}/gpu:{tower % each}" for tower in range(GPUS)]
        hosts = tuple(f"/job:worker/task:{tower // each}/cpu:0" for tower in range(GPUS))
    place = Place(tuple(towers), hosts[0] if hosts else "/cpu:0", hosts=hosts)
    with tf.Graph().as_default() as graph:
        values = []
        for tower, device in enumerate(towers):
            with tf.device(device):
                values.append(tf.raw_ops.Neg(x=tf.zeros([16]), name=f"gradients_{tower}"))
        for device, value in zip(towers, find(algorithm).mean(values, place, Turn(0, 0)), strict=True):
            with tf.device(device):
                tf.raw_ops.Neg(x=value)
        return frozenset(_sent(graph, process_only=False))


def of_dense_layers(gpus: int, *, divided: bool) -> Traffic:
    """Returns what `replicated` sends in a step of the model if its dense layers are divided over the GPUs, or not."""
    modifiers = Modifiers(all_reduce_spec="psgpu", fc_model_parallel=divided)
    manager = manager_on_real_devices("replicated", modifiers, device="gpu", towers=gpus, shared_on="gpu")
    return model_traffic(manager, model(), BATCH, divided_over=gpus if divided else 0)


def _built(
    manager: str, place: Place, shared: tuple[str, ...], modifiers: Modifiers, names: list[str]
) -> tuple[dict[str, tuple[str, ...]], frozenset[tuple[str, str, str]], Explanation]:
    """Builds a step of small weights, and returns its copies, what it sends, and how the manager explains it."""
    with tf.Graph().as_default() as graph:
        made: VariableManager = factory.make(manager, place, shared_devices=shared, modifiers=modifiers)
        weights = [_Weight(name.replace(" ", "_")) for name in names]
        made.create(weights)
        updates = []
        for tower, device in enumerate(place.towers):
            values = made.read(tower)
            with tf.device(device):
                gradients = [tf.raw_ops.Neg(x=value, name=f"gradients_{tower}") for value in values]
            updates.append(TowerUpdate({w.name: g for w, g in zip(weights, gradients, strict=True)}, {}))
        made.apply(updates, GradientDescent(0.1, 0.0))
        copies: dict[str, tuple[str, ...]] = {}
        for entry in made.placed():
            where = name_of(entry.device)
            copies[where] = (*copies.get(where, ()), entry.name.replace("_", " "))
        return copies, frozenset(_sent(graph, process_only=place.in_cluster)), _named(made.explain())


def _sent(graph: tf.Graph, *, process_only: bool) -> Iterator[tuple[str, str, str]]:
    """Yields every transfer of a tensor between devices, or only those between processes."""
    for operation in graph.get_operations():
        for tensor in operation.inputs:
            source, target = name_of(tensor.op.device), name_of(operation.device)
            if process_only:
                source, target = (re.sub(r", GPU \d+$", "", name) for name in (source, target))
            if source != target and tensor.dtype != tf.resource and tensor.op.type != "Const":
                yield source, target, _what(tensor)


def _what(tensor: tf.Tensor) -> str:
    """Returns what a tensor holds: weights as they are stored, a mean of gradients, or gradients and their sums."""
    seen, remaining = set(), [tensor.op]
    while remaining:
        operation = remaining.pop()
        if operation.type in ("ReadVariableOp", "QueueDequeueV2"):
            return "weights"
        if operation.type == "RealDiv":
            return "means"
        if operation.name in seen or operation.name.startswith("gradients_"):
            continue
        seen.add(operation.name)
        remaining += [source.op for source in operation.inputs]
    return "gradients"


def name_of(device: str) -> str:
    """Returns the name of a device in a picture: `GPU 0`, `host`, `worker 0, GPU 1`, `worker 0`, `ps 0`."""
    found = tf.DeviceSpec.from_string(device)
    process = f"{found.job} {found.task}" if found.job else ""
    unit = f"GPU {found.device_index}" if found.device_type == "GPU" else ""
    return ", ".join(filter(None, (process, unit))) or HOST


def _named(explained: Explanation) -> Explanation:
    """Returns the explanation with devices named as in a picture."""

    def named(text: str) -> str:
        return re.sub(r"/(?:job|gpu|cpu)[\w:/]*", lambda found: name_of(found[0]).replace(HOST, f"the {HOST}"), text)

    return dataclasses.replace(explained, weights=named(explained.weights), gradients=named(explained.gradients))
