"""Layers that the models share. `Layers` makes them for one data format; no model names an axis.

Pooling, depthwise convolutions and batch normalisation are not Keras' own: it transposes the images of the first two in
NCHW, and its batch normalisation never uses TensorFlow's fused kernel.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import keras
import tensorflow as tf

from models.attention import ClassTokenAndPositions, DotProductAttention
from models.convolutions import USUAL_KERNELS, DepthwiseConvolution, Kernels, SymmetricConvolution, margins
from models.model_spec import Style
from models.seeds import RunTimeSeed

DataFormat = Literal["NHWC", "NCHW"]
KERAS_FORMATS: dict[DataFormat, str] = {"NHWC": "channels_last", "NCHW": "channels_first"}
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


class Normalization(keras.layers.Normalization):
    """Keras' normalisation; that one keeps its constants or stored figures as tensors of the graph that builds it."""

    def call(self, inputs: Any) -> Any:
        """Normalises with tensors of the graph that calls it."""
        if self.input_mean is None:
            self.finalize_state()
        else:
            super().build(tuple(inputs.shape))
        return super().call(inputs)


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
        padding: Any = self.padding.upper()
        if self.padding == "symmetric":
            padding = margins((self.size, self.size), self.data_format)
        return pool(inputs, self.size, self.stride, padding, self.data_format)

    def compute_output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape after pooling, so that Keras does not trace the layer to find it."""
        shape = list(input_shape)
        for axis in (2, 3) if self.data_format == "NCHW" else (1, 2):
            covered = shape[axis] - self.size + 1 if self.padding == "valid" else shape[axis]
            shape[axis] = -(-covered // self.stride)
        return tuple(shape)


class LocalResponseNorm(keras.layers.Layer):
    """Local response normalisation with `tf.nn`, whose kernels take NHWC and have no bfloat16."""

    def __init__(self, *, radius: int, alpha: float, beta: float, data_format: DataFormat, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.radius, self.alpha, self.beta = radius, alpha, beta
        self.data_format = data_format

    def call(self, inputs: Any) -> Any:
        """Normalises a 4-D batch in this layer's data format."""
        images = tf.cast(inputs, tf.float32)
        images = tf.transpose(images, [0, 2, 3, 1]) if self.data_format == "NCHW" else images
        outputs = tf.nn.local_response_normalization(images, self.radius, 1.0, self.alpha, self.beta)
        outputs = tf.transpose(outputs, [0, 3, 1, 2]) if self.data_format == "NCHW" else outputs
        return tf.cast(outputs, inputs.dtype)


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

    def __init__(self, data_format: DataFormat, *, kernels: Kernels = USUAL_KERNELS, fused_bn: bool = True) -> None:
        self.data_format = data_format
        self._style = Style()
        self.kernels = kernels
        self.batch_norm = FusedBatchNorm if fused_bn else SeparateBatchNorm
        self._keras_format, self._channel_axis = KERAS_FORMATS[data_format], data_format.index("C")

    def styled(self, style: Style) -> Layers:
        """Returns layers of the same data format in another style."""
        styled = copy.copy(self)
        styled._style = style
        return styled

    def conv(self, x: Tensor, filters: int, size: Size, *, stride: int = 1, padding: str = "same", name: str) -> Tensor:
        """Convolution with bias and ReLU."""
        x = self.conv_alone(x, filters, size, stride=stride, padding=padding, use_bias=True, name=name)
        return self.relu(x, name=f"{name}_relu")

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
        x = self.conv_alone(x, filters, size, stride=stride, padding=padding, name=name)
        return self.bn_relu(x, name=name) if relu else self._bn(x, name)

    def conv_alone(
        self,
        x: Tensor,
        filters: int,
        size: Size,
        *,
        stride: int = 1,
        padding: str = "same",
        use_bias: bool = False,
        name: str,
    ) -> Tensor:
        """Convolution without normalisation and ReLU, such as between pre-activations."""
        kind = self.kernels.layer(size, stride)
        if padding == "symmetric" and stride > 1 and self.kernels.that_pad:
            kind, padding = SymmetricConvolution, "same"
        x, padding = self._padded(x, size, stride, padding, name)
        return kind(
            filters,
            size,
            strides=stride,
            padding=padding,
            use_bias=use_bias,
            kernel_initializer=self._initializer(),
            data_format=self._keras_format,
            name=name,
        )(x)

    def bn_relu(self, x: Tensor, *, name: str) -> Tensor:
        """Batch normalisation, then ReLU: a pre-activation."""
        return self.relu(self._bn(x, name), name=f"{name}_relu")

    def pool(self, x: Tensor, kind: PoolKind, size: int, stride: int, *, padding: str = "valid", name: str) -> Tensor:
        """Maximum or average pooling; `symmetric` pads with zeros, which do not change a maximum after a ReLU."""
        if not (self.kernels.that_pad and kind == "max"):
            x, padding = self._padded(x, size, stride, padding, name)
        return Pool(kind, size=size, stride=stride, padding=padding, data_format=self.data_format, name=name)(x)

    def pad_channels(self, x: Tensor, channels: int) -> Tensor:
        """Appends channels of zeros up to `channels`."""
        paddings = [(0, 0)] * 4
        paddings[self._channel_axis] = (0, channels - self.channels(x))
        return keras.ops.pad(x, paddings)

    def add_relu(self, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
        """The end of a residual block."""
        return self.relu(self.add(x, shortcut, name=name), name=f"{name}_relu")

    def add(self, x: Tensor, shortcut: Tensor, *, name: str) -> Tensor:
        """The sum of two branches: the end of a residual block with pre-activations, or a pair in a cell."""
        return keras.layers.Add(name=f"{name}_add")([x, shortcut])

    def concat(self, branches: list[Tensor], *, name: str) -> Tensor:
        """Concatenates along the channels."""
        return keras.layers.Concatenate(axis=self._channel_axis, name=name)(branches)

    def global_average(self, x: Tensor) -> Tensor:
        """Mean over height and width: [batch, channels]."""
        return keras.layers.GlobalAveragePooling2D(data_format=self._keras_format, name="global_average")(x)

    def patches(self, x: Tensor, width: int, size: int, *, name: str) -> Tensor:
        """Linear projection of square patches, row by row: [batch, patches, width]."""
        x = self.conv_alone(x, width, size, stride=size, padding="valid", use_bias=True, name=name)
        if self.data_format == "NCHW":
            x = keras.layers.Permute((2, 3, 1), name=f"{name}_permute")(x)
        return keras.layers.Reshape((-1, width), name=f"{name}_reshape")(x)

    def with_positions(self, x: Tensor) -> Tensor:
        """A learned class token before the tokens, [batch, tokens, width], and a learned position added to each."""
        return ClassTokenAndPositions(name="embedding")(x)

    def first_token(self, x: Tensor) -> Tensor:
        """The first token of each image: [batch, width]."""
        return keras.layers.Flatten(name="first_token")(keras.layers.Cropping1D((0, x.shape[1] - 1), name="crop")(x))

    def layer_norm(self, x: Tensor, *, name: str) -> Tensor:
        """Normalisation of each token; its mean and variance are float32 for every compute type."""
        return keras.layers.LayerNormalization(epsilon=1e-6, name=name)(x)

    def attention(self, x: Tensor, heads: int, *, name: str) -> Tensor:
        """Attention over queries, keys and values, [batch, tokens, 3 * width]: [batch, tokens, width]."""
        return DotProductAttention(heads, name=name)(x)

    def linear(self, x: Tensor, units: int, *, activation: str | None = None, name: str) -> Tensor:
        """Dense layer of the last axis, with one of Keras' activations or none."""
        initializer = self._initializer()
        return keras.layers.Dense(units, activation=activation, kernel_initializer=initializer, name=name)(x)

    def flatten(self, x: Tensor) -> Tensor:
        """[batch, height * width * channels], in this order for both formats, so that weights fit both."""
        return keras.layers.Flatten(data_format=self._keras_format, name="flatten")(x)

    def dense(self, x: Tensor, units: int, *, name: str) -> Tensor:
        """Dense layer with ReLU."""
        return self.linear(x, units, activation="relu", name=name)

    def dropout(self, x: Tensor, rate: float = 0.5, *, name: str) -> Tensor:
        """Drops this share of the units in training."""
        return keras.layers.Dropout(rate, name=name)(x)

    def classifier(self, x: Tensor, num_classes: int) -> Tensor:
        """Logits in float32, for every compute type."""
        initializer = keras.initializers.RandomNormal(stddev=0.01, seed=RunTimeSeed())
        return keras.layers.Dense(num_classes, kernel_initializer=initializer, dtype="float32", name="logits")(x)

    def depthwise(self, x: Tensor, size: int, *, stride: int = 1, name: str) -> Tensor:
        """Convolution without bias of each channel by a kernel of its own."""
        return DepthwiseConvolution(
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            depthwise_initializer=self._initializer(channels=self.channels(x)),
            data_format=self._keras_format,
            name=name,
        )(x)

    def shift(self, x: Tensor, *, name: str) -> Tensor:
        """Moves images up and left by one pixel; zeros enter at the bottom and on the right."""
        before, after = ((0, 1), (0, 1)), ((1, 0), (1, 0))
        x = keras.layers.ZeroPadding2D(before, data_format=self._keras_format, name=f"{name}_pad")(x)
        return keras.layers.Cropping2D(after, data_format=self._keras_format, name=f"{name}_crop")(x)

    def local_response_norm(self, x: Tensor, *, radius: int, alpha: float, beta: float, name: str) -> Tensor:
        """Divides by (1 + alpha * sum of squares over 2 * `radius` + 1 neighbouring channels) ** beta."""
        return LocalResponseNorm(radius=radius, alpha=alpha, beta=beta, data_format=self.data_format, name=name)(x)

    def relu(self, x: Tensor, *, name: str) -> Tensor:
        """A ReLU of its own."""
        return keras.layers.ReLU(name=name)(x)

    def channels(self, x: Tensor) -> int:
        """Returns the number of channels."""
        return x.shape[self._channel_axis]

    def height(self, x: Tensor) -> int:
        """Returns the height in pixels."""
        return x.shape[self.data_format.index("H")]

    def _initializer(self, channels: int = 1) -> keras.initializers.Initializer:
        # A depthwise kernel does not sum over its channels, but Keras counts them in its fan-in.
        # Uniform draws initialise VGG-16's 138 M weights in a third of the time of truncated normal draws.
        return keras.initializers.VarianceScaling(
            self._style.kernel_gain * channels, mode="fan_in", distribution="uniform", seed=RunTimeSeed()
        )

    def _bn(self, x: Tensor, name: str) -> Tensor:
        return self.batch_norm(
            data_format=self.data_format,
            momentum=0.9,
            epsilon=self._style.batch_norm_epsilon,
            scale=self._style.batch_norm_scale,
            name=f"{name}_bn",
        )(x)

    def _padded(self, x: Tensor, size: Size, stride: int, padding: str, name: str) -> tuple[Tensor, str]:
        """Returns the padded input of a convolution or pool, and TensorFlow's padding for it."""
        if padding != "symmetric":
            return x, padding
        if stride == 1:
            return x, "same"
        rows, columns = (size, size) if isinstance(size, int) else size
        pad = keras.layers.ZeroPadding2D((rows // 2, columns // 2), data_format=self._keras_format, name=f"{name}_pad")
        return pad(x), "valid"
