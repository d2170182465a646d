"""Staging areas: tensors put in during one step are taken out in the next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

_names = itertools.count()


def area(device: str, tensors: Sequence[tf.Tensor]) -> tuple[tf.Operation, list[tf.Tensor]]:
    """Makes a staging area on a device.

    Returns:
        The operation that puts the tensors in, and the oldest tensors in the area. The operation must run once before
        the first step, and once in every step.
    """
    name = f"stage_{next(_names)}"
    dtypes = [tensor.dtype for tensor in tensors]
    with tf.device(device):
        put = tf.raw_ops.Stage(values=tensors, shared_name=name, container="")
        taken = tf.raw_ops.Unstage(dtypes=dtypes, shared_name=name, container="")
    for tensor, original in zip(taken, tensors, strict=True):
        tensor.set_shape(original.shape)
    return put, taken


def peek(put: tf.Operation) -> list[tf.Tensor]:
    """Returns the oldest tensors in the area that `put` puts into; they stay there."""
    with tf.device(put.device):
        return list(
            tf.raw_ops.StagePeek(
                index=0, dtypes=put.get_attr("dtypes"), shared_name=put.get_attr("shared_name").decode(), container=""
            )
        )
