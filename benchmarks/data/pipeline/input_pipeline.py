"""The input of a run: from a data set to batches on the host, and from these to the batch of each tower.

Batches are dealt to the towers, copied to their devices, and cast and normalised there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks.data.options import AUTOTUNE, InputOptions
from benchmarks.data.pipeline import imagenet_pipeline, tower_input
from benchmarks.data.pipeline.tower_input import InputSpec, TowerInput
from benchmarks.data.sources import bad_records, imagenet_files, small_images
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.data_sets import SYNTHETIC_HOST, DataSet, data_set_of, reading
from benchmarks.data.sources.imagenet_files import Photos
from benchmarks.data.sources.small_images import Pixels
from benchmarks.errors import DataError, explained
from models.model_spec import ModelSpec
from variable_mgr import staging
from variable_mgr.place import HOST

Source = Photos | Pixels
NO_LABEL = -1  # of what is no image of the data set


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunInput:
    """What the towers train on.

    Attributes:
        towers: one input per tower.
        initializers: must run in this order before the first step.
        description: for the user.
        source: the data set; None if none is read.
        skipping: counts bad records, if they are skipped.
    """

    towers: Sequence[TowerInput] = ()
    initializers: Sequence[tf.Operation] = ()
    description: str = ""
    source: Source | None = None
    skipping: Skipping | None = None

    def translate(self, error: tf.errors.OpError, num_classes: int) -> Exception:
        """Turns an error of a session that uses the input into one with advice, if the cause is known."""
        if known := explained(error):
            return known
        if self.skipping and self.skipping.failure:
            return self.skipping.failure
        # A callable's errors carry no operation, so only the message shows where it came from.
        from_input = isinstance(error, tf.errors.DataLossError) or "IteratorGetNext" in str(error.message)
        if self.source is None or isinstance(self.source, Pixels) or not from_input:
            return error
        return bad_records.explain_failure(self.source, num_classes, error)


def build(
    model: ModelSpec,
    spec: InputSpec,
    tower_devices: Sequence[str],
    options: InputOptions | None = None,
    source: Source | None = None,
    *,
    once: bool = False,
    pipelined: bool = True,
) -> RunInput:
    """Builds the towers' input in the default graph; the model's data set determines how images are normalised.

    Without `options`, images are made once on each device; without a `source`, one batch is made on the host. With
    `once`, images are those of `one_pass`, which the initializers begin, neither copied ahead nor timed.

    Raises:
        DataError: images in memory have another size than the model takes.
    """
    size = f"{spec.image_size}x{spec.image_size} pixels"
    if options is None:
        towers = tower_input.synthetic(tower_devices, spec)
        return RunInput(towers=towers, description=f"synthetic, {size}, made once on each device")
    data_set, bad = data_set_of(model.data_name), None
    if source is None:
        dataset = synthetic_batches(spec)
        description = f"{SYNTHETIC_HOST}, {size}, made once on the host and copied in every step"
    else:
        if isinstance(source, Pixels) and source.images.shape[1:3] != (spec.image_size, spec.image_size):
            height, width = source.images.shape[1:3]
            raise DataError(
                f"{source.directory} holds images of {width}x{height} pixels, and {model.name} takes {size}."
            )
        bad = skipping(source, options)
        dataset = one_pass(source, spec, options, bad) if once else batches(source, spec, options, bad)
        description = f"{data_set.title}: {source.describe()}, {size}"
    dataset = configured(dataset, options, len(tower_devices))
    if once:
        spec, pipelined = dataclasses.replace(spec, in_turn=True, timed=False), False
    towers, initializers = deal(dataset, tower_devices, data_set, spec, pipelined=pipelined)
    return RunInput(towers=towers, initializers=initializers, description=description, source=source, skipping=bad)


@reading()
def find_source(name: str, directory: str, split: str) -> Source:
    """Finds a split of a data set (a key of `DATA_SETS`) and checks that it is complete.

    Raises:
        DataError: the data set, or a part of it, is missing, or may not be looked at.
    """
    if name == "imagenet":
        return imagenet_files.find_imagenet(directory, split)
    return small_images.find_small_images(name, directory, split)


def skipping(source: Source, options: InputOptions) -> Skipping | None:
    """Returns what skips bad records and counts them; None if a bad record ends the run."""
    return Skipping() if options.on_bad_record == "skip" and not isinstance(source, Pixels) else None


def batches(
    source: Source, spec: InputSpec, options: InputOptions, skipping: Skipping | None = None, last_stage: str = "batch"
) -> tf.data.Dataset:
    """Returns an endless data set of batches: uint8 images [batch, size, size, channels] and labels [batch].

    With `skipping`, bad photos are left out and counted. The pipeline ends after `last_stage`, one of its STAGES.
    """
    if isinstance(source, Pixels):
        return small_images.batches(source, spec, options, last_stage)
    return imagenet_pipeline.batches(source, spec, options, skipping, last_stage)


@tf.autograph.experimental.do_not_convert
def one_pass(
    source: Source, spec: InputSpec, options: InputOptions, skipping: Skipping | None = None
) -> tf.data.Dataset:
    """Returns an endless data set of batches as `batches` does: every image once, in a fixed order, then empty batches.

    The last images are followed by black ones. The labels of these, and of all images of empty batches, are NO_LABEL.
    The worker of `spec` reads all images.
    """
    spec = dataclasses.replace(spec, worker=0, workers=1)
    if isinstance(source, Pixels):
        read = small_images.one_pass(source, spec, options)
    else:
        read = imagenet_pipeline.one_pass(source, spec, options, skipping)
    size = spec.batch_per_device
    shape = read.element_spec[0].shape[1:]

    def fill(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        missing = size - tf.shape(labels)[0]
        images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
        labels = tf.pad(labels, [[0, missing]], constant_values=NO_LABEL)
        return tf.ensure_shape(images, (size, *shape)), tf.ensure_shape(labels, (size,))

    empty = (tf.zeros((size, *shape), tf.uint8), tf.fill((size,), tf.constant(NO_LABEL, tf.int64)))
    return read.map(fill).concatenate(tf.data.Dataset.from_tensors(empty).repeat())


@tf.autograph.experimental.do_not_convert
def synthetic_batches(spec: InputSpec) -> tf.data.Dataset:
    """Returns an endless data set of one batch, made once on the host: a step pays only for the copy."""
    seed = (spec.seed, spec.worker)
    shape = (spec.batch_per_device, spec.image_size, spec.image_size, spec.channels)
    labels = np.random.default_rng(seed).integers(0, spec.num_classes, spec.batch_per_device)

    def make(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.random.stateless_uniform(shape, seed, 0, 256, tf.int32)
        return tf.cast(images, tf.uint8), tf.constant(labels, tf.int64)

    return tf.data.Dataset.from_tensors(0).map(make).cache().repeat()


def configured(dataset: tf.data.Dataset, options: InputOptions, towers: int) -> tf.data.Dataset:
    """Returns a data set with the threads, the autotuning and the prefetching of the options."""
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
    spec: InputSpec,
    *,
    pipelined: bool,
) -> tuple[list[TowerInput], list[tf.Operation]]:
    """Builds the towers' input: all towers draw their batches from one pipeline on the host.

    So no two towers see the same image in an epoch. The batches are uint8; the tower's device casts and normalises
    them by mean and deviation of `data_set`, so that a quarter of the bytes are copied. `pipelined` copies each tower's
    next batch to its device while the tower computes.

    Returns:
        One input per tower, and the operations that must run in this order before the first step.
    """
    with tf.device(HOST), tf.name_scope("input"):
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn: list[tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor | None, tf.Tensor | None]] = []
        for _ in tower_devices:
            # Without an order between them, the batch that a tower gets would change from run to run.
            with tf.control_dependencies(drawn[-1][0] if spec.in_turn and drawn else []):
                asked = tf.timestamp() if spec.timed else None
                with tf.control_dependencies([asked] if spec.timed else []):
                    batch = iterator.get_next()
            with tf.control_dependencies(batch):
                drawn.append((batch, asked, tf.timestamp() if spec.timed else None))
    inputs, puts, normalised = [], [], _normaliser(data_set)
    for device, (batch, asked, arrived) in zip(tower_devices, drawn, strict=True):
        stage, (images, labels) = staging.area(device, batch) if pipelined else (None, batch)
        puts += [stage] if stage is not None else []
        with tf.device(device):
            normal = normalised(images, device)
            normal = tf.transpose(normal, (0, 3, 1, 2)) if spec.data_format == "NCHW" else normal
        inputs.append(TowerInput(normal, labels, stage, asked=asked, arrived=arrived))
    # In one group: separate runs would draw the earlier towers' batches again.
    return inputs, [iterator.initializer, tf.group(*puts)]


def _normaliser(data_set: DataSet) -> Callable[[tf.Tensor, str], tf.Tensor]:
    """Returns a function that makes images float32 with mean 0 and standard deviation 1 per channel, on a device.

    XLA makes one pass of it. On a CPU, TensorFlow's own operations take ten times as long: they are three passes, and
    slow where they broadcast over an innermost dimension of three elements. Towers share the compiled function.
    """

    def normalised(pixels: tf.Tensor) -> tf.Tensor:
        return (tf.cast(pixels, tf.float32) - tf.constant(data_set.mean)) / tf.constant(data_set.stddev)

    compiled = tf.function(normalised, jit_compile=True, autograph=False)
    return lambda images, device: (compiled if "cpu" in device.lower() else normalised)(images)
