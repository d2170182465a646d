"""Compares the logits of a model with those of another implementation, for the same random weights and averages."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping

import keras
import numpy as np
import tensorflow as tf

from models import building
from models.building import ModelVariable
from tests.support import models

CLASSES = 11
# Names of our layer with weights, and of the reference's.
Pairs = Iterable[tuple[str, str]]
# Of variables, by `layer/variable`.
Values = Mapping[str, np.ndarray]


def images(size: int) -> np.ndarray:
    """Returns noise of three colours: without these, global averages of all images are about the same."""
    random = np.random.default_rng(1)
    noise, colours = (random.standard_normal((3, *sides, 3), np.float32) for sides in ((size, size), (1, 1)))
    return noise + colours


def _short(name: str) -> str:
    """Returns the name of a variable without the models that its layer is nested in."""
    return "/".join(name.split("/")[-2:])


def random_value(variable: ModelVariable, random: np.random.Generator, gain: float = 2.0) -> np.ndarray:
    """Draws a value with which no part of a layer is without effect, and which keeps the size of activations."""
    name, shape = variable.name, variable.shape
    if variable.kind == "tower_state":
        return np.zeros(shape, variable.dtype)
    if name.endswith("kernel"):
        depthwise = len(shape) == 4 and shape[-1] == 1  # [height, width, channels, 1]
        deviation = np.sqrt(gain / np.prod(shape[: 2 if depthwise else -1]), dtype=np.float32)
        return random.standard_normal(shape, np.float32) * deviation
    is_scale = name.endswith(("gamma", "variance"))
    value = random.uniform(0.5, 1.5, shape) if is_scale else random.normal(0.0, 0.1, shape)
    return value.astype(variable.dtype)


def random_values(model: building.Model) -> dict[str, np.ndarray]:
    """Returns a value for each variable."""
    random = np.random.default_rng(2)
    return {_short(variable.name): random_value(variable, random) for variable in model.variables}


def logits(model: building.Model, values: Values, given: np.ndarray) -> np.ndarray:
    """Runs a model on images, [batch, height, width, channels], without dropout."""
    in_order = [
        tf.zeros(variable.shape, variable.dtype) if variable.kind == "tower_state" else values[_short(variable.name)]
        for variable in model.variables
    ]
    return model.call(in_order, tf.constant(given), training=False)[0].numpy()


def assert_same(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compares logits to 1e-5 of the largest: rounding alone makes up to 3e-6."""
    largest = np.abs(theirs).max()
    assert theirs.std(axis=0).mean() > 0.005 * largest, "logits that do not depend on the image prove nothing"
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)


def assert_defined(name: str, image_size: int, definition: Callable[[Values, np.ndarray], tf.Tensor]) -> None:
    """Compares a model's logits with those of its definition, written out with TensorFlow's operations."""
    model, given = models.build(name, num_classes=CLASSES, image_size=image_size), images(image_size)
    values = random_values(model)
    assert_same(logits(model, values, given), definition(values, given).numpy())


@functools.cache
def application(name: str, image_size: int) -> building.Model:
    """Builds a model of `keras.applications`, without its own weights and without softmax."""
    with building.stateless_building(seed=0):
        make = getattr(keras.applications, name)
        shape = (image_size, image_size, 3)
        return building.adapt(make(weights=None, input_shape=shape, classes=CLASSES, classifier_activation=None))


def renumbered(values: Values) -> dict[str, np.ndarray]:
    """Renames what Keras only numbers, over all models of the process, to `0_conv`, `0_bn`, `1_conv`, ..."""
    kinds = {"conv2d": "conv", "batch_normalization": "bn"}
    names = {}
    for kind, short in kinds.items():
        layers = {path.split("/")[0] for path in values if re.match(rf"{kind}(_\d+)?/", path)}
        in_order = sorted(layers, key=lambda layer: int("0" + re.sub(r"\D", "", layer.removeprefix(kind))))
        names |= {layer: f"{number}_{short}" for number, layer in enumerate(in_order)}
    parts = ((*path.split("/"), value) for path, value in values.items())
    return {f"{names.get(layer, layer)}/{variable}": value for layer, variable, value in parts}


def translated(theirs: Values, layers: Pairs) -> dict[str, np.ndarray]:
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


def normal(values: Values, x: tf.Tensor, name: str, epsilon: float) -> tf.Tensor:
    """Batch normalisation with the moving averages; without a scale if there is none."""
    deviation = np.sqrt(values[f"{name}_bn/moving_variance"] + epsilon)
    x = (x - values[f"{name}_bn/moving_mean"]) / deviation
    return values.get(f"{name}_bn/gamma", 1.0) * x + values[f"{name}_bn/beta"]


def conv(values: Values, x: tf.Tensor, name: str, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
    """A convolution with a bias and a ReLU."""
    return tf.nn.relu(tf.nn.conv2d(x, values[f"{name}/kernel"], stride, padding) + values[f"{name}/bias"])


def dense(values: Values, x: tf.Tensor, name: str) -> tf.Tensor:
    """A dense layer without an activation."""
    return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]
