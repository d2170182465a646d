"""The Vision Transformer against its definition, written out in NumPy."""

from __future__ import annotations

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf, softmax

from models import building, specs, vit
from models.layers import DataFormat
from tests.support import models

PATCH, WIDTH, BLOCKS, HEADS, MLP = 4, 12, 2, 3, 20
SIZE, CLASSES = 12, 7
SMALL = dataclasses.replace(
    specs.find_model("vit_b_16"),
    image_size=SIZE,
    build=functools.partial(vit.build, patch=PATCH, width=WIDTH, blocks=BLOCKS, heads=HEADS, mlp=MLP),
)


def _built(data_format: DataFormat = "NHWC", precision: str = "fp32") -> building.Model:
    return building.build(SMALL, data_format=data_format, num_classes=CLASSES, seed=1, precision=precision)


def _reference(values: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Returns the logits of images, [batch, height, width, channels], token by token and head by head."""

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return scaled * values[f"{name}/gamma"] + values[f"{name}/beta"]

    def attention(x: np.ndarray, name: str) -> np.ndarray:
        queries, keys, of_tokens = np.split(linear(x, f"{name}_qkv"), 3, axis=-1)
        size, found = WIDTH // HEADS, []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            found.append(softmax(queries[:, part] @ keys[:, part].T / np.sqrt(size), axis=-1) @ of_tokens[:, part])
        return linear(np.concatenate(found, axis=-1), f"{name}_out")

    def logits(image: np.ndarray) -> np.ndarray:
        corners = [(top, left) for top in range(0, SIZE, PATCH) for left in range(0, SIZE, PATCH)]
        patches = [image[top : top + PATCH, left : left + PATCH].reshape(-1) for top, left in corners]
        kernel = values["patches/kernel"].reshape(-1, WIDTH)
        tokens = np.stack(patches) @ kernel + values["patches/bias"]
        x = np.concatenate([values["embedding/class_token"][0], tokens]) + values["embedding/positions"][0]
        for number in range(1, BLOCKS + 1):
            name = f"block{number}"
            x = x + attention(norm(x, f"{name}_norm1"), name)
            hidden = linear(norm(x, f"{name}_norm2"), f"{name}_mlp1")
            x = x + linear(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, f"{name}_mlp2")
        return linear(norm(x, "norm")[0], "logits")

    return np.stack([logits(image) for image in images])


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_logits_are_those_of_the_definition(data_format: DataFormat) -> None:
    model, draw = _built(data_format), np.random.default_rng(3)
    values = [draw.normal(scale=0.5, size=variable.shape).astype(variable.dtype) for variable in model.variables]
    images = draw.normal(size=(2, SIZE, SIZE, 3)).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.constant(images.transpose(0, 3, 1, 2) if data_format == "NCHW" else images)
        logits = session.run(model.call([tf.constant(value) for value in values], fed, training=False)[0])
    named = {variable.name: value.astype(np.float64) for variable, value in zip(model.variables, values, strict=True)}
    np.testing.assert_allclose(logits, _reference(named, images.astype(np.float64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", tf.bfloat16), ("fp16", tf.float16)])
def test_weights_of_attention_and_statistics_are_float32(precision: str, dtype: tf.DType) -> None:
    model = _built(precision=precision)
    with tf.Graph().as_default() as graph:
        values = [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in model.variables]
        model.call(values, tf.compat.v1.placeholder(tf.float32, (2, SIZE, SIZE, 3)), training=True)
    operations = graph.get_operations()
    products = [o for o in operations if o.type in ("MatMul", "BatchMatMulV2") and not o.name.startswith("logits")]
    assert [o.outputs[0].dtype for o in operations if o.type == "Softmax"] == [tf.float32] * BLOCKS
    assert [o.outputs[0].dtype for o in products] == [dtype] * 6 * BLOCKS, "four dense layers, and two of attention"
    assert {o.outputs[0].dtype for o in operations if o.type == "Mean"} == {tf.float32}


@pytest.mark.parametrize("name", ["vit_b_16", "vit_ti_16"])
def test_a_tenth_is_dropped_after_the_positions_and_after_each_dense_layer_but_one(name: str) -> None:
    layers = models.build(name).keras_model.layers
    dropped = {layer.name: layer.rate for layer in layers if isinstance(layer, keras.layers.Dropout)}
    dense = [layer for layer in layers if isinstance(layer, keras.layers.Dense) and not layer.name.endswith("_qkv")]
    assert len(dropped) == len(dense) == 1 + 3 * 12, "the logits are not dropped, the positions are"
    assert {*dropped.values()} == {0.1}
