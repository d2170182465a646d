"""A perceptron with one hidden layer: the example of TensorFlow's tutorial on distributed training (MNIST, 2016)."""

from __future__ import annotations

from models.layers import Layers, Tensor

_HIDDEN_UNITS = 100


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = layers.dense(layers.flatten(images), _HIDDEN_UNITS, name="hidden")
    return layers.classifier(x, num_classes)
