"""The table of activations, by which batches fit into a GPU, is that of this suite's graphs."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf

from models import building, specs
from models.model_spec import ModelSpec
from results.environment import published_table
from tests.support.rotation import rotating

IMAGES = 2
_SAME_MEMORY = {"Reshape", "Identity", "StopGradient", "Squeeze", "ExpandDims", "PreventGradient"}
FIRST = ("resnet50", "alexnet")
NAMES = [*FIRST, *(row["model"] for row in published_table("activations") if row["model"] not in FIRST)]


@rotating("name", NAMES, first=len(FIRST))
@pytest.mark.parametrize(("precision", "column"), [("fp32", "kb_32_bits"), ("fp16", "kb_16_bits")])
def test_the_table_has_what_the_backward_pass_reads(name: str, precision: str, column: str) -> None:
    (row,) = (row for row in published_table("activations") if row["model"] == name)
    assert float(row[column]) == pytest.approx(_kept_bytes(specs.find_model(name), precision) / 1e3, abs=0.6)


def _kept_bytes(spec: ModelSpec, precision: str) -> float:
    """Returns the bytes per image of results of the forward pass that operations of the backward pass read.

    Results whose shapes are not static (statistics of batch normalisation) are small, and left out.
    """
    model = building.build(spec, data_format="NHWC", num_classes=spec.usual_outputs, seed=0, precision=precision)
    with tf.Graph().as_default() as graph:
        values = [tf.compat.v1.placeholder(variable.dtype, variable.shape) for variable in model.variables]
        images = tf.compat.v1.placeholder(tf.float32, (IMAGES, spec.image_size, spec.image_size, spec.channels))
        logits, _ = model.call(values, images, training=True)
        loss = tf.reduce_sum(tf.cast(logits, tf.float32))
        forward = {operation.name for operation in graph.get_operations()}
        weights = [value for value, variable in zip(values, model.variables, strict=True) if variable.kind == "weight"]
        tf.gradients(loss, weights)
        backward = [operation for operation in graph.get_operations() if operation.name not in forward]
    read = {tensor.ref() for operation in backward for tensor in operation.inputs if tensor.op.name in forward}
    kept = {_origin(reference.deref()).ref() for reference in read}
    return sum(_bytes(reference.deref()) for reference in kept) / IMAGES


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type in _SAME_MEMORY:
        tensor = tensor.op.inputs[0]
    return tensor


def _bytes(tensor: tf.Tensor) -> int:
    is_of_images = tensor.shape.is_fully_defined() and tensor.shape.rank > 0 and tensor.shape[0] == IMAGES
    if tensor.op.type in ("Placeholder", "Const", "Shape") or not is_of_images:
        return 0
    return math.prod(tensor.shape) * tensor.dtype.size
