"""Models compute what other implementations of them compute with the same random weights and averages.

For ResNet-50, Inception v3 and VGG-16 that is Keras' own application; for ResNet-50 v1.5 the same with its strides
moved; for AlexNet and ResNet-20 it is written out here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import building
from tests.support import models

pytestmark = pytest.mark.xdist_group("models")

CLASSES = 11
# Names of our layer with weights, and of the reference's.
Pairs = Iterable[tuple[str, str]]
# Of variables, by `layer/variable`.
Values = Mapping[str, np.ndarray]


def _images(size: int) -> np.ndarray:
    """Returns noise of three colours: without these, global averages of all images are about the same."""
    random = np.random.default_rng(1)
    noise, colours = (random.standard_normal((3, *sides, 3), np.float32) for sides in ((size, size), (1, 1)))
    return noise + colours


def _short(name: str) -> str:
    """Returns the name of a variable without the models that its layer is nested in."""
    return "/".join(name.split("/")[-2:])


def _random_values(model: building.Model) -> dict[str, np.ndarray]:
    """Draws values with which no part of a layer is without effect, and which keep the size of activations."""
    random = np.random.default_rng(2)
    values = {}
    for variable in model.variables:
        name, shape = _short(variable.name), variable.shape
        if name.endswith("/kernel"):
            values[name] = random.standard_normal(shape, np.float32)
            values[name] *= np.sqrt(2 / np.prod(shape[:-1]), dtype=np.float32)
        elif name.endswith(("/gamma", "/moving_variance")):
            values[name] = random.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            values[name] = random.normal(0.0, 0.1, shape).astype(np.float32)
    return values


def _logits(model: building.Model, values: Values, images: np.ndarray) -> np.ndarray:
    given = [
        tf.zeros(variable.shape, variable.dtype) if variable.kind == "tower_state" else values[_short(variable.name)]
        for variable in model.variables
    ]
    return model.call(given, tf.constant(images), training=False)[0].numpy()


def _assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compares logits to 1e-5 of the largest: rounding alone makes up to 3e-6."""
    largest = np.abs(theirs).max()
    assert theirs.std(axis=0).mean() > 0.01 * largest, "logits that do not depend on the image prove nothing"
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)


@functools.cache
def _application(name: str, image_size: int) -> building.Model:
    with building.stateless_building(seed=0):
        make = getattr(keras.applications, name)
        shape = (image_size, image_size, 3)
        return building.adapt(make(weights=None, input_shape=shape, classes=CLASSES, classifier_activation=None))


def _resnet50_v15(image_size: int) -> building.Model:
    v1 = _application("ResNet50", image_size).keras_model
    with building.stateless_building(seed=0):
        return building.adapt(keras.models.clone_model(v1, clone_function=_stride_in_the_3x3))


def _stride_in_the_3x3(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Makes a layer of ResNet-50 v1.5 of one of Keras' v1."""
    config: dict[str, Any] = layer.get_config()
    if layer.name in [f"conv{stage}_block1_1_conv" for stage in (3, 4, 5)]:
        config["strides"] = 1
    if layer.name in [f"conv{stage}_block1_2_conv" for stage in (3, 4, 5)]:
        convolution = keras.layers.Conv2D.from_config(config | {"strides": 2, "padding": "valid"})
        return keras.Sequential([keras.layers.ZeroPadding2D(1), convolution])
    return type(layer).from_config(config)


def _resnet50_layers() -> Pairs:
    yield "stem", "conv1_conv"
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(1, blocks + 1):
            for number, name in enumerate(("shortcut", "conv1", "conv2", "conv3")):
                if name != "shortcut" or block == 1:
                    yield f"stage{stage}_block{block}_{name}", f"conv{stage + 1}_block{block}_{number}_conv"
    yield "logits", "predictions"


def _vgg16_layers() -> Pairs:
    for block, convolutions in enumerate((2, 2, 3, 3, 3), start=1):
        for number in range(1, convolutions + 1):
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


def _renumbered(values: Values) -> dict[str, np.ndarray]:
    """Renames what Keras only numbers, over all models of the process, to `0_conv`, `0_bn`, `1_conv`, ..."""
    kinds = {"conv2d": "conv", "batch_normalization": "bn"}
    names = {}
    for kind, short in kinds.items():
        layers = {path.split("/")[0] for path in values if re.match(rf"{kind}(_\d+)?/", path)}
        in_order = sorted(layers, key=lambda layer: int("0" + re.sub(r"\D", "", layer.removeprefix(kind))))
        names |= {layer: f"{number}_{short}" for number, layer in enumerate(in_order)}
    parts = ((*path.split("/"), value) for path, value in values.items())
    return {f"{names.get(layer, layer)}/{variable}": value for layer, variable, value in parts}


def _translated(theirs: Values, layers: Pairs) -> dict[str, np.ndarray]:
    """Returns the values of our variables, given those of the reference and which layer is which."""
    ours = {}
    for mine, other in layers:
        norm = other.removesuffix("_conv") + "_bn"
        names = [name for name in ("gamma", "beta", "moving_mean", "moving_variance") if f"{norm}/{name}" in theirs]
        ours[f"{mine}/kernel"] = theirs[f"{other}/kernel"]
        ours |= {f"{mine}_bn/{name}": theirs[f"{norm}/{name}"] for name in names}
        if f"{other}/bias" in theirs and names:
            # Ours has no bias there. Normalising subtracts the mean, so a larger bias is a smaller mean.
            ours[f"{mine}_bn/moving_mean"] = theirs[f"{norm}/moving_mean"] - theirs[f"{other}/bias"]
        elif f"{other}/bias" in theirs:
            ours[f"{mine}/bias"] = theirs[f"{other}/bias"]
    return ours


REFERENCES: dict[str, tuple[Callable[[int], building.Model], Callable[[], Pairs]]] = {
    "resnet50": (functools.partial(_application, "ResNet50"), _resnet50_layers),
    "resnet50_v1.5": (_resnet50_v15, _resnet50_layers),
    "inception3": (functools.partial(_application, "InceptionV3"), _inception3_layers),
    "vgg16": (functools.partial(_application, "VGG16"), _vgg16_layers),
}


@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        *(("resnet50", 64), ("resnet50_v1.5", 64), ("inception3", 107), ("vgg16", 64)),
        *(pytest.param(name, size, marks=pytest.mark.slow) for name, size in (("inception3", 299), ("vgg16", 224))),
    ],
)
def test_logits_are_those_of_keras(name: str, image_size: int) -> None:
    reference, layers = REFERENCES[name]
    model, images = reference(image_size), _images(image_size)
    values = _random_values(model)
    ours = models.build(name, num_classes=CLASSES, image_size=image_size)
    found = _logits(ours, _translated(_renumbered(values), layers()), images)
    _assert_same(found, _logits(model, values, images))


def _resnet20(values: Values, images: np.ndarray) -> tf.Tensor:
    """ResNet-20 with the paddings of fb.resnet.torch: one pixel on each side, also where there is a stride."""

    def conv_bn(x: tf.Tensor, name: str, stride: int = 1) -> tf.Tensor:
        padded = tf.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
        x = tf.nn.conv2d(padded, values[f"{name}/kernel"], stride, "VALID") - values[f"{name}_bn/moving_mean"]
        deviation = np.sqrt(values[f"{name}_bn/moving_variance"] + 1e-5)
        return values[f"{name}_bn/gamma"] * x / deviation + values[f"{name}_bn/beta"]

    x = tf.nn.relu(conv_bn(images, "stem"))
    for stage in (1, 2, 3):
        for block in (1, 2, 3):
            name, shortcut, stride = f"stage{stage}_block{block}", x, 1
            if block == 1 and stage > 1:
                stride = 2
                shortcut = tf.concat([x[:, ::2, ::2], tf.zeros_like(x[:, ::2, ::2])], axis=-1)
            y = tf.nn.relu(conv_bn(x, f"{name}_conv1", stride))
            x = tf.nn.relu(conv_bn(y, f"{name}_conv2") + shortcut)
    return tf.reduce_mean(x, axis=(1, 2)) @ values["logits/kernel"] + values["logits/bias"]


def _alexnet(values: Values, images: np.ndarray) -> tf.Tensor:
    """AlexNet as tf_cnn_benchmarks has it."""

    def conv(x: tf.Tensor, name: str, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
        return tf.nn.relu(tf.nn.conv2d(x, values[f"{name}/kernel"], stride, padding) + values[f"{name}/bias"])

    def dense(x: tf.Tensor, name: str) -> tf.Tensor:
        return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]

    x = tf.nn.max_pool2d(conv(images, "conv1", 4, "VALID"), 3, 2, "VALID")
    x = tf.nn.max_pool2d(conv(x, "conv2"), 3, 2, "VALID")
    x = tf.nn.max_pool2d(conv(conv(conv(x, "conv3"), "conv4"), "conv5"), 3, 2, "VALID")
    x = tf.reshape(x, [len(images), -1])
    return dense(tf.nn.relu(dense(tf.nn.relu(dense(x, "fc6")), "fc7")), "logits")


@pytest.mark.parametrize(
    ("name", "reference", "image_size"),
    [("resnet20", _resnet20, 32), ("alexnet", _alexnet, 131)],
    ids=["resnet20", "alexnet"],
)
def test_logits_are_those_of_the_definition(
    name: str, reference: Callable[[Values, np.ndarray], tf.Tensor], image_size: int
) -> None:
    model, images = models.build(name, num_classes=CLASSES, image_size=image_size), _images(image_size)
    values = _random_values(model)
    _assert_same(_logits(model, values, images), reference(values, images).numpy())
