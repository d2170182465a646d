from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import building
from models.layers import FusedBatchNorm, Layers, Pool, SeparateBatchNorm
from models.model_spec import Style

EPSILON, MOMENTUM = 1e-3, 0.75
IMAGES = np.random.default_rng(3).normal(1.0, 2.0, size=(5, 4, 4, 3)).astype(np.float32)
VALUES = {"gamma": [1.0, 2.0, 0.5], "beta": [0.0, 1.0, -1.0], "mean": [0.5, -0.5, 0.0], "variance": [1.0, 4.0, 0.25]}


BatchNorm = type[FusedBatchNorm]
every_kind = pytest.mark.parametrize("kind", [FusedBatchNorm, SeparateBatchNorm])


def _computed(
    data_format: str,
    make: Callable[[Any], Any],
    values: Iterable[Any] = (),
    *,
    dtype: tf.DType = tf.float32,
    training: bool = True,
    gradients: bool = False,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns what layers make of `IMAGES`, in NHWC, and their new state or, of some upstream values, the gradients."""
    is_nchw = data_format == "NCHW"
    with building.stateless_building(seed=0, policy="float32" if dtype is tf.float32 else f"mixed_{dtype.name}"):
        images = keras.Input((3, 4, 4) if is_nchw else (4, 4, 3), dtype=dtype.name)
        model = building.adapt(keras.Model(images, make(images)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.cast(IMAGES.transpose(0, 3, 1, 2) if is_nchw else IMAGES, dtype)
        variables = [tf.constant(value) for value in values]
        outputs, state = model.call(variables, given, training=training)
        assert outputs.dtype == dtype
        others = list(state.values())
        if gradients:
            upstream = tf.cast(tf.cos(tf.range(IMAGES.size, dtype=tf.float32)), dtype)
            others = tf.gradients(outputs, [given, *variables[:2]], tf.reshape(upstream, outputs.shape))
        found, *others = session.run([tf.cast(tensor, tf.float32) for tensor in (outputs, *others)])
    return (found.transpose(0, 2, 3, 1) if is_nchw else found), others


def _batch_norm(
    kind: BatchNorm, data_format: str, *, scale: bool, training: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    layer = kind(data_format=data_format, epsilon=EPSILON, momentum=MOMENTUM, scale=scale, name="bn")
    values = [value for name, value in VALUES.items() if scale or name != "gamma"]
    return _computed(data_format, layer, values, training=training)


@every_kind
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm_in_training_against_numpy(kind: BatchNorm, data_format: str, scale: bool) -> None:
    outputs, (mean, variance) = _batch_norm(kind, data_format, scale=scale, training=True)
    batch_mean, batch_variance = IMAGES.mean((0, 1, 2)), IMAGES.var((0, 1, 2))
    gamma = np.array(VALUES["gamma"]) if scale else 1.0
    expected = (IMAGES - batch_mean) / np.sqrt(batch_variance + EPSILON) * gamma + VALUES["beta"]
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    unbiased = IMAGES.var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(mean, MOMENTUM * np.array(VALUES["mean"]) + (1 - MOMENTUM) * batch_mean, rtol=1e-5)
    np.testing.assert_allclose(variance, MOMENTUM * np.array(VALUES["variance"]) + (1 - MOMENTUM) * unbiased, rtol=1e-5)


@every_kind
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_batch_norm_in_inference_uses_the_averages_and_leaves_them(kind: BatchNorm, data_format: str) -> None:
    outputs, (mean, variance) = _batch_norm(kind, data_format, scale=True, training=False)
    expected = (IMAGES - VALUES["mean"]) / np.sqrt(np.array(VALUES["variance"]) + EPSILON)
    np.testing.assert_allclose(outputs, expected * VALUES["gamma"] + VALUES["beta"], atol=1e-5)
    np.testing.assert_allclose(mean, VALUES["mean"])
    np.testing.assert_allclose(variance, VALUES["variance"])


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_gradients_of_batch_norm_are_the_same_fused_and_in_separate_operations(
    data_format: str, dtype: tf.DType
) -> None:
    """A gradient through the batch statistics, of the images, the scale and the offset, in the type of the images."""
    found = []
    for kind in (FusedBatchNorm, SeparateBatchNorm):
        layer = kind(data_format=data_format, epsilon=EPSILON)
        outputs, gradients = _computed(data_format, layer, VALUES.values(), dtype=dtype, gradients=True)
        found.append([outputs, *gradients])
    for fused, separate in zip(*found, strict=True):
        np.testing.assert_allclose(separate, fused, atol=(1e-5 if dtype is tf.float32 else 0.02) * np.abs(fused).max())


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, 2, "valid"), (3, 2, "same"), (3, 2, "valid"), (3, 1, "same")]
)
def test_pools_say_the_shape_that_they_make(kind: str, size: int, stride: int, padding: str) -> None:
    for data_format, shape in (("NHWC", (2, 7, 9, 3)), ("NCHW", (2, 3, 7, 9))):
        layer = Pool(kind, size=size, stride=stride, padding=padding, data_format=data_format)
        with tf.Graph().as_default():
            made = layer.call(tf.zeros(shape))
        assert layer.compute_output_shape(shape) == tuple(made.shape)


@pytest.mark.parametrize(
    ("kind", "gain", "fan_in"),
    [
        (lambda layers, x: layers.conv(x, 64, 3, name="conv"), 2.0, 3 * 3 * 512),
        (lambda layers, x: layers.conv(x, 64, 3, name="conv"), 1.0, 3 * 3 * 512),
        (lambda layers, x: layers.depthwise(x, 5, name="depthwise"), 1.5, 5 * 5),  # of one channel only
    ],
)
def test_kernels_start_with_the_variance_of_their_style(
    kind: Callable[[Layers, Any], Any], gain: float, fan_in: int
) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((16, 16, 512))
        model = building.adapt(keras.Model(images, kind(Layers("NHWC").styled(Style(kernel_gain=gain)), images)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kernel = session.run(model.variables[0].initial_value())
    assert kernel.var() == pytest.approx(gain / fan_in, rel=0.02)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_a_shift_moves_up_and_left_and_fills_with_zeros(data_format: str) -> None:
    found, _ = _computed(data_format, lambda images: Layers(data_format).shift(images, name="shift"))
    expected = np.zeros_like(IMAGES)
    expected[:, :3, :3] = IMAGES[:, 1:, 1:]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_local_response_normalisation_against_numpy(data_format: str, dtype: tf.DType) -> None:
    def norm(images: Any) -> Any:
        return Layers(data_format).local_response_norm(images, radius=1, alpha=0.5, beta=0.75, name="norm")

    squares = np.pad(IMAGES**2, [(0, 0), (0, 0), (0, 0), (1, 1)])
    expected = IMAGES / (1 + 0.5 * (squares[..., :-2] + squares[..., 1:-1] + squares[..., 2:])) ** 0.75
    tolerance = {tf.float32: 1e-6, tf.float16: 2e-3, tf.bfloat16: 2e-2}[dtype]
    found, _ = _computed(data_format, norm, dtype=dtype)
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
