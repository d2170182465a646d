"""A perceptron with one hidden layer: the example of TensorFlow's tutorial on distributed training (MNIST, 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.model_spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

_HIDDEN_UNITS = 100


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = layers.dense(layers.flatten(images), _HIDDEN_UNITS, name="hidden")
    return layers.classifier(x, num_classes)


SPECS = (
    ModelSpec(
        name="mlp",
        title="perceptron with 100 hidden units, for MNIST",
        build=build,
        data_name="mnist",
        image_size=28,
        channels=1,
        classes=10,
        has_larger_convolutions=False,
        batch_on_gpu=100,
        batch_on_cpu=100,
        learning_rate=0.1,
        parameters=79_510,
        gflop_per_image=0.0001588,
        source="counted by hand: 784 -> 100 -> 10, as in TensorFlow's tutorial on distributed training",
    ),
)
