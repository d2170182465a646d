"""GoogLeNet (Szegedy et al. 2014, arXiv:1409.4842), Inception v3 (2015, 1512.00567) and v4 (2016, 1602.07261).

None has its auxiliary heads.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Size, Tensor

# No scale: a ReLU follows every normalisation, and the next layer can take it over.
_STYLE = Style(batch_norm_scale=False, batch_norm_epsilon=1e-3)
# With the gain of He et al. the first loss is about 8, and the first steps do not converge.
_STYLE_V1 = Style(kernel_gain=1.6)
# Table 1 of the paper: filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and the projection after the pooling.
_MODULES_V1 = (
    {"3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64)},
    {
        "4a": (192, 96, 208, 16, 48, 64),
        "4b": (160, 112, 224, 24, 64, 64),
        "4c": (128, 128, 256, 24, 64, 64),
        "4d": (112, 144, 288, 32, 64, 64),
        "4e": (256, 160, 320, 32, 128, 128),
    },
    {"5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128)},
)


def build_v1(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns the logits of GoogLeNet, as in tf_cnn_benchmarks: no LRN, auxiliary heads or dropout."""
    layers = layers.styled(_STYLE_V1)
    x = layers.conv(images, 64, 7, stride=2, name="conv1")
    x = layers.pool(x, "max", 3, 2, padding="same", name="pool1")
    x = layers.conv(x, 64, 1, name="conv2_reduce")
    x = layers.conv(x, 192, 3, name="conv2")
    for number, modules in enumerate(_MODULES_V1, start=2):
        x = layers.pool(x, "max", 3, 2, padding="same", name=f"pool{number}")
        for suffix, filters in modules.items():
            x = _module_v1(x, layers, filters, name=f"inception{suffix}")
    return layers.classifier(layers.global_average(x), num_classes)


def _module_v1(x: Tensor, layers: Layers, filters: tuple[int, ...], *, name: str) -> Tensor:
    one, reduce3, three, reduce5, five, projected = filters
    b1 = layers.conv(x, one, 1, name=f"{name}_1x1")
    b3 = layers.conv(layers.conv(x, reduce3, 1, name=f"{name}_3x3_reduce"), three, 3, name=f"{name}_3x3")
    b5 = layers.conv(layers.conv(x, reduce5, 1, name=f"{name}_5x5_reduce"), five, 5, name=f"{name}_5x5")
    pooled = layers.pool(x, "max", 3, 1, padding="same", name=f"{name}_pool")
    return layers.concat([b1, b3, b5, layers.conv(pooled, projected, 1, name=f"{name}_pool_1x1")], name=name)


def build_v3(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns the logits of Inception v3."""
    layers = layers.styled(_STYLE)
    conv = layers.conv_bn
    x = conv(images, 32, 3, stride=2, padding="valid", name="stem_conv1")
    x = conv(x, 32, 3, padding="valid", name="stem_conv2")
    x = conv(x, 64, 3, name="stem_conv3")
    x = layers.pool(x, "max", 3, 2, name="stem_pool1")
    x = conv(x, 80, 1, padding="valid", name="stem_conv4")
    x = conv(x, 192, 3, padding="valid", name="stem_conv5")
    x = layers.pool(x, "max", 3, 2, name="stem_pool2")
    for number, pool_filters in enumerate((32, 64, 64), start=1):
        x = _block35(x, layers, pool_filters, name=f"mixed35_{number}")
    x = _reduce35(x, layers, (64, 96, 96))
    for number, filters in enumerate((128, 160, 160, 192), start=1):
        x = _block17(x, layers, filters, name=f"mixed17_{number}")
    x = _reduce17(x, layers, (192, 320), (192, 192, 192, 192))
    for number in (1, 2):
        x = _block8(x, layers, name=f"mixed8_{number}")
    return layers.classifier(layers.global_average(x), num_classes)


def build_v4(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns the logits of Inception v4."""
    layers = layers.styled(_STYLE)
    x = _stem_v4(images, layers)
    for number in range(1, 5):
        x = _block35_v4(x, layers, name=f"mixed35_{number}")
    x = _reduce35(x, layers, (192, 224, 256))
    for number in range(1, 8):
        x = _block17_v4(x, layers, name=f"mixed17_{number}")
    x = _reduce17(x, layers, (192, 192), (256, 256, 320, 320))
    for number in range(1, 4):
        x = _block8_v4(x, layers, name=f"mixed8_{number}")
    x = layers.dropout(layers.global_average(x), 0.2, name="dropout")
    return layers.classifier(x, num_classes)


def _chain(x: Tensor, layers: Layers, name: str, *convolutions: tuple[int, Size, str]) -> Tensor:
    """Convolutions one after the other; each is filters, kernel size and the end of its name."""
    for filters, size, suffix in convolutions:
        x = layers.conv_bn(x, filters, size, name=f"{name}_{suffix}")
    return x


def _pool_project(x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    x = layers.pool(x, "avg", 3, 1, padding="same", name=f"{name}_pool")
    return layers.conv_bn(x, filters, 1, name=f"{name}_pool_1x1")


def _block35(x: Tensor, layers: Layers, pool_filters: int, *, name: str) -> Tensor:
    """35x35 grid: figure 5 of the paper, with the 5x5 kept."""
    b1 = _chain(x, layers, name, (64, 1, "1x1"))
    b5 = _chain(x, layers, name, (48, 1, "5x5_reduce"), (64, 5, "5x5"))
    b3 = _chain(x, layers, name, (64, 1, "3x3_reduce"), (96, 3, "3x3_a"), (96, 3, "3x3_b"))
    return layers.concat([b1, b5, b3, _pool_project(x, layers, pool_filters, name=name)], name=name)


def _reduce35(x: Tensor, layers: Layers, double_filters: tuple[int, int, int]) -> Tensor:
    """35x35 to 17x17: figure 10; v4: figure 7 of its paper."""
    reduced, wide, last = double_filters
    b3 = layers.conv_bn(x, 384, 3, stride=2, padding="valid", name="reduce35_3x3")
    double = _chain(x, layers, "reduce35", (reduced, 1, "double_reduce"), (wide, 3, "double_a"))
    double = layers.conv_bn(double, last, 3, stride=2, padding="valid", name="reduce35_double_b")
    return layers.concat([b3, double, layers.pool(x, "max", 3, 2, name="reduce35_pool")], name="reduce35")


def _block17(x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    """17x17 grid: figure 6, n = 7."""
    b1 = _chain(x, layers, name, (192, 1, "1x1"))
    b7 = _chain(x, layers, name, (filters, 1, "7x7_reduce"), (filters, (1, 7), "7x7_a"), (192, (7, 1), "7x7_b"))
    double = _chain(x, layers, name, (filters, 1, "double_reduce"), (filters, (7, 1), "double_a"))
    double = _chain(double, layers, name, (filters, (1, 7), "double_b"), (filters, (7, 1), "double_c"))
    double = _chain(double, layers, name, (192, (1, 7), "double_d"))
    return layers.concat([b1, b7, double, _pool_project(x, layers, 192, name=name)], name=name)


def _reduce17(x: Tensor, layers: Layers, filters3: tuple[int, int], filters7: tuple[int, int, int, int]) -> Tensor:
    """17x17 to 8x8; v4: figure 8 of its paper."""
    b3 = _chain(x, layers, "reduce17", (filters3[0], 1, "3x3_reduce"))
    b3 = layers.conv_bn(b3, filters3[1], 3, stride=2, padding="valid", name="reduce17_3x3")
    reduced, across, down, last = filters7
    b7 = _chain(x, layers, "reduce17", (reduced, 1, "7x7_reduce"), (across, (1, 7), "7x7_a"), (down, (7, 1), "7x7_b"))
    b7 = layers.conv_bn(b7, last, 3, stride=2, padding="valid", name="reduce17_7x7_3x3")
    return layers.concat([b3, b7, layers.pool(x, "max", 3, 2, name="reduce17_pool")], name="reduce17")


def _block8(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """8x8 grid with expanded filter banks: figure 7."""
    branches = [_chain(x, layers, name, (320, 1, "1x1"))]
    b3 = _chain(x, layers, name, (384, 1, "3x3_reduce"))
    branches += [_chain(b3, layers, name, (384, (1, 3), "3x3_a")), _chain(b3, layers, name, (384, (3, 1), "3x3_b"))]
    double = _chain(x, layers, name, (448, 1, "double_reduce"), (384, 3, "double"))
    branches.append(_chain(double, layers, name, (384, (1, 3), "double_a")))
    branches.append(_chain(double, layers, name, (384, (3, 1), "double_b")))
    return layers.concat([*branches, _pool_project(x, layers, 192, name=name)], name=name)


def _stem_v4(images: Tensor, layers: Layers) -> Tensor:
    """299x299 to 35x35: figure 3 of its paper."""
    conv = layers.conv_bn
    x = conv(images, 32, 3, stride=2, padding="valid", name="stem_conv1")
    x = conv(x, 32, 3, padding="valid", name="stem_conv2")
    x = conv(x, 64, 3, name="stem_conv3")
    pooled = layers.pool(x, "max", 3, 2, name="stem_pool1")
    x = layers.concat([pooled, conv(x, 96, 3, stride=2, padding="valid", name="stem_conv4")], name="stem_mixed1")
    b3 = _chain(x, layers, "stem", (64, 1, "3x3_reduce"))
    b7 = _chain(x, layers, "stem", (64, 1, "7x7_reduce"), (64, (7, 1), "7x7_a"), (64, (1, 7), "7x7_b"))
    b3 = conv(b3, 96, 3, padding="valid", name="stem_3x3")
    x = layers.concat([b3, conv(b7, 96, 3, padding="valid", name="stem_7x7_3x3")], name="stem_mixed2")
    strided = conv(x, 192, 3, stride=2, padding="valid", name="stem_conv5")
    return layers.concat([strided, layers.pool(x, "max", 3, 2, name="stem_pool2")], name="stem_mixed3")


def _block35_v4(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """35x35 grid: figure 4 of its paper."""
    b1 = _chain(x, layers, name, (96, 1, "1x1"))
    b3 = _chain(x, layers, name, (64, 1, "3x3_reduce"), (96, 3, "3x3"))
    double = _chain(x, layers, name, (64, 1, "double_reduce"), (96, 3, "double_a"), (96, 3, "double_b"))
    return layers.concat([b1, b3, double, _pool_project(x, layers, 96, name=name)], name=name)


def _block17_v4(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """17x17 grid: figure 5 of its paper."""
    b1 = _chain(x, layers, name, (384, 1, "1x1"))
    b7 = _chain(x, layers, name, (192, 1, "7x7_reduce"), (224, (1, 7), "7x7_a"), (256, (7, 1), "7x7_b"))
    double = _chain(x, layers, name, (192, 1, "double_reduce"), (192, (1, 7), "double_a"), (224, (7, 1), "double_b"))
    double = _chain(double, layers, name, (224, (1, 7), "double_c"), (256, (7, 1), "double_d"))
    return layers.concat([b1, b7, double, _pool_project(x, layers, 128, name=name)], name=name)


def _block8_v4(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """8x8 grid: figure 6 of its paper."""
    branches = [_chain(x, layers, name, (256, 1, "1x1"))]
    b3 = _chain(x, layers, name, (384, 1, "3x3_reduce"))
    branches += [_chain(b3, layers, name, (256, (1, 3), "3x3_a")), _chain(b3, layers, name, (256, (3, 1), "3x3_b"))]
    double = _chain(x, layers, name, (384, 1, "double_reduce"), (448, (1, 3), "double_a"), (512, (3, 1), "double_b"))
    branches.append(_chain(double, layers, name, (256, (3, 1), "double_c")))
    branches.append(_chain(double, layers, name, (256, (1, 3), "double_d")))
    return layers.concat([*branches, _pool_project(x, layers, 256, name=name)], name=name)


_INCEPTION3 = ModelSpec(
    name="inception3",
    title="Inception v3, no auxiliary head",
    build=build_v3,
    image_size=299,
    has_conv1x1=True,
    has_batch_norm=True,
    batch_on_gpu=64,
    batch_on_cpu=4,
    learning_rate=0.01,
    parameters=23_817_352,
    gflop_per_image=11.5,
    source="Szegedy et al., 'Rethinking the Inception architecture for computer vision', arXiv:1512.00567; "
    "figures: Keras applications (23.9 M with moving averages), 5.7 G multiply-adds",
)
SPECS = (
    ModelSpec(
        name="googlenet",
        title="GoogLeNet, no auxiliary heads",
        build=build_v1,
        image_size=224,
        has_conv1x1=True,
        batch_on_gpu=32,
        batch_on_cpu=32,
        learning_rate=0.005,
        parameters=6_998_552,
        gflop_per_image=3.17,
        source="Szegedy et al., 'Going deeper with convolutions', arXiv:1409.4842, table 1, counted by hand: as many "
        "parameters as Caffe's bvlc_googlenet without its auxiliary heads; 1.58 G multiply-adds",
    ),
    _INCEPTION3,
    dataclasses.replace(
        _INCEPTION3,
        name="inception4",
        title="Inception v4",
        build=build_v4,
        batch_on_gpu=32,
        batch_on_cpu=2,
        parameters=42_648_232,
        gflop_per_image=24.5,
        source="Szegedy et al., 'Inception-v4, Inception-ResNet and the impact of residual connections on learning', "
        "arXiv:1602.07261, figures 3 to 9, counted by hand: 42,679,816 parameters with the scales of its batch "
        "normalisations, which are left out here; 12.3 G multiply-adds",
    ),
)
