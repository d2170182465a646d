"""A model with almost no arithmetic: its step time is the cost of everything else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import Layers, Tensor


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = layers.dense(layers.flatten(images), 1, name="fc1")
    x = layers.dense(x, 4096, name="fc2")
    return layers.classifier(x, num_classes)


_TRIVIAL = ModelSpec(
    name="trivial",
    title="three dense layers, to measure everything but the model",
    build=build,
    image_size=227,
    has_larger_convolutions=False,
    batch_on_gpu=32,
    batch_on_cpu=32,
    learning_rate=1e-4,
    parameters=154_588 + 8_192 + 4_097_000,
    gflop_per_image=0.0085,
    source="counted by hand: 227*227*3 -> 1 -> 4096 -> classes",
)
SPECS = (
    _TRIVIAL,
    dataclasses.replace(
        _TRIVIAL,
        name="trivial_cifar10",
        title="three dense layers, for CIFAR-10",
        variant_of="trivial",
        data_name="cifar10",
        image_size=32,
        classes=10,
        learning_rate=1e-3,
        parameters=3_073 + 8_192 + 40_970,
        gflop_per_image=0.0000963,
        source="counted by hand: 32*32*3 -> 1 -> 4096 -> 10",
    ),
)
