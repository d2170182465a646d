"""A training step as tasks: layers computed forward and backward, and what is exchanged. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from benchmarks.predict.hosts import NETWORK_IN, NETWORK_OUT, LinkRate
from benchmarks.predict.simulation import Task

DEVICE = "device"
# Consecutive layers with less than so large a part of all operations, and of all weights, are one.
_PARTS = 16
_FORWARD = 1 / 3  # the backward pass has twice as many operations


When = Literal["as they come", "all at the end", "a step later", "without waiting"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many devices a host has, how many hosts there are, and how many of them also run a parameter server."""

    devices: int
    hosts: int = 1
    servers: int = 0

    @property
    def total(self) -> int:
        """Returns the number of devices."""
        return self.devices * self.hosts


@dataclasses.dataclass(frozen=True)
class LayerShare:
    """Consecutive layers: their share of a model's operations, and that of its weights, and the names of all."""

    name: str
    work: float
    weights: float
    layers: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Hop:
    """What one device, or its host, sends over a link in a step.

    Attributes:
        link: its name in `hosts.link_rates`.
        size_bytes: of all layers together.
        messages: of each layer, each with the link's latency. Several follow each other and occupy the link.
        on_device: kernels of the device send, so it does not compute meanwhile.
        by_layer: how much of it belongs to each layer; None: as much as the layer has of all weights.
    """

    link: str
    size_bytes: float
    messages: float = 1
    on_device: bool = False
    by_layer: Mapping[str, float] | None = None

    def size_of(self, part: LayerShare) -> float:
        """Returns the bytes of a part of the model."""
        if self.by_layer is None:
            return part.weights * self.size_bytes
        return sum(self.by_layer.get(layer, 0.0) for layer in part.layers)


Stage = tuple[Hop, ...]  # at the same time


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The stages of an exchange, one after the other for each layer.

    Attributes:
        reads: of weights, before the forward pass.
        gradients: of gradients to where they are added, and of their mean, or of new weights, back.
        when: gradients are sent as they come; all at the end; a step later, so nothing in the step waits; or as they
            come, and no device waits for the others.
        every: steps, of which only one exchanges; bytes are already the mean of all.
    """

    reads: tuple[Stage, ...] = ()
    gradients: tuple[Stage, ...] = ()
    when: When = "as they come"
    every: int = 1


def shares(layers: Sequence[tuple[str, int, int]]) -> list[LayerShare]:
    """Returns the parts of a model, given name, operations and bytes of weights of each layer in forward order.

    Small layers are joined with those before them. So a step of any model has some tens of tasks.
    """
    all_work, all_weights = sum(flops for _, flops, _ in layers), sum(size for *_, size in layers)
    joined: list[LayerShare] = []
    known: set[str] = set()
    for name, flops, size in layers:
        share = LayerShare(name, flops / all_work, size / all_weights, frozenset({name} - known))
        known.add(name)
        last = joined[-1] if joined else None
        if last and (not flops or max(last.work, last.weights) < 1 / _PARTS):
            together = last.work + share.work, last.weights + share.weights
            joined[-1] = LayerShare(last.name, *together, last.layers | share.layers)
        else:
            joined.append(share)
    return joined


def tasks_of_step(
    parts: Sequence[LayerShare], exchange: Exchange, rates: Mapping[str, LinkRate], compute_seconds: float
) -> list[Task]:
    """Returns the tasks of a step on one device and its links.

    Gradients become ready from the last layer to the first. Each is sent as soon as it is ready and its link is free.

    Args:
        parts: of the model, in forward order.
        exchange: what is sent.
        rates: of each link.
        compute_seconds: of the device, forward and backward.
    """
    tasks: list[Task] = []

    def send(label: str, stages: Sequence[Stage], part: LayerShare, after: tuple[str, ...]) -> tuple[str, ...]:
        for number, stage in enumerate(stages):
            names = []
            for hop in stage:
                rate, size = rates[hop.link], hop.size_of(part)
                name, resource = f"{label} {number} {hop.link} {part.name}", DEVICE if hop.on_device else hop.link
                seconds, latency = size / rate.bytes_per_sec, hop.messages * rate.latency_seconds / exchange.every
                if hop.messages > 1:
                    seconds, latency = seconds + latency, 0.0
                tasks.append(Task(name, resource, seconds, after, latency, resource in (NETWORK_IN, NETWORK_OUT)))
                names.append(name)
            after = tuple(names)
        return after

    waits = exchange.when != "a step later"
    read = [send("read", exchange.reads, part, ()) for part in parts]
    before: tuple[str, ...] = ()
    for part, needed in zip(parts, read, strict=True):
        name = f"forward {part.name}"
        tasks.append(Task(name, DEVICE, _FORWARD * part.work * compute_seconds, (*before, *(needed if waits else ()))))
        before = (name,)
    for part in reversed(parts):
        name = f"backward {part.name}"
        tasks.append(Task(name, DEVICE, (1 - _FORWARD) * part.work * compute_seconds, before))
        before = (name,)
        if exchange.when != "all at the end":
            send("send", exchange.gradients, part, before if waits else ())
    if exchange.when == "all at the end":
        for part in reversed(parts):
            send("send", exchange.gradients, part, before)
    return tasks
