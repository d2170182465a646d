"""VGG-16 (Simonyan and Zisserman 2014, arXiv:1409.1556, configuration D)."""

from __future__ import annotations

from models.layers import Layers, Style, Tensor

# With the gain of He et al. the first loss is about 13, and the first steps overflow.
_STYLE = Style(kernel_gain=1.3)
_BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    layers = layers.styled(_STYLE)
    x = images
    for block, (convolutions, filters) in enumerate(_BLOCKS, start=1):
        for number in range(1, convolutions + 1):
            x = layers.conv(x, filters, 3, name=f"block{block}_conv{number}")
        x = layers.pool(x, "max", 2, 2, name=f"block{block}_pool")
    x = layers.flatten(x)
    for number in (1, 2):
        x = layers.dropout(layers.dense(x, 4096, name=f"fc{number}"), name=f"dropout{number}")
    return layers.classifier(x, num_classes)
