"""Layers that the models share. `Layers` makes them for one data format; no model names an axis.

Pooling and batch normalisation are not Keras' own: its pooling inserts transposes for NCHW, and its batch normalisation
never uses TensorFlow's fused kernel.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

import keras
import tensorflow as tf

from models.convolutions import NO_PRODUCTS, Products
from models.seeds import RunTimeSeed

DataFormat = Literal["NHWC", "NCHW"]
PoolKind = Literal["max", "avg"]
Tensor = Any  # a Keras symbolic tensor
Size = int | tuple[int, int]  # of a kernel: one number for a square, or height and width


class FusedBatchNorm(keras.layers.BatchNormalization):
    """Batch normalisation with `tf.compat.v1.nn.fused_batch_norm`; statistics are float32 for every compute type.

    In training, the kernel updates the averages (`exponential_avg_factor`), which saves six small operations per layer.
    The moving variance averages the unbiased batch variance, as in tf_cnn_benchmarks and cuDNN.

    The kernel takes bfloat16 images with float32 scales, so Keras must cast neither.
    """

    def __init__(self, *, data_format: DataFormat, **kwargs: Any) -> None:
        super().__init__(axis=1 if data_format == "NCHW" else -1, **{"dtype": "float32", "autocast": False, **kwargs})
        self.data_format = data_format

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalises a 4-D batch in this layer's data format."""
        channels, float32 = self.moving_mean.shape, self.variable_dtype
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            scale=tf.convert_to_tensor(self.gamma) if self.scale else tf.ones(channels, float32),
            offset=tf.convert_to_tensor(self.beta) if self.center else tf.zeros(channels, float32),
            mean=tf.convert_to_tensor(self.moving_mean),
            variance=tf.convert_to_tensor(self.moving_variance),
            epsilon=self.epsilon,
            data_format=self.data_format,
            is_training=bool(training),
            exponential_avg_factor=1.0 - self.momentum,
        )
        if training:
            self.moving_mean.assign(mean)
            self.moving_variance.assign(variance)
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; the axis follows from the data format."""
        config = super().get_config() | {"data_format": self.data_format}
        config.pop("axis")
        return config


class SeparateBatchNorm(FusedBatchNorm):
    """The same in separate operations: mean, variance, normalisation, and the moving averages; all in float32."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalises a 4-D batch in this layer's data format."""
        images = tf.cast(inputs, tf.float32)
        mean, variance = (tf.convert_to_tensor(average) for average in (self.moving_mean, self.moving_variance))
        if training:
            axes = [0, 2, 3] if self.data_format == "NCHW" else [0, 1, 2]
            mean, variance = tf.nn.moments(images, axes)
            count = tf.cast(tf.size(images) // tf.size(mean), tf.float32)
            unbiased = variance * (count / tf.maximum(count - 1.0, 1.0))
            for average, of_batch in ((self.moving_mean, mean), (self.moving_variance, unbiased)):
                average.assign(self.momentum * tf.convert_to_tensor(average) + (1.0 - self.momentum) * of_batch)
        shape = [-1, 1, 1] if self.data_format == "NCHW" else [-1]
        mean, variance, gamma, beta = (
            None if value is None else tf.reshape(value, shape) for value in (mean, variance, self.gamma, self.beta)
        )
        outputs = tf.nn.batch_normalization(images, mean, variance, beta, gamma, self.epsilon)
        return tf.cast(outputs, inputs.dtype)


class Pool(keras.layers.Layer):
    """Maximum or average pooling with `tf.nn`, which has kernels for both data formats."""

    def __init__(
        self, kind: PoolKind, *, size: int, stride: int, padding: str, data_format: DataFormat, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kind, self.size, self.stride, self.padding = kind, size, stride, padding
        self.data_format = data_format

    def call(self, inputs: Any) -> Any:
        """Pools a 4-D batch in this layer's data format."""
        pool = tf.nn.max_pool2d if self.kind == "max" else tf.nn.avg_pool2d
        return pool(inputs, self.size, self.stride, self.padding.upper(), self.data_format)

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape after pooling, so that Keras does not trace the layer to find it."""
        shape = list(input_shape)
        for axis in (2, 3) if self.data_format == "NCHW" else (1, 2):
            covered = shape[axis] if self.padding == "same" else shape[axis] - self.size + 1
            shape[axis] = -(-covered // self.stride)
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class Style:
    """The settings that differ between families of models: initial kernels and batch normalisation."""

    kernel_gain: float = 2.0
    batch_norm_scale: bool = True
    batch_norm_epsilon: float = 1e-5


class Layers:
    """Makes layers of one data format and one style.

    Kernels start uniform with variance `kernel_gain` / fan-in. The gain of He et al. 2015 (arXiv:1502.01852), 2, keeps
    the size of activations through ReLUs. Maximum pooling increases activations. So a model with many pooling layers
    and no batch normalisation needs a smaller gain; otherwise its first loss is far from ln(classes) and its first
    steps overflow.

    Convolutions and pools take a padding: `valid`, `same` or `symmetric`. The last two differ with a stride:
    TensorFlow's `same` pads even sizes by one more at the bottom and on the right; `symmetric` pads all sides by half
    the kernel, as the code of most papers does.
    """

    def __init__(
        self,
        data_format: DataFormat,
        style: Style = Style(),
        products: Products = NO_PRODUCTS,
        *,
        fused_bn: bool = True,
    ) -> None:
        self.data_format = data_format
        self._style = style
        self._products = products
        self._batch_norm = FusedBatchNorm if fused_bn else SeparateBatchNorm
        self._keras_format, self._channel_axis = (
            ("channels_first", 1) if data_format == "NCHW" else ("channels_last", 3)
        )

    def styled(self, style: Style) -> Layers:
        """Returns layers of the same data format in another style."""
        styled = copy.copy(self)
        styled._style = style
        return styled

    def conv(self, x: Tensor, filters: int, size: Size, *, stride: int = 1, padding: str = "same", name: str) -> Tensor:
        """Convolution with bias and ReLU."""
        x = self._conv2d(x, filters, size, stride=stride, padding=padding, use_bias=True, name=name)
        return keras.layers.ReLU(name=f"{name}_relu")(x)

    def conv_bn(
        self,
        x: Tensor,
        filters: int,
        size: Size,
        *,
        stride: int = 1,
        padding: str = "same",
        relu: bool = True,
        name: str,
    ) -> Tensor:
        """Convolution without bias, then batch normalisation, then ReLU unless `relu` is false."""
        x = self._conv2d(x, filters, size, stride=stride, padding=padding, use_bias=False, name=name)
        x = self._batch_norm(
            data_format=self.data_format,
            momentum=0.9,
            epsilon=self._style.batch_norm_epsilon,
            scale=self._style.batch_norm_scale,
            name=f"{name}_bn",
        )(x)
        return keras.layers.ReLU(name=f"{name}_relu")(x) if relu else x

    def pool(self, x: Tensor, kind: PoolKind, size: int, stride: int, *, padding: str = "valid", name: str) -> Tensor:
        """Maximum or average pooling; `symmetric` pads with zeros, which do not change a maximum after a ReLU."""
        x, padding = self._padded(x, size, stride, padding, name)
        return Pool(kind, size=size, stride=stride, padding=padding, data_format=self.data_format, name=name)(x)

    def pad_channels(self, x: Tensor, channels: int) -> Tensor:
        """Appends channels of zeros up to `channels`."""
        paddings = [(0, 0)] * 4
        paddings[self._channel_axis] = (0, channels - x.shape[self._channel_axis])
        return keras.ops.pad(x, paddings)

    def add_relu(self, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
        """The end of a residual block."""
        return keras.layers.ReLU(name=f"{name}_relu")(keras.layers.Add(name=f"{name}_add")([x, shortcut]))

    def concat(self, branches: list[Tensor], *, name: str) -> Tensor:
        """Concatenates along the channels."""
        return keras.layers.Concatenate(axis=self._channel_axis, name=name)(branches)

    def global_average(self, x: Tensor) -> Tensor:
        """Mean over height and width: [batch, channels]."""
        return keras.layers.GlobalAveragePooling2D(data_format=self._keras_format, name="global_average")(x)

    def flatten(self, x: Tensor) -> Tensor:
        """[batch, height * width * channels], in this order for both formats, so that weights fit both."""
        return keras.layers.Flatten(data_format=self._keras_format, name="flatten")(x)

    def dense(self, x: Tensor, units: int, *, name: str) -> Tensor:
        """Dense layer with ReLU."""
        return keras.layers.Dense(units, activation="relu", kernel_initializer=self._initializer(), name=name)(x)

    def dropout(self, x: Tensor, *, name: str) -> Tensor:
        """Drops half of the units in training."""
        return keras.layers.Dropout(0.5, name=name)(x)

    def classifier(self, x: Tensor, num_classes: int) -> Tensor:
        """Logits in float32, for every compute type."""
        initializer = keras.initializers.RandomNormal(stddev=0.01, seed=RunTimeSeed())
        return keras.layers.Dense(num_classes, kernel_initializer=initializer, dtype="float32", name="logits")(x)

    def _initializer(self) -> keras.initializers.Initializer:
        # Uniform draws initialise VGG-16's 138 M weights in a third of the time of truncated normal draws.
        return keras.initializers.VarianceScaling(
            self._style.kernel_gain, mode="fan_in", distribution="uniform", seed=RunTimeSeed()
        )

    def _conv2d(
        self, x: Tensor, filters: int, size: Size, *, stride: int, padding: str, use_bias: bool, name: str
    ) -> Tensor:
        x, padding = self._padded(x, size, stride, padding, name)
        return self._products.layer(size, stride)(
            filters,
            size,
            strides=stride,
            padding=padding,
            use_bias=use_bias,
            kernel_initializer=self._initializer(),
            data_format=self._keras_format,
            name=name,
        )(x)

    def _padded(self, x: Tensor, size: Size, stride: int, padding: str, name: str) -> tuple[Tensor, str]:
        """Returns the padded input of a convolution or pool, and TensorFlow's padding for it."""
        if padding != "symmetric":
            return x, padding
        if stride == 1:
            return x, "same"
        rows, columns = (size, size) if isinstance(size, int) else size
        # A layer: TensorFlow's kernels take no explicit padding for NCHW on CPUs, nor for pools under XLA.
        pad = keras.layers.ZeroPadding2D((rows // 2, columns // 2), data_format=self._keras_format, name=f"{name}_pad")
        return pad(x), "valid"
