"""From batches on the host to towers: dealt out, brought to the devices, cast and normalised there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from benchmarks.input import imagenet, imagenet_pipeline, small_images
from benchmarks.input.bad_records import Skipping
from benchmarks.input.catalog import DataSet
from benchmarks.input.imagenet import Photos
from benchmarks.input.options import AUTOTUNE, InputOptions
from benchmarks.input.small_images import Pixels
from benchmarks.input.tower_input import InputSpec, TowerInput
from benchmarks.topology.devices import HOST
from models.layers import DataFormat
from variable_mgr import staging

Source = Photos | Pixels


def batches(
    source: Source, spec: InputSpec, options: InputOptions, skipping: Skipping | None = None
) -> tf.data.Dataset:
    """Returns an endless data set of batches: uint8 images [batch, size, size, channels] and labels [batch]."""
    if isinstance(source, Pixels):
        return small_images.batches(source, spec, options, spec.worker, spec.workers)
    reading = imagenet_pipeline.Reading(
        source=source, spec=spec, options=options, skipping=skipping, worker=spec.worker, workers=spec.workers
    )
    return imagenet_pipeline.batches(reading)


def synthetic_batches(spec: InputSpec, channels: int) -> tf.data.Dataset:
    """Returns an endless data set of one batch that was made on the host: all that a step pays for is its way."""
    draw = np.random.default_rng((spec.seed, spec.worker))
    shape = (spec.batch_per_device, spec.image_size, spec.image_size, channels)
    labels = draw.integers(0, spec.num_classes, spec.batch_per_device)

    def make() -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.random.stateless_uniform(shape, (spec.seed, spec.worker), 0, 256, tf.int32)
        return tf.cast(images, tf.uint8), tf.constant(labels, tf.int64)

    return tf.data.Dataset.from_tensors(0).map(lambda _: make()).cache().repeat()


def configured(dataset: tf.data.Dataset, options: InputOptions, towers: int) -> tf.data.Dataset:
    """Returns a data set with the threads, the planning and the prefetching that were chosen."""
    chosen = tf.data.Options()
    chosen.threading.max_intra_op_parallelism = 1
    chosen.deterministic = not options.sloppy
    if options.private_threads:
        chosen.threading.private_threadpool_size = options.private_threads
    chosen.autotune.enabled = options.parallel_calls == AUTOTUNE
    if options.autotune_cpu_budget:
        chosen.autotune.cpu_budget = options.autotune_cpu_budget
    if options.prefetch_batches:
        dataset = dataset.prefetch(options.prefetch_batches * towers)
    return dataset.with_options(chosen)


def deal(
    dataset: tf.data.Dataset,
    tower_devices: Sequence[str],
    data_set: DataSet,
    data_format: DataFormat,
    *,
    in_turn: bool,
    pipelined: bool,
) -> tuple[list[TowerInput], list[tf.Operation]]:
    """Builds the towers' input: one pipeline on the host, from which all draw their batches.

    So no two towers see the same image before all images have been seen. What is drawn is uint8; the cast and the
    normalisation are done on the tower's device, so that a quarter of the bytes travel.

    Args:
        dataset: batches of images and labels.
        tower_devices: one per tower.
        data_set: says how images are normalised.
        data_format: layout in which the model wants them.
        in_turn: towers that step together draw in their order, so that each run deals the same batches; towers that go
            their own way must not wait for each other.
        pipelined: each tower's next batch is brought to its device while it computes.

    Returns:
        One input per tower, and the operations that must run in this order before the first step.
    """
    with tf.device(HOST), tf.name_scope("input"):
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn: list[tuple[tf.Tensor, tf.Tensor]] = []
        times: list[tuple[tf.Tensor, tf.Tensor]] = []
        for _ in tower_devices:
            # In turn: without an order between them, which tower gets which batch would change from run to run.
            earlier = drawn[-1:] if in_turn else []
            with tf.control_dependencies([tensor for batch in earlier for tensor in batch]):
                asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                drawn.append(iterator.get_next())
            with tf.control_dependencies(drawn[-1]):
                times.append((asked, tf.timestamp()))
    inputs, stages = [], []
    for device, batch, (asked, arrived) in zip(tower_devices, drawn, times, strict=True):
        stage, (images, labels) = staging.area(device, batch) if pipelined else (None, batch)
        stages += [stage] if stage is not None else []
        with tf.device(device):
            normalised = _normalise(images, data_set, data_format)
        inputs.append(TowerInput(normalised, labels, stage, asked=asked, arrived=arrived))
    # In one run, or what the towers draw in their order would be drawn again for each of them.
    return inputs, [iterator.initializer, tf.group(*stages)]


def _normalise(images: tf.Tensor, data_set: DataSet, data_format: DataFormat) -> tf.Tensor:
    """Returns float32 of mean 0 and standard deviation 1 per channel, on the current device."""
    scaled = (tf.cast(images, tf.float32) - tf.constant(data_set.mean)) / tf.constant(data_set.stddev)
    return tf.transpose(scaled, (0, 3, 1, 2)) if data_format == "NCHW" else scaled


def find(name: str, directory: str, split: str) -> Source:
    """Finds a data set and checks that it is whole.

    Args:
        name: of `catalog.DATA_SETS`.
        directory: where to look.
        split: `train` or `validation`.

    Raises:
        DataError: it is not there, or something of it is missing.
    """
    return imagenet.find(directory, split) if name == "imagenet" else small_images.find(name, directory, split)
