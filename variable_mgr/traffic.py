"""How many bytes cross between devices in a step, by formula. Imports no TensorFlow.

A byte is counted once, where it is sent. What the runtime moves within one device is not counted; on logical CPU
devices nothing is copied at all, and the figures say what the same setting would send between real ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from variable_mgr.modifiers import Modifiers
from variable_mgr.placement import even_parts, group_small
from variable_mgr.reductions import all_reduce_spec
from variable_mgr.reductions.algorithms import find

FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that all devices together send in one step; None where that is not known.

    Attributes:
        read_bytes: weights that towers fetch from other devices.
        gradient_bytes: gradients on their way to where they are reduced, and their means on the way back.
        weight_bytes: weights that towers exchange with each other (per step, on average).
        activation_bytes: activations, and gradients of them, that towers exchange to compute divided layers together.
    """

    read_bytes: int = 0
    gradient_bytes: int | None = 0
    weight_bytes: int | None = 0
    activation_bytes: int = 0

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
        features: width of what the first of them reads.
        outputs: width of each.
    """

    batch_per_tower: int
    features: int
    outputs: tuple[int, ...]

    def activation_bytes(self, towers: int) -> int:
        """Returns what all towers together send in a step, forward and, as much again, backward.

        Every tower sends its features to all others, then its columns of each layer, for all images; but of the logits
        only those of the other tower's own images.
        """
        images = towers * self.batch_per_tower
        *hidden, logits = self.outputs
        elements = (towers - 1) * (images * (self.features + sum(hidden)) + self.batch_per_tower * logits)
        return 2 * FLOAT32_BYTES * elements


def traffic(
    manager: str,
    modifiers: Modifiers,
    towers: int,
    weights_elements: Sequence[int],
    *,
    shared_on_host: bool,
    divided: DividedLayers | None = None,
) -> Traffic:
    """Returns what one step of a manager sends.

    Args:
        manager: a key of `variable_mgr.catalog.MANAGERS`.
        modifiers: what is changed about it.
        towers: how many, each on a device of its own.
        weights_elements: elements of each weight that is not divided; all are float32.
        shared_on_host: shared variables and averaging are on the host, not on the towers' devices.
        divided: the layers whose weights are divided over the towers, if any.
    """
    of_the_rest = _traffic(manager, modifiers, towers, weights_elements, shared_on_host)
    return dataclasses.replace(of_the_rest, activation_bytes=divided.activation_bytes(towers) if divided else 0)


def _traffic(
    manager: str, modifiers: Modifiers, towers: int, weights_elements: Sequence[int], shared_on_host: bool
) -> Traffic:
    all_bytes = FLOAT32_BYTES * sum(weights_elements)
    default = "pscpu" if shared_on_host else "psgpu"
    if manager == "parameter_server":
        away = towers if shared_on_host else towers - 1  # towers that find a variable on another device
        return Traffic(read_bytes=away * all_bytes, gradient_bytes=away * all_bytes)
    if manager == "local_sgd":
        averaged = _reduced_bytes(default, weights_elements, towers, FLOAT32_BYTES)
        every = modifiers.local_sgd_steps or 1
        return Traffic(weight_bytes=None if averaged is None else averaged // every)
    if manager == "independent":
        return Traffic()
    spec = "collective" if manager == "collective_all_reduce" else modifiers.all_reduce_spec or default
    element_bytes = modifiers.wire_bytes
    if modifiers.gradient_repacking:
        weights_elements = even_parts(sum(weights_elements), modifiers.gradient_repacking)
    if modifiers.agg_small_grads_max_bytes:
        sizes = [FLOAT32_BYTES * elements for elements in weights_elements]
        groups = group_small(sizes, modifiers.agg_small_grads_max_bytes, modifiers.agg_small_grads_max_group)
        weights_elements = [sum(weights_elements[index] for index in group) for group in groups]
    return Traffic(gradient_bytes=_reduced_bytes(spec, weights_elements, towers, element_bytes))


def _reduced_bytes(spec: str, weights_elements: Sequence[int], towers: int, element_bytes: int) -> int | None:
    """Returns what a reduction sends; None if it uses an algorithm that does not say."""
    if towers == 1:
        return 0
    ranges = all_reduce_spec.parse(spec)
    total = 0.0
    for elements in weights_elements:
        sent = find(all_reduce_spec.choose(ranges, elements).algorithm).sent
        if sent is None:
            return None
        total += sent(towers) * elements * element_bytes
    return round(total)
