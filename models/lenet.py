"""Models of TensorFlow's tutorials on MNIST: LeNet-5 (LeCun et al. 1998), as in tf_cnn_benchmarks, and a perceptron."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec

if TYPE_CHECKING:
    from models.layers import Layers, Tensor


_HIDDEN_UNITS = 100  # of the perceptron


def build(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = images
    for number, filters in ((1, 32), (2, 64)):
        x = layers.conv(x, filters, 5, name=f"conv{number}")
        x = layers.pool(x, "max", 2, 2, name=f"pool{number}")
    x = layers.dense(layers.flatten(x), 512, name="fc3")
    return layers.classifier(x, num_classes)


def build_perceptron(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = layers.dense(layers.flatten(images), _HIDDEN_UNITS, name="hidden")
    return layers.classifier(x, num_classes)


_LENET = ModelSpec(
    name="lenet",
    title="LeNet-5, for ImageNet's labels",
    build=build,
    image_size=28,
    batch_on_gpu=32,
    batch_on_cpu=32,
    learning_rate=0.002,
    parameters=2_172_840,
    gflop_per_image=0.02807,
    source="LeCun et al., 'Gradient-based learning applied to document recognition', Proceedings of the IEEE 86(11); "
    "with tf_cnn_benchmarks' layers, counted by hand: 28x28x3 -> 5x5x32 -> 5x5x64 -> 512 -> classes",
)
SPECS = (
    _LENET,
    dataclasses.replace(
        _LENET,
        name="lenet_mnist",
        title="LeNet-5, for MNIST",
        variant_of="lenet",
        data_name="mnist",
        channels=1,
        classes=10,
        learning_rate=0.005,
        parameters=1_663_370,
        gflop_per_image=0.02455,
        source="as lenet, counted by hand: 28x28x1 -> 5x5x32 -> 5x5x64 -> 512 -> 10, the network of TensorFlow's "
        "tutorial on convolutional networks",
    ),
    ModelSpec(
        name="mlp",
        title="perceptron with 100 hidden units, for MNIST",
        build=build_perceptron,
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
