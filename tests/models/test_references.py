"""Models compute what other implementations of them compute with the same random weights and averages.

For ResNet v1, Inception v3 and VGG that is Keras' own application; for ResNet v1.5 the same with its strides moved; for
AlexNet, ResNet v2, DenseNet and the ResNets for CIFAR it is written out here.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import building
from tests.support import models, references
from tests.support.references import Pairs, Values


def _resnet_v15(name: str, image_size: int) -> building.Model:
    v1 = references.application(name, image_size).keras_model
    with building.stateless_building(seed=0):
        return building.adapt(keras.models.clone_model(v1, clone_function=_stride_in_the_3x3))


def _stride_in_the_3x3(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Makes a layer of ResNet v1.5 of one of Keras' v1."""
    config: dict[str, Any] = layer.get_config()
    if layer.name in [f"conv{stage}_block1_1_conv" for stage in (3, 4, 5)]:
        config["strides"] = 1
    if layer.name in [f"conv{stage}_block1_2_conv" for stage in (3, 4, 5)]:
        convolution = keras.layers.Conv2D.from_config(config | {"strides": 2, "padding": "valid"})
        return keras.Sequential([keras.layers.ZeroPadding2D(1), convolution])
    return type(layer).from_config(config)


def _resnet_layers(*blocks: int) -> Pairs:
    yield "stem", "conv1_conv"
    for stage, count in enumerate(blocks, start=1):
        for block in range(1, count + 1):
            for number, name in enumerate(("shortcut", "conv1", "conv2", "conv3")):
                if name != "shortcut" or block == 1:
                    yield f"stage{stage}_block{block}_{name}", f"conv{stage + 1}_block{block}_{number}_conv"
    yield "logits", "predictions"


def _vgg_layers(*convolutions: int) -> Pairs:
    for block, count in enumerate(convolutions, start=1):
        for number in range(1, count + 1):
            yield f"block{block}_conv{number}", f"block{block}_conv{number}"
    yield from (("fc1", "fc1"), ("fc2", "fc2"), ("logits", "predictions"))


# Our blocks and their convolutions in the order in which Keras makes its own, which it only numbers.
_BLOCK35 = ("1x1", "5x5_reduce", "5x5", "3x3_reduce", "3x3_a", "3x3_b", "pool_1x1")
_DOUBLE = tuple(f"double_{step}" for step in ("reduce", *"abcd"))
_BLOCK17 = ("1x1", "7x7_reduce", "7x7_a", "7x7_b", *_DOUBLE, "pool_1x1")
_BLOCK8 = ("1x1", "3x3_reduce", "3x3_a", "3x3_b", "double_reduce", "double", "double_a", "double_b", "pool_1x1")
_INCEPTION3 = (
    *((f"mixed35_{number}", _BLOCK35) for number in (1, 2, 3)),
    ("reduce35", ("3x3", "double_reduce", "double_a", "double_b")),
    *((f"mixed17_{number}", _BLOCK17) for number in (1, 2, 3, 4)),
    ("reduce17", ("3x3_reduce", "3x3", "7x7_reduce", "7x7_a", "7x7_b", "7x7_3x3")),
    *((f"mixed8_{number}", _BLOCK8) for number in (1, 2)),
)


def _inception3_layers() -> Pairs:
    ours = [f"stem_conv{number}" for number in (1, 2, 3, 4, 5)]
    ours += [f"{block}_{name}" for block, names in _INCEPTION3 for name in names]
    return [*((mine, f"{number}_conv") for number, mine in enumerate(ours)), ("logits", "predictions")]


# The reference, given the size of images, and which of its layers is which of ours.
REFERENCES: dict[str, tuple[Callable[[int], building.Model], Pairs]] = {
    "resnet50": (functools.partial(references.application, "ResNet50"), [*_resnet_layers(3, 4, 6, 3)]),
    "resnet101": (functools.partial(references.application, "ResNet101"), [*_resnet_layers(3, 4, 23, 3)]),
    "resnet152": (functools.partial(references.application, "ResNet152"), [*_resnet_layers(3, 8, 36, 3)]),
    "resnet50_v1.5": (functools.partial(_resnet_v15, "ResNet50"), [*_resnet_layers(3, 4, 6, 3)]),
    "resnet101_v1.5": (functools.partial(_resnet_v15, "ResNet101"), [*_resnet_layers(3, 4, 23, 3)]),
    "resnet152_v1.5": (functools.partial(_resnet_v15, "ResNet152"), [*_resnet_layers(3, 8, 36, 3)]),
    "inception3": (functools.partial(references.application, "InceptionV3"), _inception3_layers()),
    "vgg16": (functools.partial(references.application, "VGG16"), [*_vgg_layers(2, 2, 3, 3, 3)]),
    "vgg19": (functools.partial(references.application, "VGG19"), [*_vgg_layers(2, 2, 4, 4, 4)]),
}
DEEPER = ("resnet101", "resnet152", "resnet101_v1.5", "resnet152_v1.5", "vgg19")


@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        *(("resnet50", 64), ("resnet50_v1.5", 64), ("inception3", 107), ("vgg16", 64)),
        *(pytest.param(name, size, marks=pytest.mark.rotates) for name, size in (("inception3", 299), ("vgg16", 224))),
        *(pytest.param(name, 64, marks=pytest.mark.rotates) for name in DEEPER),
    ],
)
def test_logits_are_those_of_keras(name: str, image_size: int) -> None:
    reference, layers = REFERENCES[name]
    model, images = reference(image_size), references.images(image_size)
    values = references.random_values(model)
    ours = models.build(name, num_classes=references.CLASSES, image_size=image_size)
    found = references.logits(ours, references.translated(references.renumbered(values), layers), images)
    references.assert_same(found, references.logits(model, values, images))


def _conv(values: Values, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
    """A convolution as fb.resnet.torch pads it: by half the kernel on each side, also where there is a stride."""
    kernel = values[f"{name}/kernel"]
    around = (kernel.shape[0] // 2, kernel.shape[0] // 2)
    return tf.nn.conv2d(tf.pad(x, [(0, 0), around, around, (0, 0)]), kernel, stride, "VALID")


def _conv_bn(values: Values, x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
    return references.normal(values, _conv(values, x, name, stride), name, 1e-5)


def _mean_logits(values: Values, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=(1, 2)) @ values["logits/kernel"] + values["logits/bias"]


def _resnet_v2(values: Values, images: tf.Tensor, *, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> tf.Tensor:
    """ResNet v2: pre-activations without scale; projections read them, and identities what is before them."""
    x = tf.nn.relu(_conv_bn(values, images, "stem", 2))
    x = tf.nn.max_pool2d(tf.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), 3, 2, "VALID")
    for stage, count in enumerate(blocks, start=1):
        for block in range(1, count + 1):
            name, stride = f"stage{stage}_block{block}", 2 if block == 1 and stage > 1 else 1
            before = tf.nn.relu(references.normal(values, x, name, 1e-3))
            shortcut = _conv(values, before, f"{name}_shortcut", stride) if block == 1 else x
            y = tf.nn.relu(_conv_bn(values, before, f"{name}_conv1", stride))
            y = tf.nn.relu(_conv_bn(values, y, f"{name}_conv2"))
            x = shortcut + _conv(values, y, f"{name}_conv3")
    return _mean_logits(values, tf.nn.relu(references.normal(values, x, "final", 1e-3)))


def _small_resnet(values: Values, images: tf.Tensor, *, blocks: int, v2: bool = False) -> tf.Tensor:
    """ResNet for CIFAR, v1 as in fb.resnet.torch; in v2, every shortcut starts before the pre-activation."""
    x = tf.nn.relu(_conv_bn(values, images, "stem"))
    for stage, block in itertools.product((1, 2, 3), range(1, blocks + 1)):
        name, shortcut, stride = f"stage{stage}_block{block}", x, 1
        if block == 1 and stage > 1:
            stride = 2
            shortcut = tf.concat([x[:, ::2, ::2], tf.zeros_like(x[:, ::2, ::2])], axis=-1)
        y = tf.nn.relu(references.normal(values, x, name, 1e-3)) if v2 else x
        y = tf.nn.relu(_conv_bn(values, y, f"{name}_conv1", stride))
        y = _conv(values, y, f"{name}_conv2")
        x = y + shortcut if v2 else tf.nn.relu(references.normal(values, y, f"{name}_conv2", 1e-5) + shortcut)
    return _mean_logits(values, tf.nn.relu(references.normal(values, x, "final", 1e-3)) if v2 else x)


def _densenet(values: Values, images: tf.Tensor, *, layers: int) -> tf.Tensor:
    """DenseNet as in the paper: no bias, and no ReLU after a transition's convolution."""
    x = _conv(values, images, "stem")
    for block in (1, 2, 3):
        for name in (f"block{block}_layer{number}" for number in range(1, layers + 1)):
            x = tf.concat(
                [x, _conv(values, tf.nn.relu(references.normal(values, x, name, 1e-5)), f"{name}_conv")], axis=-1
            )
        if block < 3:
            name = f"transition{block}"
            x = _conv(values, tf.nn.relu(references.normal(values, x, name, 1e-5)), f"{name}_conv")
            x = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
    return _mean_logits(values, tf.nn.relu(references.normal(values, x, "final", 1e-5)))


def _alexnet(values: Values, images: np.ndarray) -> tf.Tensor:
    """AlexNet as tf_cnn_benchmarks has it."""

    conv, dense = (functools.partial(make, values) for make in (references.conv, references.dense))
    x = tf.nn.max_pool2d(conv(images, "conv1", 4, "VALID"), 3, 2, "VALID")
    x = tf.nn.max_pool2d(conv(x, "conv2"), 3, 2, "VALID")
    x = tf.nn.max_pool2d(conv(conv(conv(x, "conv3"), "conv4"), "conv5"), 3, 2, "VALID")
    x = tf.reshape(x, [len(images), -1])
    return dense(tf.nn.relu(dense(tf.nn.relu(dense(x, "fc6")), "fc7")), "logits")


DEFINITIONS: dict[str, tuple[Callable[[Values, np.ndarray], tf.Tensor], int]] = {
    "alexnet": (_alexnet, 131),
    "densenet40_k12": (functools.partial(_densenet, layers=12), 32),
    "resnet20": (functools.partial(_small_resnet, blocks=3), 32),
    "resnet20_v2": (functools.partial(_small_resnet, blocks=3, v2=True), 32),
    "resnet50_v2": (_resnet_v2, 64),
}
DEEPER_DEFINITIONS: dict[str, tuple[Callable[[Values, np.ndarray], tf.Tensor], int]] = {
    "densenet100_k12": (functools.partial(_densenet, layers=32), 32),
    "resnet101_v2": (functools.partial(_resnet_v2, blocks=(3, 4, 23, 3)), 64),
    "resnet110": (functools.partial(_small_resnet, blocks=18), 32),
    "resnet110_v2": (functools.partial(_small_resnet, blocks=18, v2=True), 32),
    "resnet152_v2": (functools.partial(_resnet_v2, blocks=(3, 8, 36, 3)), 64),
}


@pytest.mark.parametrize(
    "name", [*DEFINITIONS, *(pytest.param(name, marks=pytest.mark.rotates) for name in DEEPER_DEFINITIONS)]
)
def test_logits_are_those_of_the_definition(name: str) -> None:
    definition, image_size = (DEFINITIONS | DEEPER_DEFINITIONS)[name]
    references.assert_defined(name, image_size, definition)
