"""ResNet for 32x32 pixels: v1 (He et al. 2015, arXiv:1512.03385, section 4.2) and v2 (arXiv:1603.05027).

The shortcuts have no parameters.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec
from models.resnet import PRE_ACTIVATION

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_FILTERS = (16, 32, 64)


def build(images: Tensor, layers: Layers, num_classes: int, *, blocks_per_stage: int) -> Tensor:
    """Returns logits. There are 6 * `blocks_per_stage` + 2 layers with weights."""
    x = layers.conv_bn(images, _FILTERS[0], 3, name="stem")
    for stage, filters in enumerate(_FILTERS, start=1):
        for block in range(1, blocks_per_stage + 1):
            name, stride = f"stage{stage}_block{block}", 2 if block == 1 and stage > 1 else 1
            shortcut = _shortcut(x, layers, filters, name) if stride > 1 else x
            y = layers.conv_bn(x, filters, 3, stride=stride, padding="symmetric", name=f"{name}_conv1")
            y = layers.conv_bn(y, filters, 3, relu=False, name=f"{name}_conv2")
            x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)


def build_v2(images: Tensor, layers: Layers, num_classes: int, *, blocks_per_stage: int) -> Tensor:
    """Returns logits. Pre-activations; every shortcut starts before its block's."""
    before = layers.styled(PRE_ACTIVATION)
    x = layers.conv_bn(images, _FILTERS[0], 3, name="stem")
    for stage, filters in enumerate(_FILTERS, start=1):
        for block in range(1, blocks_per_stage + 1):
            name, stride = f"stage{stage}_block{block}", 2 if block == 1 and stage > 1 else 1
            shortcut = _shortcut(x, layers, filters, name) if stride > 1 else x
            y = before.bn_relu(x, name=name)
            y = layers.conv_bn(y, filters, 3, stride=stride, padding="symmetric", name=f"{name}_conv1")
            y = layers.conv_alone(y, filters, 3, name=f"{name}_conv2")
            x = layers.add(y, shortcut, name=name)
    return layers.classifier(layers.global_average(before.bn_relu(x, name="final")), num_classes)


def _shortcut(x: Tensor, layers: Layers, filters: int, name: str) -> Tensor:
    """Every other pixel, with channels of zeros appended."""
    return layers.pad_channels(layers.pool(x, "avg", 1, 2, name=f"{name}_every_other"), filters)


def _spec(
    name: str, title: str, blocks_per_stage: int, *, rate: float = 0.05, parameters: int, gflop: float, source: str
) -> ModelSpec:
    return ModelSpec(
        name=name,
        title=f"{title}, for CIFAR-10",
        build=functools.partial(build_v2 if name.endswith("_v2") else build, blocks_per_stage=blocks_per_stage),
        data_name="cifar10",
        image_size=32,
        classes=10,
        has_batch_norm=True,
        batch_on_gpu=128,
        batch_on_cpu=32,
        learning_rate=rate,
        parameters=parameters,
        gflop_per_image=gflop,
        source=source,
    )


def _v1(paper: str) -> str:
    return (
        "He et al., 'Deep residual learning for image recognition', arXiv:1512.03385, section 4.2 and table 6: "
        f"{paper} M parameters; operations counted by hand"
    )


_V2 = (
    "He et al., 'Identity mappings in deep residual networks', arXiv:1603.05027, as tf_cnn_benchmarks; counted by hand"
)
SPECS = (
    _spec("resnet20", "ResNet-20", 3, parameters=269_722, gflop=0.0811, source=_v1("0.27")),
    _spec("resnet32", "ResNet-32", 5, rate=0.02, parameters=464_154, gflop=0.138, source=_v1("0.46")),
    _spec("resnet44", "ResNet-44", 7, rate=0.02, parameters=658_586, gflop=0.194, source=_v1("0.66")),
    _spec("resnet56", "ResNet-56", 9, rate=0.01, parameters=853_018, gflop=0.251, source=_v1("0.85")),
    _spec("resnet110", "ResNet-110", 18, rate=0.005, parameters=1_727_962, gflop=0.506, source=_v1("1.7")),
    _spec("resnet20_v2", "ResNet-20 v2", 3, parameters=269_402, gflop=0.0811, source=_V2),
    _spec("resnet32_v2", "ResNet-32 v2", 5, parameters=463_610, gflop=0.138, source=_V2),
    _spec("resnet44_v2", "ResNet-44 v2", 7, parameters=657_818, gflop=0.194, source=_V2),
    _spec("resnet56_v2", "ResNet-56 v2", 9, parameters=852_026, gflop=0.251, source=_V2),
    _spec("resnet110_v2", "ResNet-110 v2", 18, parameters=1_725_962, gflop=0.506, source=_V2),
)
