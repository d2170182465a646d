"""AlexNet with one tower (Krizhevsky 2014, arXiv:1404.5997), as in tf_cnn_benchmarks: 227 pixels, no LRN."""

from __future__ import annotations

from models.layers import Layers, Style, Tensor

# With the gain of He et al. the first loss is about 13, and the first steps overflow.
_STYLE = Style(kernel_gain=1.2)


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    layers = layers.styled(_STYLE)
    x = layers.conv(images, 64, 11, stride=4, padding="valid", name="conv1")
    x = layers.pool(x, "max", 3, 2, name="pool1")
    x = layers.conv(x, 192, 5, name="conv2")
    x = layers.pool(x, "max", 3, 2, name="pool2")
    x = layers.conv(x, 384, 3, name="conv3")
    x = layers.conv(x, 384, 3, name="conv4")
    x = layers.conv(x, 256, 3, name="conv5")
    x = layers.pool(x, "max", 3, 2, name="pool5")
    x = layers.flatten(x)
    for number in (6, 7):
        x = layers.dropout(layers.dense(x, 4096, name=f"fc{number}"), name=f"dropout{number}")
    return layers.classifier(x, num_classes)
