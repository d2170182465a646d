"""Where a tower's images and labels come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from models.layers import DataFormat
from models.seeds import seed_at_run_time
from models.specs import NUM_CHANNELS


@dataclasses.dataclass(frozen=True)
class TowerInput:
    """What one tower trains on in a step.

    Attributes:
        images: [batch, height, width, channels] or NCHW, float32, about standard normal.
        labels: [batch], int64, in [0, classes).
        stage: brings the next step's batch to the device while this step computes; must run in every step. None where
            nothing is staged.
        asked: when the batch of this step (or, staged, of the next) was asked for: seconds since the epoch, float64, on
            the host. None where nothing is read.
        arrived: likewise, when it had been read.
    """

    images: tf.Tensor
    labels: tf.Tensor
    stage: tf.Operation | None = None
    asked: tf.Tensor | None = None
    arrived: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a model and a run want of their input.

    Attributes:
        batch_per_device: images per tower and step.
        image_size: height and width, pixels.
        channels: 3, or 1 for grey.
        data_format: layout of the images.
        num_classes: labels are below it.
        seed: equal seeds give equal inputs.
        worker, workers: which of how many processes this is; each has images of its own.
    """

    batch_per_device: int
    image_size: int
    data_format: DataFormat
    num_classes: int
    seed: int
    channels: int = NUM_CHANNELS
    worker: int = 0
    workers: int = 1


def synthetic(tower_devices: Sequence[str], spec: InputSpec) -> list[TowerInput]:
    """Makes one fixed batch per tower, which lives on the tower's device: no step pays for input.

    Images are standard normal, as normalised photos are; labels are uniform.
    """
    size = (spec.image_size, spec.image_size)
    shape = (spec.channels, *size) if spec.data_format == "NCHW" else (*size, spec.channels)
    inputs = []
    for tower, device in enumerate(tower_devices):
        with tf.device(device), tf.name_scope(f"synthetic_{tower}"):
            draw = seed_at_run_time((spec.seed, spec.worker * len(tower_devices) + tower))
            images = tf.random.stateless_normal((spec.batch_per_device, *shape), draw)
            labels = tf.random.stateless_uniform((spec.batch_per_device,), draw, 0, spec.num_classes, tf.int64)
            inputs.append(TowerInput(*(_resident(value) for value in (images, labels))))
    return inputs


def _resident(value: tf.Tensor) -> tf.Tensor:
    return tf.Variable(value, trainable=False, name="input").read_value()
