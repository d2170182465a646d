"""AlexNet with one tower (Krizhevsky 2014, arXiv:1404.5997), as in tf_cnn_benchmarks: 227 pixels, no LRN.

The variant for CIFAR-10 is the network of TensorFlow's tutorial (Krizhevsky 2009, 'Learning multiple layers of features
from tiny images'), on whole images of 32 pixels. OverFeat is the fast model of Sermanet et al. 2013, arXiv:1312.6229.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.model_spec import ModelSpec, Style

if TYPE_CHECKING:
    from models.layers import Layers, Tensor

# With the gain of He et al. the first loss is about 13, and the first steps overflow, or do not converge.
_STYLE, _OVERFEAT = Style(kernel_gain=1.2), Style(kernel_gain=1.1)


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


def build_for_cifar(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    x = layers.conv(images, 64, 5, name="conv1")
    x = layers.pool(x, "max", 3, 2, padding="same", name="pool1")
    x = layers.local_response_norm(x, radius=4, alpha=0.001 / 9, beta=0.75, name="norm1")
    x = layers.conv(x, 64, 5, name="conv2")
    x = layers.local_response_norm(x, radius=4, alpha=0.001 / 9, beta=0.75, name="norm2")
    x = layers.pool(x, "max", 3, 2, padding="same", name="pool2")
    x = layers.dense(layers.flatten(x), 384, name="fc3")
    x = layers.dense(x, 192, name="fc4")
    return layers.classifier(x, num_classes)


def build_overfeat(images: Tensor, layers: Layers, num_classes: int) -> Tensor:
    """Returns logits."""
    layers = layers.styled(_OVERFEAT)
    x = layers.conv(images, 96, 11, stride=4, padding="valid", name="conv1")
    x = layers.pool(x, "max", 2, 2, name="pool1")
    x = layers.conv(x, 256, 5, padding="valid", name="conv2")
    x = layers.pool(x, "max", 2, 2, name="pool2")
    x = layers.conv(x, 512, 3, name="conv3")
    x = layers.conv(x, 1024, 3, name="conv4")
    x = layers.conv(x, 1024, 3, name="conv5")
    x = layers.pool(x, "max", 2, 2, name="pool5")
    x = layers.flatten(x)
    for number, units in ((6, 3072), (7, 4096)):
        x = layers.dropout(layers.dense(x, units, name=f"fc{number}"), name=f"dropout{number}")
    return layers.classifier(x, num_classes)


SPECS = (
    ModelSpec(
        name="alexnet",
        title="AlexNet, one tower",
        build=build,
        image_size=227,
        batch_on_gpu=512,
        batch_on_cpu=32,
        learning_rate=0.002,
        parameters=61_838_248,
        gflop_per_image=1.68,
        source="Krizhevsky, 'One weird trick for parallelizing convolutional neural networks', arXiv:1404.5997, with "
        "tf_cnn_benchmarks' filters 64-192-384-384-256, counted by hand; torchvision's variant has 256 filters in its "
        "fourth convolution: 61,100,840 parameters, 1.43 G operations",
    ),
    ModelSpec(
        name="alexnet_cifar10",
        title="AlexNet, for CIFAR-10",
        build=build_for_cifar,
        variant_of="alexnet",
        data_name="cifar10",
        image_size=32,
        classes=10,
        batch_on_gpu=128,
        batch_on_cpu=32,
        learning_rate=0.005,
        parameters=1_756_426,
        gflop_per_image=0.0656,
        source="TensorFlow's tutorial on convolutional networks, counted by hand with tf_cnn_benchmarks' 32 pixels: "
        "5x5x64 -> 5x5x64 -> 384 -> 192 -> 10; the tutorial crops to 24 pixels",
    ),
    ModelSpec(
        name="overfeat",
        title="OverFeat, fast model",
        build=build_overfeat,
        image_size=231,
        batch_on_gpu=32,
        batch_on_cpu=8,
        learning_rate=0.001,
        parameters=145_920_872,
        gflop_per_image=5.6,
        source="Sermanet et al., 'OverFeat', arXiv:1312.6229, fast model: 145 M parameters; exact parameters and "
        "operations counted by hand",
    ),
)
