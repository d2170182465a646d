"""ResNet: v1 (He et al. 2015, arXiv:1512.03385), v1.5, and v2 (arXiv:1603.05027).

For photos ResNet-50, -101 and -152 (table 1); for 32x32 pixels section 4.2, whose shortcuts have no parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_FILTERS = (64, 128, 256, 512)
_EXPANSION = 4
# As in tf_cnn_benchmarks: no scale, since the convolution after the ReLU can take it over.
_PRE_ACTIVATION = Style(batch_norm_scale=False, batch_norm_epsilon=1e-3)


def _blocks(counts: Sequence[int], filters: Sequence[int]) -> Iterator[tuple[str, int, int, bool]]:
    """Yields name, filters and stride of each block, and whether it is the first of its stage; `counts` per stage."""
    for stage, (count, width) in enumerate(zip(counts, filters, strict=True), start=1):
        for block in range(1, count + 1):
            yield f"stage{stage}_block{block}", width, 2 if block == 1 and stage > 1 else 1, block == 1


def build(images: Tensor, layers: Layers, num_classes: int, *, blocks: tuple[int, ...], stride_in_3x3: bool) -> Tensor:
    """Returns logits; `blocks` per stage. v1 strides in a block's first 1x1 convolution, v1.5 in its 3x3."""
    x = _stem(images, layers)
    for name, filters, stride, is_first in _blocks(blocks, _FILTERS):
        shortcut, wide = x, _EXPANSION * filters
        if is_first:  # depth changes: project
            shortcut = layers.conv_bn(x, wide, 1, stride=stride, relu=False, name=f"{name}_shortcut")
        first, second = (1, stride) if stride_in_3x3 else (stride, 1)
        y = layers.conv_bn(x, filters, 1, stride=first, name=f"{name}_conv1")
        y = layers.conv_bn(y, filters, 3, stride=second, padding="symmetric", name=f"{name}_conv2")
        y = layers.conv_bn(y, wide, 1, relu=False, name=f"{name}_conv3")
        x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)


def build_v2(images: Tensor, layers: Layers, num_classes: int, *, blocks: tuple[int, ...]) -> Tensor:
    """Returns logits; `blocks` per stage. Pre-activations, with the strides of v1."""
    before = layers.styled(_PRE_ACTIVATION)
    x = _stem(images, layers)
    for name, filters, stride, is_first in _blocks(blocks, _FILTERS):
        wide = _EXPANSION * filters
        y = before.bn_relu(x, name=name)
        shortcut = layers.conv_alone(y, wide, 1, stride=stride, name=f"{name}_shortcut") if is_first else x
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

_CIFAR_FILTERS = (16, 32, 64)


def build_cifar(images: Tensor, layers: Layers, num_classes: int, *, blocks_per_stage: int) -> Tensor:
    """Returns logits. There are 6 * `blocks_per_stage` + 2 layers with weights."""
    x = layers.conv_bn(images, _CIFAR_FILTERS[0], 3, name="stem")
    for name, filters, stride, _ in _blocks([blocks_per_stage] * 3, _CIFAR_FILTERS):
        shortcut = _shortcut(x, layers, filters, name) if stride > 1 else x
        y = layers.conv_bn(x, filters, 3, stride=stride, padding="symmetric", name=f"{name}_conv1")
        y = layers.conv_bn(y, filters, 3, relu=False, name=f"{name}_conv2")
        x = layers.add_relu(y, shortcut, name=name)
    return layers.classifier(layers.global_average(x), num_classes)


def build_cifar_v2(images: Tensor, layers: Layers, num_classes: int, *, blocks_per_stage: int) -> Tensor:
    """Returns logits. Pre-activations; every shortcut starts before its block's."""
    before = layers.styled(_PRE_ACTIVATION)
    x = layers.conv_bn(images, _CIFAR_FILTERS[0], 3, name="stem")
    for name, filters, stride, _ in _blocks([blocks_per_stage] * 3, _CIFAR_FILTERS):
        shortcut = _shortcut(x, layers, filters, name) if stride > 1 else x
        y = before.bn_relu(x, name=name)
        y = layers.conv_bn(y, filters, 3, stride=stride, padding="symmetric", name=f"{name}_conv1")
        y = layers.conv_alone(y, filters, 3, name=f"{name}_conv2")
        x = layers.add(y, shortcut, name=name)
    return layers.classifier(layers.global_average(before.bn_relu(x, name="final")), num_classes)


def _shortcut(x: Tensor, layers: Layers, filters: int, name: str) -> Tensor:
    """Every other pixel, with channels of zeros appended."""
    return layers.pad_channels(layers.pool(x, "avg", 1, 2, name=f"{name}_every_other"), filters)


def _cifar_spec(
    name: str, title: str, blocks_per_stage: int, *, rate: float = 0.05, parameters: int, gflop: float, source: str
) -> ModelSpec:
    return ModelSpec(
        name=name,
        title=f"{title}, for CIFAR-10",
        build=functools.partial(
            build_cifar_v2 if name.endswith("_v2") else build_cifar, blocks_per_stage=blocks_per_stage
        ),
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


def _cifar_source(paper: str) -> str:
    return (
        "He et al., 'Deep residual learning for image recognition', arXiv:1512.03385, section 4.2 and table 6: "
        f"{paper} M parameters; operations counted by hand"
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
    _cifar_spec("resnet20", "ResNet-20", 3, parameters=269_722, gflop=0.0811, source=_cifar_source("0.27")),
    _cifar_spec("resnet32", "ResNet-32", 5, rate=0.02, parameters=464_154, gflop=0.138, source=_cifar_source("0.46")),
    _cifar_spec("resnet44", "ResNet-44", 7, rate=0.02, parameters=658_586, gflop=0.194, source=_cifar_source("0.66")),
    _cifar_spec("resnet56", "ResNet-56", 9, rate=0.01, parameters=853_018, gflop=0.251, source=_cifar_source("0.85")),
    _cifar_spec(
        "resnet110", "ResNet-110", 18, rate=0.005, parameters=1_727_962, gflop=0.506, source=_cifar_source("1.7")
    ),
    _cifar_spec("resnet20_v2", "ResNet-20 v2", 3, parameters=269_402, gflop=0.0811, source=_V2),
    _cifar_spec("resnet32_v2", "ResNet-32 v2", 5, parameters=463_610, gflop=0.138, source=_V2),
    _cifar_spec("resnet44_v2", "ResNet-44 v2", 7, parameters=657_818, gflop=0.194, source=_V2),
    _cifar_spec("resnet56_v2", "ResNet-56 v2", 9, parameters=852_026, gflop=0.251, source=_V2),
    _cifar_spec("resnet110_v2", "ResNet-110 v2", 18, parameters=1_725_962, gflop=0.506, source=_V2),
)
