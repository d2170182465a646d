"""ResNet-50, -101 and -152: v1 (He et al. 2015, arXiv:1512.03385, table 1), v1.5, and v2 (arXiv:1603.05027)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_FILTERS = (64, 128, 256, 512)
_EXPANSION = 4
# As in tf_cnn_benchmarks: no scale, since the convolution after the ReLU can take it over.
PRE_ACTIVATION = Style(batch_norm_scale=False, batch_norm_epsilon=1e-3)


def build(images: Tensor, layers: Layers, num_classes: int, *, blocks: tuple[int, ...], stride_in_3x3: bool) -> Tensor:
    """Returns logits; `blocks` per stage. v1 strides in a block's first 1x1 convolution, v1.5 in its 3x3."""
    x = _stem(images, layers)
    for stage, (count, filters) in enumerate(zip(blocks, _FILTERS, strict=True), start=1):
        for block in range(1, count + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            name = f"stage{stage}_block{block}"
            shortcut = x
            if block == 1:  # depth changes: project
                wide = _EXPANSION * filters
                shortcut = layers.conv_bn(x, wide, 1, stride=stride, relu=False, name=f"{name}_shortcut")
            first, second = (1, stride) if stride_in_3x3 else (stride, 1)
            y = layers.conv_bn(x, filters, 1, stride=first, name=f"{name}_conv1")
            y = layers.conv_bn(y, filters, 3, stride=second, padding="symmetric", name=f"{name}_conv2")
            y = layers.conv_bn(y, _EXPANSION * filters, 1, relu=False, name=f"{name}_conv3")
            x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)


def build_v2(images: Tensor, layers: Layers, num_classes: int, *, blocks: tuple[int, ...]) -> Tensor:
    """Returns logits; `blocks` per stage. Pre-activations, with the strides of v1."""
    before = layers.styled(PRE_ACTIVATION)
    x = _stem(images, layers)
    for stage, (count, filters) in enumerate(zip(blocks, _FILTERS, strict=True), start=1):
        for block in range(1, count + 1):
            stride = 2 if block == 1 and stage > 1 else 1
            name, wide = f"stage{stage}_block{block}", _EXPANSION * filters
            y = before.bn_relu(x, name=name)
            shortcut = layers.conv_alone(y, wide, 1, stride=stride, name=f"{name}_shortcut") if block == 1 else x
            y = layers.conv_bn(y, filters, 1, stride=stride, name=f"{name}_conv1")
            y = layers.conv_bn(y, filters, 3, name=f"{name}_conv2")
            y = layers.conv_alone(y, wide, 1, name=f"{name}_conv3")
            x = layers.add(y, shortcut, name=name)
    return layers.classifier(layers.global_average(before.bn_relu(x, name="final")), num_classes)


def _stem(images: Tensor, layers: Layers) -> Tensor:
    x = layers.conv_bn(images, 64, 7, stride=2, padding="symmetric", name="stem")
    return layers.pool(x, "max", 3, 2, padding="symmetric", name="stem_pool")


_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_BUILDERS: dict[str, Callable[..., Any]] = {
    "v1": functools.partial(build, stride_in_3x3=False),
    "v1.5": functools.partial(build, stride_in_3x3=True),
    "v2": build_v2,
}


def _spec(name: str, depth: int, version: str, *, parameters: int, gflop: float, source: str) -> ModelSpec:
    return ModelSpec(
        name=name,
        title=f"ResNet-{depth} {version}",
        build=functools.partial(_BUILDERS[version], blocks=_BLOCKS[depth]),
        image_size=224,
        has_conv1x1=True,
        has_batch_norm=True,
        batch_on_gpu=64,
        batch_on_cpu=8 if depth == 50 else 4,
        learning_rate=0.003,
        parameters=parameters,
        gflop_per_image=gflop,
        source=source,
    )


_V1 = "He et al., 'Deep residual learning for image recognition', arXiv:1512.03385, table 1"
_V15 = "stride moved to the 3x3 convolution as in torchvision; figures: torchvision model table"
_V2 = (
    "He et al., 'Identity mappings in deep residual networks', arXiv:1603.05027, as tf_cnn_benchmarks; counted by hand"
)
SPECS = (
    _spec("resnet50", 50, "v1", parameters=25_557_032, gflop=7.7, source=f"{_V1}: 3.8 G multiply-adds"),
    _spec("resnet101", 101, "v1", parameters=44_549_160, gflop=15.1, source=f"{_V1}: 7.6 G multiply-adds"),
    _spec("resnet152", 152, "v1", parameters=60_192_808, gflop=22.6, source=f"{_V1}: 11.3 G multiply-adds"),
    _spec(
        "resnet50_v1.5",
        50,
        "v1.5",
        parameters=25_557_032,
        gflop=8.2,
        source=f"as resnet50, {_V15} (25.6 M parameters, 4.09 G multiply-adds)",
    ),
    _spec(
        "resnet101_v1.5",
        101,
        "v1.5",
        parameters=44_549_160,
        gflop=15.6,
        source=f"as resnet101, {_V15} (44.5 M parameters, 7.80 G multiply-adds)",
    ),
    _spec(
        "resnet152_v1.5",
        152,
        "v1.5",
        parameters=60_192_808,
        gflop=23.0,
        source=f"as resnet152, {_V15} (60.2 M parameters, 11.5 G multiply-adds)",
    ),
    _spec("resnet50_v2", 50, "v2", parameters=25_534_312, gflop=7.7, source=_V2),
    _spec("resnet101_v2", 101, "v2", parameters=44_509_032, gflop=15.1, source=_V2),
    _spec("resnet152_v2", 152, "v2", parameters=60_137_320, gflop=22.6, source=_V2),
)
