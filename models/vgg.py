"""VGG (Simonyan and Zisserman 2014, arXiv:1409.1556, table 1): configurations A, D and E."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# With the gain of He et al. the first loss is about 13, and the first steps overflow.
_STYLE = Style(kernel_gain=1.3)
_FILTERS = (64, 128, 256, 512, 512)


def build(images: Tensor, layers: Layers, num_classes: int, *, convolutions: tuple[int, ...]) -> Tensor:
    """Returns logits; `convolutions` per block."""
    layers = layers.styled(_STYLE)
    x = images
    for block, (count, filters) in enumerate(zip(convolutions, _FILTERS, strict=True), start=1):
        for number in range(1, count + 1):
            x = layers.conv(x, filters, 3, name=f"block{block}_conv{number}")
        x = layers.pool(x, "max", 2, 2, name=f"block{block}_pool")
    x = layers.flatten(x)
    for number in (1, 2):
        x = layers.dropout(layers.dense(x, 4096, name=f"fc{number}"), name=f"dropout{number}")
    return layers.classifier(x, num_classes)


_PAPER = "Simonyan and Zisserman, 'Very deep convolutional networks', arXiv:1409.1556, table 2"
_VGG16 = ModelSpec(
    name="vgg16",
    title="VGG-16",
    build=functools.partial(build, convolutions=(2, 2, 3, 3, 3)),
    image_size=224,
    batch_on_gpu=64,
    batch_on_cpu=4,
    learning_rate=0.002,
    parameters=138_357_544,
    gflop_per_image=30.9,
    source=f"{_PAPER}: 138 M parameters; 15.5 G multiply-adds",
)
SPECS = (
    dataclasses.replace(
        _VGG16,
        name="vgg11",
        title="VGG-11",
        build=functools.partial(build, convolutions=(1, 1, 2, 2, 2)),
        batch_on_cpu=8,
        parameters=132_863_336,
        gflop_per_image=15.2,
        source=f"{_PAPER}: 133 M parameters; 7.61 G multiply-adds counted by hand",
    ),
    _VGG16,
    dataclasses.replace(
        _VGG16,
        name="vgg19",
        title="VGG-19",
        build=functools.partial(build, convolutions=(2, 2, 4, 4, 4)),
        parameters=143_667_240,
        gflop_per_image=39.3,
        source=f"{_PAPER}: 144 M parameters; 19.6 G multiply-adds counted by hand",
    ),
)
