"""Convolutions that Keras computes otherwise, with the weights of Keras' layers.

Some are computed as matrix products, in NHWC only. On CPUs, TensorFlow's kernel for the filter gradient reaches far
fewer operations per second than its kernel for the convolution. The same sums written as matrix products use the faster
matrix kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What computes convolutions and pools, where it is not TensorFlow's usual kernel.

    Attributes:
        conv1x1: 1x1 convolutions and their gradients are matrix products.
        filter_gradients: the filter gradients of larger convolutions without strides are matrix products. With strides,
            the pixels would have to be gathered one by one, which is slower than TensorFlow's kernel.
        that_pad: kernels pad symmetrically on their own, instead of a copy of the images with zeros around them. On
            CPUs, oneDNN has no gradients of such convolutions, and no kernel takes NCHW; XLA has no such pools.
    """

    conv1x1: bool = False
    filter_gradients: bool = False
    that_pad: bool = False

    def layer(self, size: int | tuple[int, int], stride: int) -> type[keras.layers.Conv2D]:
        """Returns the layer class for a convolution of this kernel size (height and width) and stride."""
        if size in (1, (1, 1)):
            return PixelwiseProduct if self.conv1x1 else keras.layers.Conv2D
        return ProductGradient if self.filter_gradients and stride == 1 else keras.layers.Conv2D


USUAL_KERNELS = Kernels()


class PixelwiseProduct(keras.layers.Conv2D):
    """A 1x1 convolution as one matrix product."""

    def call(self, inputs: Any) -> Any:
        """Multiplies the channels of every `strides`-th pixel by the kernel."""
        down, across = self.strides
        pixels = inputs[:, ::down, ::across] if (down, across) != (1, 1) else inputs
        kernel = tf.reshape(tf.convert_to_tensor(self.kernel), [-1, self.filters])
        product = tf.matmul(tf.reshape(pixels, [-1, kernel.shape[0]]), kernel)
        outputs = tf.reshape(product, [-1, *pixels.shape[1:3], self.filters])
        return _with_bias_and_activation(self, outputs)


class ProductGradient(keras.layers.Conv2D):
    """A convolution without strides whose filter gradient is computed as matrix products.

    The forward pass uses TensorFlow's kernel, but Grappler does not fuse it with a following bias or ReLU.
    """

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch with known height and width."""
        outputs = _convolution(self.padding.upper())(inputs, tf.convert_to_tensor(self.kernel))
        return _with_bias_and_activation(self, outputs)


class SymmetricConvolution(keras.layers.Conv2D):
    """A convolution of an odd size that pads all sides by half of it. Its outputs have the shape of Keras' `same`."""

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch."""
        layout, kernel = _layout(self), tf.convert_to_tensor(self.kernel)
        outputs = tf.nn.conv2d(inputs, kernel, self.strides, margins(self.kernel_size, layout), layout)
        return _with_bias_and_activation(self, outputs)


def margins(size: tuple[int, int], layout: str) -> list[tuple[int, int]]:
    """Returns half of a kernel's height and width as TensorFlow's explicit padding of images in this layout."""
    half = {"H": size[0] // 2, "W": size[1] // 2}
    return [(half.get(axis, 0),) * 2 for axis in layout]


class GroupedConvolution(keras.layers.Conv2D):
    """A convolution in groups of channels without dilation, in either layout.

    Keras compiles it with XLA, apart from the rest of the graph. This one is a depthwise convolution if every channel
    is a group and the strides are equal, as TensorFlow's kernel wants them, else a convolution per group: on CPUs, only
    oneDNN has the gradient of the whole.
    """

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch."""
        layout, kernel, padding = _layout(self), tf.convert_to_tensor(self.kernel), self.padding.upper()
        axis = layout.index("C")
        if self.groups == inputs.shape[axis] and self.strides[0] == self.strides[1]:
            kernel = tf.reshape(kernel, [*self.kernel_size, self.groups, self.filters // self.groups])
            outputs = _by_channel(self, inputs, kernel)
        else:
            parts = zip(tf.split(inputs, self.groups, axis), tf.split(kernel, self.groups, -1), strict=True)
            outputs = tf.concat([tf.nn.conv2d(i, k, self.strides, padding, layout) for i, k in parts], axis)
        return _with_bias_and_activation(self, outputs)


class DepthwiseConvolution(keras.layers.DepthwiseConv2D):
    """A convolution of each channel by kernels of its own, without dilation, in either layout.

    Keras transposes images in NCHW, forward and backward, unless the eager runtime has a GPU, and this suite hides the
    GPUs from it (keras/src/backend/tensorflow/nn.py).
    """

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch."""
        return _with_bias_and_activation(self, _by_channel(self, inputs, tf.convert_to_tensor(self.kernel)))


class SeparableConvolution(keras.layers.SeparableConv2D):
    """A depthwise convolution without dilation, then one of 1x1, in either layout: Keras transposes here as well."""

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch."""
        x = _by_channel(self, inputs, tf.convert_to_tensor(self.depthwise_kernel))
        x = tf.nn.conv2d(x, tf.convert_to_tensor(self.pointwise_kernel), 1, "VALID", _layout(self))
        return _with_bias_and_activation(self, x)


def _layout(layer: Any) -> str:
    return "NCHW" if layer.data_format == "channels_first" else "NHWC"


def _by_channel(layer: Any, images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    layout = _layout(layer)
    strides = (1, 1, *layer.strides) if layout == "NCHW" else (1, *layer.strides, 1)
    return tf.nn.depthwise_conv2d(images, kernel, strides, layer.padding.upper(), layout)


def _with_bias_and_activation(layer: Any, outputs: tf.Tensor) -> Any:
    if layer.use_bias:
        outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(layer.bias), _layout(layer))
    return layer.activation(outputs)


def _convolution(padding: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def convolve(images: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            by_images = tf.nn.conv2d_transpose(upstream, kernel, tf.shape(images), 1, padding)
            around = [((size - 1) // 2, size // 2) if padding == "SAME" else (0, 0) for size in kernel.shape[:2]]
            # Without this dependency TensorFlow pads all layers' images early and keeps the copies in memory.
            with tf.control_dependencies([upstream]):
                padded = tf.pad(images, [(0, 0), *around, (0, 0)])
            return by_images, _filter_gradient(padded, upstream, kernel.shape)

        return tf.nn.conv2d(images, kernel, 1, padding), gradients

    return convolve


def _filter_gradient(images: tf.Tensor, upstream: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the gradient by a kernel of that shape: [height, width, channels, filters].

    One product per row of the kernel: the pixels under that row are concatenated as channels. A product per pixel would
    have fewer rows and be slower. One product for the whole kernel would copy the images nine times at 3x3, instead of
    six times: three for the concatenation, three for the current row.
    """
    height, width, channels, filters = shape
    columns = images.shape[2] - width + 1
    rows = images.shape[1] - height + 1
    beside = tf.concat([images[:, :, left : left + columns] for left in range(width)], axis=-1)
    flat = tf.reshape(upstream, [-1, filters])
    products: list[tf.Tensor] = []
    for top in range(height):
        with tf.control_dependencies(products[-1:]):
            covered = tf.reshape(beside[:, top : top + rows], [-1, width * channels])
        products.append(tf.matmul(covered, flat, transpose_a=True))
    return tf.reshape(tf.stack(products), shape)
