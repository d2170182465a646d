"""Inception v3 without auxiliary head (Szegedy et al. 2015, arXiv:1512.00567)."""

from __future__ import annotations

from models.layers import Layers, Size, Style, Tensor

# No scale: a ReLU follows every normalisation, and the next layer can take it over.
_STYLE = Style(batch_norm_scale=False, batch_norm_epsilon=1e-3)


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
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
    x = _reduce35(x, layers, name="reduce35")
    for number, filters in enumerate((128, 160, 160, 192), start=1):
        x = _block17(x, layers, filters, name=f"mixed17_{number}")
    x = _reduce17(x, layers, name="reduce17")
    for number in (1, 2):
        x = _block8(x, layers, name=f"mixed8_{number}")
    return layers.classifier(layers.global_average(x), num_classes)


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


def _reduce35(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """35x35 to 17x17: figure 10."""
    b3 = layers.conv_bn(x, 384, 3, stride=2, padding="valid", name=f"{name}_3x3")
    double = _chain(x, layers, name, (64, 1, "double_reduce"), (96, 3, "double_a"))
    double = layers.conv_bn(double, 96, 3, stride=2, padding="valid", name=f"{name}_double_b")
    return layers.concat([b3, double, layers.pool(x, "max", 3, 2, name=f"{name}_pool")], name=name)


def _block17(x: Tensor, layers: Layers, filters: int, *, name: str) -> Tensor:
    """17x17 grid: figure 6, n = 7."""
    b1 = _chain(x, layers, name, (192, 1, "1x1"))
    b7 = _chain(x, layers, name, (filters, 1, "7x7_reduce"), (filters, (1, 7), "7x7_a"), (192, (7, 1), "7x7_b"))
    double = _chain(x, layers, name, (filters, 1, "double_reduce"), (filters, (7, 1), "double_a"))
    double = _chain(double, layers, name, (filters, (1, 7), "double_b"), (filters, (7, 1), "double_c"))
    double = _chain(double, layers, name, (192, (1, 7), "double_d"))
    return layers.concat([b1, b7, double, _pool_project(x, layers, 192, name=name)], name=name)


def _reduce17(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """17x17 to 8x8."""
    b3 = _chain(x, layers, name, (192, 1, "3x3_reduce"))
    b3 = layers.conv_bn(b3, 320, 3, stride=2, padding="valid", name=f"{name}_3x3")
    b7 = _chain(x, layers, name, (192, 1, "7x7_reduce"), (192, (1, 7), "7x7_a"), (192, (7, 1), "7x7_b"))
    b7 = layers.conv_bn(b7, 192, 3, stride=2, padding="valid", name=f"{name}_7x7_3x3")
    return layers.concat([b3, b7, layers.pool(x, "max", 3, 2, name=f"{name}_pool")], name=name)


def _block8(x: Tensor, layers: Layers, *, name: str) -> Tensor:
    """8x8 grid with expanded filter banks: figure 7."""
    branches = [_chain(x, layers, name, (320, 1, "1x1"))]
    b3 = _chain(x, layers, name, (384, 1, "3x3_reduce"))
    branches += [_chain(b3, layers, name, (384, (1, 3), "3x3_a")), _chain(b3, layers, name, (384, (3, 1), "3x3_b"))]
    double = _chain(x, layers, name, (448, 1, "double_reduce"), (384, 3, "double"))
    branches.append(_chain(double, layers, name, (384, (1, 3), "double_a")))
    branches.append(_chain(double, layers, name, (384, (3, 1), "double_b")))
    return layers.concat([*branches, _pool_project(x, layers, 192, name=name)], name=name)
