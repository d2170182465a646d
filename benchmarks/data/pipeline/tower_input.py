"""The images and labels of one tower: what a model needs of them, what a tower gets, and synthetic ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from models.layers import DataFormat
from models.model_spec import NUM_CHANNELS
from models.seeds import seed_at_run_time


@dataclasses.dataclass(frozen=True)
class TowerInput:
    """The batch of one tower and step.

    Attributes:
        images: [batch, height, width, channels] or NCHW, float32, about standard normal.
        labels: [batch], int64, in [0, classes).
        stage: copies the next step's batch to the device; must run in every step. None without staging.
        asked, arrived: when this step's batch (or, with staging, the next step's) was requested, and when it was there:
            seconds since the epoch, float64, on the host. None without reading.
    """

    images: tf.Tensor
    labels: tf.Tensor
    stage: tf.Operation | None = None
    asked: tf.Tensor | None = None
    arrived: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a model and a run need from their input. Equal seeds give equal inputs.

    Images are `image_size` pixels high and wide, with 3 channels, or 1 for grey. Labels are below `num_classes`. Each
    of the processes that share the data set, `worker` from 0 of `workers`, reads its own images. It begins where all of
    them together have drawn `images_before`, in whole batches of each.

    With `in_turn`, towers draw in their order, so that every run distributes the same batches; asynchronous towers must
    not wait for each other. `timed` reads the clock, which TensorFlow refuses where operations must be deterministic.
    """

    batch_per_device: int
    image_size: int
    data_format: DataFormat
    num_classes: int
    seed: int
    channels: int = NUM_CHANNELS
    worker: int = 0
    workers: int = 1
    images_before: int = 0
    in_turn: bool = True
    timed: bool = True


def synthetic(tower_devices: Sequence[str], spec: InputSpec) -> list[TowerInput]:
    """Makes one fixed batch per tower in variables on the tower's device, so that input costs a step nothing.

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
            variables = [tf.Variable(value, trainable=False, name="input") for value in (images, labels)]
            inputs.append(TowerInput(*(variable.read_value() for variable in variables)))
    return inputs
