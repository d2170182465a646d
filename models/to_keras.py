"""Clones a model of this suite with Keras' own layers, so that Keras saves and loads it without this suite."""

from __future__ import annotations

from typing import Any

import keras

from models.convolutions import (
    DepthwiseConvolution,
    GroupedConvolution,
    PixelwiseProduct,
    ProductGradient,
    SeparableConvolution,
)
from models.from_keras import InFloat32, cloning
from models.layers import KERAS_FORMATS, FusedBatchNorm, LocalResponseNorm, Normalization, Pool
from models.outside_code import UnusableModelError

# What Keras' layers, of which they are subclasses, compute as well.
_DERIVED = (
    DepthwiseConvolution,
    FusedBatchNorm,
    GroupedConvolution,
    Normalization,
    PixelwiseProduct,
    ProductGradient,
    SeparableConvolution,
)


def plain(keras_model: keras.Model) -> keras.Model:
    """Clones a model in its data format; names of layers stay, and the variables have the same order.

    Layers that Keras does not have stay: the class token of a vision transformer and its attention, and those of a
    user's model. Values are not copied: inside `building.no_own_variables` none is allocated.

    Raises:
        UnusableModelError: a layer of a user's model does not say how to make a copy of it.
    """
    return keras.models.clone_model(keras_model, clone_function=cloning(_plain))


def _plain(layer: Any) -> Any:
    if isinstance(layer, LocalResponseNorm):
        return _local_response_norm(layer)
    if isinstance(layer, InFloat32):
        return keras.layers.Activation("linear", dtype="float32", name=layer.name)
    if isinstance(layer, Pool):
        kind = keras.layers.MaxPooling2D if layer.kind == "max" else keras.layers.AveragePooling2D
        return kind(layer.size, layer.stride, layer.padding, KERAS_FORMATS[layer.data_format], name=layer.name)
    try:
        keras_class: Any = type(layer)
        while issubclass(keras_class, _DERIVED):
            keras_class = keras_class.__base__
        return keras_class.from_config(_without_seeds(layer.get_config()))
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnusableModelError(
            f"its layer '{layer.name}' cannot be saved: its class needs a get_config() that returns all arguments of "
            "its constructor, and none may be a lambda."
        ) from error


def _without_seeds(config: Any) -> Any:
    """Removes the seeds of initialisers and of dropout: those of `models.seeds` cannot be saved."""
    if isinstance(config, dict):
        return {name: None if name == "seed" else _without_seeds(value) for name, value in config.items()}
    return config


def _local_response_norm(layer: LocalResponseNorm) -> keras.Model:
    """Returns a model of operations: the sum over neighbouring channels is an average pool of their squares."""
    ops, count = keras.ops, 2 * layer.radius + 1
    images = keras.Input(layer.input.shape[1:])
    x = ops.moveaxis(images, 1, -1) if layer.data_format == "NCHW" else images
    height, width, channels = x.shape[1:]
    squares = ops.reshape(ops.square(x), (-1, height * width, channels, 1))
    padded = ops.pad(squares, ((0, 0), (0, 0), (layer.radius, layer.radius), (0, 0)))
    sums = count * ops.average_pool(padded, (1, count), 1, "valid", "channels_last")
    x = x / ops.power(1.0 + layer.alpha * ops.reshape(sums, (-1, height, width, channels)), layer.beta)
    return keras.Model(images, ops.moveaxis(x, -1, 1) if layer.data_format == "NCHW" else x, name=layer.name)
