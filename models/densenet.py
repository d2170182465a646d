"""DenseNet for 32x32 pixels (Huang et al. 2016, arXiv:1608.06993, table 2), without bottleneck and compression."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_FIRST_CHANNELS = 16
_BLOCKS = 3


def build(images: Tensor, layers: Layers, num_classes: int, *, depth: int, growth: int) -> Tensor:
    """Returns logits. Of `depth` layers with weights, four are not in the blocks; each other adds `growth` channels."""
    channels = _FIRST_CHANNELS
    x = layers.conv_alone(images, channels, 3, name="stem")
    for block in range(1, _BLOCKS + 1):
        for number in range(1, (depth - 4) // _BLOCKS + 1):
            name = f"block{block}_layer{number}"
            y = layers.conv_alone(layers.bn_relu(x, name=name), growth, 3, name=f"{name}_conv")
            x = layers.concat([x, y], name=name)
            channels += growth
        if block < _BLOCKS:
            name = f"transition{block}"
            x = layers.conv_alone(layers.bn_relu(x, name=name), channels, 1, name=f"{name}_conv")
            x = layers.pool(x, "avg", 2, 2, name=f"{name}_pool")
    return layers.classifier(layers.global_average(layers.bn_relu(x, name="final")), num_classes)


def _spec(
    name: str, depth: int, growth: int, *, batch_on_cpu: int, rate: float, parameters: int, gflop: float, paper: str
) -> ModelSpec:
    return ModelSpec(
        name=name,
        title=f"DenseNet-{depth}, growth {growth}, for CIFAR-10",
        build=functools.partial(build, depth=depth, growth=growth),
        data_name="cifar10",
        image_size=32,
        classes=10,
        has_conv1x1=True,
        has_batch_norm=True,
        batch_on_gpu=64,
        batch_on_cpu=batch_on_cpu,
        learning_rate=rate,
        parameters=parameters,
        gflop_per_image=gflop,
        source="Huang et al., 'Densely connected convolutional networks', arXiv:1608.06993, table 2: "
        f"{paper} M parameters; operations counted by hand",
    )


SPECS = (
    _spec("densenet40_k12", 40, 12, batch_on_cpu=32, rate=0.05, parameters=1_019_722, gflop=0.530, paper="1.0"),
    _spec("densenet100_k12", 100, 12, batch_on_cpu=8, rate=0.02, parameters=6_979_642, gflop=3.54, paper="7.0"),
    _spec("densenet100_k24", 100, 24, batch_on_cpu=4, rate=0.01, parameters=27_249_082, gflop=13.8, paper="27.2"),
)
