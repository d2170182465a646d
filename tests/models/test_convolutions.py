from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.training import flop_count
from models import building
from models.convolutions import (
    DepthwiseConvolution,
    GroupedConvolution,
    Kernels,
    PixelwiseProduct,
    ProductGradient,
    SeparableConvolution,
)
from models.layers import Layers
from models.model_spec import Style

CHANNELS, FILTERS = 3, 6
IMAGES = np.random.default_rng(4).normal(size=(2, 8, 9, CHANNELS)).astype(np.float32)
OF_THREE: dict[str, Any] = {"filters": FILTERS, "kernel_size": 3, "padding": "same", "use_bias": False}
Kind = type[keras.layers.Layer]


def _gradients(
    kind: Kind, images: tf.Tensor, *, data_format: str = "channels_last", policy: str = "float32", **how: Any
) -> list[Any]:
    """Returns outputs of a layer, in NHWC, and the gradients by its weights and the images of the sum of their squares.

    Layers with weights of the same shapes have the same.
    """
    is_nchw = data_format == "channels_first"
    given = tf.transpose(images, [0, 3, 1, 2]) if is_nchw else images
    with building.stateless_building(seed=0, policy=policy):
        symbolic = keras.Input(given.shape[1:])
        model = building.adapt(keras.Model(symbolic, kind(data_format=data_format, name="conv", **how)(symbolic)))
    random = np.random.default_rng(5)
    values = [tf.constant(random.normal(size=variable.shape), tf.float32) for variable in model.variables]
    outputs, _ = model.call(values, given, training=True)
    outputs = tf.transpose(outputs, [0, 2, 3, 1]) if is_nchw else outputs
    return [outputs, *tf.gradients(tf.reduce_sum(outputs**2), [*values, images])]


def _assert_same(theirs: Kind, ours: Kind, data_format: str = "channels_last", **how: Any) -> None:
    found = []
    for kind, layout in ((theirs, "channels_last"), (ours, data_format)):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            found.append(session.run(_gradients(kind, tf.constant(IMAGES), data_format=layout, **how)))
    assert found[0][0].any()
    for wanted, computed in zip(*found, strict=True):
        np.testing.assert_allclose(computed, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("kind", "size", "stride"),
    [
        (PixelwiseProduct, 1, 1),
        (PixelwiseProduct, 1, 2),
        (ProductGradient, 3, 1),
        (ProductGradient, (1, 7), 1),
        (ProductGradient, (7, 1), 1),
        (ProductGradient, (2, 4), 1),
    ],
)
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_products_are_what_the_convolution_is(
    kind: Kind, size: int | tuple[int, int], stride: int, padding: str, use_bias: bool
) -> None:
    how = {"kernel_size": size, "strides": stride, "padding": padding, "use_bias": use_bias, "activation": "relu"}
    _assert_same(keras.layers.Conv2D, kind, filters=FILTERS, **how)


BY_CHANNEL: list[tuple[Kind, Kind, dict[str, Any]]] = [
    (keras.layers.DepthwiseConv2D, DepthwiseConvolution, {"kernel_size": 3, "depth_multiplier": 2}),
    (
        keras.layers.SeparableConv2D,
        SeparableConvolution,
        {"kernel_size": 3, "depth_multiplier": 2, "filters": FILTERS},
    ),
]


@pytest.mark.parametrize(("theirs", "ours", "of_kind"), BY_CHANNEL)
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("how", [{"padding": "same"}, {"padding": "valid", "strides": 2, "use_bias": False}])
def test_convolutions_by_channel_are_those_of_keras(
    theirs: Kind, ours: Kind, of_kind: dict[str, Any], data_format: str, how: dict[str, Any]
) -> None:
    _assert_same(theirs, ours, data_format, activation="relu", **of_kind, **how)


@pytest.mark.parametrize("groups", [1, CHANNELS])
def test_strides_of_groups_may_differ(groups: int) -> None:
    def computed(**how: Any) -> list[Any]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session, building.stateless_building(seed=0):
            symbolic = keras.Input(IMAGES.shape[1:])
            layer = GroupedConvolution(CHANNELS, 3, groups=groups, use_bias=False, **how)
            model = building.adapt(keras.Model(symbolic, layer(symbolic)))
            kernel = tf.ones(model.variables[0].shape)
            outputs, _ = model.call([kernel], tf.constant(IMAGES), training=True)
            outputs = outputs if how else outputs[:, :, ::2]
            return session.run([outputs, *tf.gradients(outputs**2, kernel)])

    for found, wanted in zip(computed(strides=(1, 2)), computed(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(("ours", "of_kind"), [pair for _, *pair in BY_CHANNEL])
def test_convolutions_by_channel_transpose_no_images(ours: Kind, of_kind: dict[str, Any]) -> None:
    with tf.Graph().as_default() as graph, tf.device("/gpu:0"):
        images = tf.compat.v1.placeholder(tf.float32, IMAGES.shape)
        _gradients(ours, images, data_format="channels_first", padding="same", **of_kind)
    # Those of this test: of the images and the outputs, and their gradients.
    assert sum(one.type == "Transpose" for one in graph.get_operations()) == 4


@pytest.mark.parametrize(
    ("policy", "dtype", "spacing"),
    [("mixed_bfloat16", tf.bfloat16, 2.0**-7), ("mixed_float16", tf.float16, 2.0**-10)],
)
def test_products_are_in_the_numbers_that_layers_compute_in(policy: str, dtype: tf.DType, spacing: float) -> None:
    found = []
    for kind in (keras.layers.Conv2D, ProductGradient):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            _, by_kernel, _ = _gradients(kind, tf.constant(IMAGES), policy=policy, **OF_THREE)
            found.append(session.run(by_kernel))
            products = [o.outputs[0].dtype for o in graph.get_operations() if o.type == "MatMul"]
            assert products == ([dtype] * 3 if kind is ProductGradient else [])
    np.testing.assert_allclose(found[1], found[0], atol=8 * spacing * np.abs(found[0]).max())


@pytest.mark.parametrize("kind", [PixelwiseProduct, ProductGradient])
def test_products_are_as_much_work(kind: Kind) -> None:
    """Or the share of the peak would be of other arithmetic."""
    how = OF_THREE | {"kernel_size": 1} if kind is PixelwiseProduct else OF_THREE
    work = []
    for each in (keras.layers.Conv2D, kind):
        with tf.Graph().as_default():
            work.append(flop_count.count(_gradients(each, tf.constant(IMAGES), **how)))
    assert work[0].flops == work[1].flops > 0 and not work[1].uncounted


def _before(operation: tf.Operation) -> set[tf.Operation]:
    return {*flop_count._ancestors([operation])}


def test_copies_are_not_made_before_the_way_back() -> None:
    """They would fill the memory with several times the activations of all layers."""
    with tf.Graph().as_default() as graph:
        _, by_kernel, _ = _gradients(ProductGradient, tf.constant(IMAGES), **OF_THREE)
        copies = [o for o in _before(by_kernel.op) if o.type in ("Pad", "StridedSlice", "ConcatV2") and o.outputs]
        large = [o for o in copies if o.outputs[0].shape.rank == 4]
    assert len(large) == 1 + 3 + 1 + 3
    seed = next(o for o in graph.get_operations() if o.type == "Fill")  # of ones: the way back begins there
    assert all(seed in _before(operation) for operation in large)
    rows = [o for o in large if any(one.type == "ConcatV2" for one in _before(o)) and o.type == "StridedSlice"]
    products = [sum(one.type == "MatMul" for one in _before(o)) for o in rows]
    assert sorted(products) == [0, 1, 2], "nor are those of all rows there at once"


@pytest.mark.parametrize(
    ("kernels", "pixelwise", "gradients"),
    [
        (Kernels(), [], []),
        (Kernels(conv1x1=True), ["one"], []),
        (Kernels(filter_gradients=True), [], ["three", "seven"]),
        (Kernels(conv1x1=True, filter_gradients=True), ["one"], ["three", "seven"]),
    ],
)
def test_only_what_was_asked_for_becomes_products(kernels: Kernels, pixelwise: list[str], gradients: list[str]) -> None:
    with building.stateless_building(seed=0):
        images = keras.Input((8, 8, 3))
        layers = Layers("NHWC", kernels=kernels).styled(Style())
        x = layers.conv_bn(images, 4, 1, name="one")
        x = layers.conv_bn(x, 4, 3, name="three")
        x = layers.conv_bn(x, 4, 3, stride=2, name="every_second")
        model = keras.Model(images, layers.conv(x, 4, (1, 7), name="seven"))
    for kind, names in ((PixelwiseProduct, pixelwise), (ProductGradient, gradients)):
        assert [layer.name for layer in model.layers if isinstance(layer, kind)] == names
