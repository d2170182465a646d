"""How many bytes a step sends between devices, or between processes, by formula. Imports no TensorFlow.

Payload only, counted once, where it is sent. What the runtime moves within one device and what a protocol adds are not
counted. On logical CPU devices nothing is copied; the figures are those of the same setting on real devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from variable_mgr.place import Place
from variable_mgr.placement import balance_by_bytes

if TYPE_CHECKING:
    from variable_mgr.manager import VariableSpec

FLOAT32_BYTES = 4  # every weight and statistic is float32
# The kinds of links between two devices: within a process, and between processes.
TO_DEVICE, TO_HOST, BETWEEN_DEVICES, NETWORK = "host to device", "device to host", "device to device", "network"
# The number of transfers and their bytes, by kind of link.
ByKind = Mapping[str, tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that all devices together send in one step; None if unknown.

    Attributes:
        read_bytes: weights that towers fetch from other devices.
        gradient_bytes: gradients on their way to where they are reduced, and their means on the way back.
        weight_bytes: weights that towers exchange with each other (per step, on average).
        activation_bytes: activations, and gradients of them, that towers exchange to compute divided layers together.
        by_kind: the number and the bytes of the transfers by kind of link; None if unknown.
    """

    read_bytes: int = 0
    gradient_bytes: int | None = 0
    weight_bytes: int | None = 0
    activation_bytes: int = 0
    by_kind: ByKind | None = dataclasses.field(default_factory=dict)

    @property
    def total_bytes(self) -> int | None:
        """Returns the sum, if all are known."""
        if self.gradient_bytes is None or self.weight_bytes is None:
            return None
        return self.read_bytes + self.gradient_bytes + self.weight_bytes + self.activation_bytes


@dataclasses.dataclass(frozen=True)
class DividedLayers:
    """The dense layers that end a model, of which each tower computes some columns for the images of all towers.

    Attributes:
        batch_per_tower: images.
        features: width of the input of the first layer.
        outputs: width of each layer.
        features_are_images: nothing before the first layer is trained, so the features need no gradient.
    """

    batch_per_tower: int
    features: int
    outputs: tuple[int, ...]
    features_are_images: bool = False

    def activation_bytes(self, towers: int) -> int:
        """Returns what all towers together send in a step, forward and backward.

        Each tower sends its features and then its columns of each layer, for all images, to all others. Of the logits
        it sends only those of the other tower's own images. Backward it sends as much, but not to images.
        """
        images = towers * self.batch_per_tower
        *hidden, logits = self.outputs
        features = images * self.features * (1 if self.features_are_images else 2)
        elements = features + 2 * (images * sum(hidden) + self.batch_per_tower * logits)
        return FLOAT32_BYTES * (towers - 1) * elements

    def activation_transfers(self, towers: int) -> int:
        """Returns how many tensors that are: from each tower to each other one, forward and backward."""
        tensors = (1 if self.features_are_images else 2) + 2 * len(self.outputs)
        return towers * (towers - 1) * tensors


def added(*parts: ByKind | None) -> dict[str, tuple[float, float]] | None:
    """Returns the sum of transfers by kind of link; None if a part is unknown."""
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        if part is None:
            return None
        for kind, (number, size) in part.items():
            before = total.get(kind, (0, 0))
            total[kind] = (before[0] + number, before[1] + size)
    return total


def over_servers(
    variables: Iterable[VariableSpec], place: Place, *, wire_bytes: int, training: bool = True, exchanges: int = 1
) -> dict[str, int]:
    """Returns the bytes per step by link, such as `worker 0 -> ps 1`.

    All variables go to every worker. A weight's gradient comes back from each, moving averages come from worker 0.

    Args:
        variables: those on the servers, in the order of their creation.
        place: of one worker.
        wire_bytes: size of one element of a gradient on the wire.
        training: whether anything comes back.
        exchanges: how often a worker fetches weights and sends gradients in a step.
    """
    variables = list(variables)
    sizes = [FLOAT32_BYTES * math.prod(variable.shape) for variable in variables]
    sent: Counter[str] = Counter()
    for variable, size, ps in zip(variables, sizes, balance_by_bytes(sizes, range(len(place.ps))), strict=True):
        for worker in range(place.workers):
            sent[f"ps {ps} -> worker {worker}"] += exchanges * size
            if training:
                back = exchanges * wire_bytes / FLOAT32_BYTES if variable.kind == "weight" else worker == 0
                sent[f"worker {worker} -> ps {ps}"] += round(size * back)
    return dict(sent)


def transfers_over_servers(
    variables: Iterable[VariableSpec], place: Place, *, training: bool = True, exchanges: int = 1
) -> int:
    """Returns the number of tensors per step that workers and parameter servers send each other: as `over_servers`."""
    variables = list(variables)
    to_workers = exchanges * len(variables) * place.workers
    weights = sum(variable.kind == "weight" for variable in variables)
    return to_workers + (exchanges * weights * place.workers + len(variables) - weights if training else 0)


def around_ring(size_bytes: float, place: Place) -> dict[str, int]:
    """Returns the bytes by link for reducing this many bytes around a ring of all towers of all workers.

    Each tower sends 2 (n-1)/n of them to the next one, and the last tower of a worker sends to the next worker.
    """
    towers = place.towers_in_total
    each = round(2 * (towers - 1) / towers * size_bytes)
    return {f"worker {i} -> worker {(i + 1) % place.workers}": each for i in range(place.workers)}


def busiest_server(sent: Mapping[str, int]) -> int | None:
    """Returns the bytes in and out of the parameter server that has most of them; None without servers."""
    of_server: Counter[str] = Counter()
    for link, size in sent.items():
        for end in link.split(" -> "):
            if end.startswith("ps "):
                of_server[end] += size
    return max(of_server.values(), default=None)


def weight_elements(variables: Iterable[VariableSpec]) -> list[int]:
    """Returns the number of elements of each weight."""
    return [math.prod(variable.shape) for variable in variables if variable.kind == "weight"]
