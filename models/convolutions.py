"""Convolutions that TensorFlow's convolution kernels do not compute alone; NHWC only. Their weights are the same.

On CPUs the kernel for the gradient by the filter does far fewer operations a second than the one for the convolution
itself. The same sums are products of matrices, for which there is another kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Products:
    """Which convolutions, or parts of them, are computed as matrix products.

    Attributes:
        conv1x1: convolutions of one pixel, and their gradients.
        filter_gradients: the gradients by the filter of those that look at more than one pixel, without strides. With
            strides the pixels would have to be gathered one by one, which takes longer than TensorFlow's kernel.
    """

    conv1x1: bool = False
    filter_gradients: bool = False

    def layer(self, size: int | tuple[int, int], stride: int) -> type[keras.layers.Conv2D]:
        """Returns the layer for a convolution that looks at so many pixels, down and across."""
        if size in (1, (1, 1)):
            return PixelwiseProduct if self.conv1x1 else keras.layers.Conv2D
        return ProductGradient if self.filter_gradients and stride == 1 else keras.layers.Conv2D


NO_PRODUCTS = Products()


class PixelwiseProduct(keras.layers.Conv2D):
    """A convolution of one pixel, written as the matrix product that it is."""

    def call(self, inputs: Any) -> Any:
        """Multiplies the channels of each pixel, of every `strides`-th one, by the kernel."""
        down, across = self.strides
        pixels = inputs[:, ::down, ::across] if (down, across) != (1, 1) else inputs
        kernel = tf.reshape(tf.convert_to_tensor(self.kernel), [-1, self.filters])
        product = tf.matmul(tf.reshape(pixels, [-1, kernel.shape[0]]), kernel)
        outputs = tf.reshape(product, [-1, *pixels.shape[1:3], self.filters])
        return tf.nn.bias_add(outputs, tf.convert_to_tensor(self.bias)) if self.use_bias else outputs


class ProductGradient(keras.layers.Conv2D):
    """A convolution without strides whose gradient by the filter is computed as matrix products.

    On the way forward it is TensorFlow's kernel, but Grappler fuses that with no bias and no ReLU behind it.
    """

    def call(self, inputs: Any) -> Any:
        """Convolves a 4-D batch with known height and width."""
        convolve = _convolve_same if self.padding == "same" else _convolve_valid
        outputs = convolve(inputs, tf.convert_to_tensor(self.kernel))
        return tf.nn.bias_add(outputs, tf.convert_to_tensor(self.bias)) if self.use_bias else outputs


_Gradients = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@tf.custom_gradient
def _convolve_same(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, _Gradients]:
    around = [((size - 1) // 2, size // 2) for size in kernel.shape[:2]]
    return tf.nn.conv2d(images, kernel, 1, "SAME"), _gradients(images, kernel, around, "SAME")


@tf.custom_gradient
def _convolve_valid(images: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, _Gradients]:
    return tf.nn.conv2d(images, kernel, 1, "VALID"), _gradients(images, kernel, [(0, 0), (0, 0)], "VALID")


def _gradients(images: tf.Tensor, kernel: tf.Tensor, around: Sequence[tuple[int, int]], padding: str) -> _Gradients:
    """Returns what computes the gradients by the images and by the kernel, given the zeros around the images."""

    def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        by_images = tf.nn.conv2d_transpose(upstream, kernel, tf.shape(images), 1, padding)
        # Without waiting, the copies would be made on the way forward, and all layers' kept until the way back.
        with tf.control_dependencies([upstream]):
            padded = tf.pad(images, [(0, 0), *around, (0, 0)])
        return by_images, _by_kernel(padded, upstream, kernel.shape)

    return gradients


def _by_kernel(images: tf.Tensor, upstream: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns the gradient by a kernel of that shape: [height, width, channels, filters].

    There is one product per row of the kernel: the pixels that it covers are laid beside each other, as more channels.
    A product per pixel would be of matrices with fewer rows, and slower. One for the whole kernel would copy the images
    nine times at 3x3; so it is six: three for all rows, and three for the row at hand.
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
