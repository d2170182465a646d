"""Models of `keras.applications` under the names that the field uses: MobileNetV2, EfficientNetV2-S, ConvNeXt-T."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from models.model_spec import Builder, ModelSpec

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# Before the name of a model of `keras.applications`.
APPLICATION = "keras:"


def builder(name: str) -> Builder:
    """Returns the builder, which can be pickled, of a model that other code builds: `keras:NAME`, or a function."""
    return functools.partial(_build, name=name)


def _build(images: Tensor, layers: Layers, num_classes: int, *, name: str) -> Tensor:
    from models import from_keras  # imports Keras

    return from_keras.build(images, layers, num_classes, name=name)


SPECS = (
    ModelSpec(
        name="mobilenet",
        title="MobileNetV2",
        build=builder("keras:MobileNetV2"),
        image_size=224,
        has_conv1x1=True,
        has_batch_norm=True,
        has_larger_convolutions=False,
        batch_on_gpu=64,
        batch_on_cpu=16,
        learning_rate=0.01,
        parameters=3_504_872,
        gflop_per_image=0.6,
        source="Sandler et al., 'MobileNetV2', arXiv:1801.04381, table 4: 3.4 M parameters, 300 M multiply-adds; "
        "torchvision's table: 3,504,872 parameters, 0.30 G",
    ),
    ModelSpec(
        name="efficientnetv2_s",
        title="EfficientNetV2-S",
        build=builder("keras:EfficientNetV2S"),
        image_size=384,
        has_conv1x1=True,
        has_batch_norm=True,
        batch_on_gpu=32,
        batch_on_cpu=2,
        learning_rate=0.01,
        parameters=21_458_488,
        gflop_per_image=16.8,
        source="Tan and Le, 'EfficientNetV2', arXiv:2104.00298, table 7: 22 M parameters, 8.8 G; torchvision's table: "
        "21,458,488 parameters, 8.37 G multiply-adds at 384 pixels",
    ),
    ModelSpec(
        name="convnext_tiny",
        title="ConvNeXt-T",
        build=builder("keras:ConvNeXtTiny"),
        image_size=224,
        nchw=False,
        has_larger_convolutions=False,
        batch_on_gpu=64,
        batch_on_cpu=4,
        learning_rate=0.003,
        parameters=28_589_128,
        gflop_per_image=8.9,
        source="Liu et al., 'A ConvNet for the 2020s', arXiv:2201.03545, table 1: 29 M parameters, 4.5 G; "
        "torchvision's table: 28,589,128 parameters, 4.46 G multiply-adds",
    ),
)
