"""GoogLeNet (Szegedy et al. 2014, arXiv:1409.4842), as in tf_cnn_benchmarks: no LRN, auxiliary heads or dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# With the gain of He et al. the first loss is about 8, and the first steps do not converge.
_STYLE = Style(kernel_gain=1.6)
# Table 1 of the paper: filters of 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and the projection after the pooling.
_MODULES = (
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


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    layers = layers.styled(_STYLE)
    x = layers.conv(images, 64, 7, stride=2, name="conv1")
    x = layers.pool(x, "max", 3, 2, padding="same", name="pool1")
    x = layers.conv(x, 64, 1, name="conv2_reduce")
    x = layers.conv(x, 192, 3, name="conv2")
    for number, modules in enumerate(_MODULES, start=2):
        x = layers.pool(x, "max", 3, 2, padding="same", name=f"pool{number}")
        for suffix, filters in modules.items():
            x = _module(x, layers, filters, name=f"inception{suffix}")
    return layers.classifier(layers.global_average(x), num_classes)


def _module(x: Tensor, layers: Layers, filters: tuple[int, ...], *, name: str) -> Tensor:
    one, reduce3, three, reduce5, five, projected = filters
    b1 = layers.conv(x, one, 1, name=f"{name}_1x1")
    b3 = layers.conv(layers.conv(x, reduce3, 1, name=f"{name}_3x3_reduce"), three, 3, name=f"{name}_3x3")
    b5 = layers.conv(layers.conv(x, reduce5, 1, name=f"{name}_5x5_reduce"), five, 5, name=f"{name}_5x5")
    pooled = layers.pool(x, "max", 3, 1, padding="same", name=f"{name}_pool")
    return layers.concat([b1, b3, b5, layers.conv(pooled, projected, 1, name=f"{name}_pool_1x1")], name=name)


SPECS = (
    ModelSpec(
        name="googlenet",
        title="GoogLeNet, no auxiliary heads",
        build=build,
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
)
