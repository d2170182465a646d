"""Photos from disk to batches: files in random order, records in random order, decoded, cropped, resized, flipped.

What happens to a photo follows from the run's seed, the epoch, and where the photo lies on disk; so in an epoch each is
treated alike, whoever reads it and in whatever order. Only which photos share a batch depends on the workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.input import imagenet, preprocessing
from benchmarks.input.bad_records import Skipping
from benchmarks.input.imagenet import BOX, PhotoFolder, Photos
from benchmarks.input.options import InputOptions
from benchmarks.input.tower_input import InputSpec
from benchmarks.system import hardware

# Each includes those before it.
STAGES = ("read", "parse", "decode", "augment", "batch")
# Where a photo lies on disk must fit: file, record, and what is drawn for it.
_BITS_OF_RECORD, _BITS_OF_STREAM = 32, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read, and how.

    Attributes:
        source: the photos.
        spec: what the model wants.
        options: how images are read and prepared.
        skipping: reads and counts, where bad records are left out; else None.
        worker: which of `workers` this is, from 0: each reads other files, or where there are too few, other records.
        workers: how many share the data set.
    """

    source: Photos
    spec: InputSpec
    options: InputOptions
    skipping: Skipping | None = None
    worker: int = 0
    workers: int = 1


@dataclasses.dataclass(frozen=True)
class _Photo:
    """One photo on its way: where it is from, and its bytes."""

    number: tf.Tensor
    epoch: tf.Tensor
    file: tf.Tensor
    record: tf.Tensor
    payload: tf.Tensor

    @classmethod
    def of(cls, number: tf.Tensor, element: tuple[tf.Tensor, tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]]) -> _Photo:
        """Takes apart what `_epochs` yields."""
        epoch, (file, (record, payload)) = element
        return cls(number, epoch, file, record, payload)

    def seed(self, base: int) -> tf.Tensor:
        """Returns what all random choices about this photo in this epoch follow from."""
        place = tf.bitwise.left_shift(self.file, tf.constant(_BITS_OF_RECORD, tf.int64)) + self.record
        streams = tf.bitwise.left_shift(place, tf.constant(_BITS_OF_STREAM, tf.int64))
        return tf.stack([base + tf.bitwise.left_shift(self.epoch, tf.constant(32, tf.int64)), streams])


def batches(reading: Reading) -> tf.data.Dataset:
    """Returns an endless data set of batches: images uint8 [batch, size, size, 3], labels int64 [batch].

    Raises (when it is read):
        tf.errors.OpError: a record is bad, unless such are skipped.
    """
    return stage(reading, "batch")


def stage(reading: Reading, name: str) -> tf.data.Dataset:
    """Returns what comes out of the pipeline if it ends after a stage, in batches; before the last, only sizes."""
    options = reading.options
    numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(), _epochs(reading)))
    if reading.skipping:
        numbered = numbered.take_while(lambda *_: tf.numpy_function(reading.skipping.goes_on, [], tf.bool))
    if options.cache == "one_record":
        numbered = numbered.take(1).cache().repeat()

    def prepare(number: tf.Tensor, element: Any) -> Any:
        prepared = _prepare(_Photo.of(number, element), reading, name)
        return (number, prepared) if reading.skipping else prepared

    prepared = numbered.map(prepare, num_parallel_calls=parallel_calls(options), deterministic=not options.sloppy)
    if reading.skipping is None:
        return prepared.batch(reading.spec.batch_per_device, drop_remainder=True)
    batched = prepared.ignore_errors().batch(reading.spec.batch_per_device, drop_remainder=True)
    return batched.map(_noting(reading.skipping))


def parallel_calls(options: InputOptions) -> int:
    """Returns how many images are prepared at a time: by default one more than cores, for when one is handed over."""
    return options.parallel_calls or hardware.usable_cores() + 1


def encoded_photos(names: tf.data.Dataset, source: Photos) -> tf.data.Dataset:
    """Returns the JPEGs of files of a source, one file after the other, and nothing else of them."""
    if isinstance(source, PhotoFolder):
        return names.map(tf.io.read_file, num_parallel_calls=tf.data.AUTOTUNE)
    features = {source.layout.encoded: tf.io.FixedLenFeature([], tf.string)}
    return tf.data.TFRecordDataset(names).map(
        lambda record: tf.io.parse_single_example(record, features)[source.layout.encoded]
    )


def _noting(skipping: Skipping) -> Callable[[tf.Tensor, Any], Any]:
    def note(numbers: tf.Tensor, prepared: Any) -> Any:
        noted = tf.numpy_function(skipping.note_batch, [numbers], tf.int64)
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, prepared)

    return note


def _prepare(photo: _Photo, reading: Reading, last_stage: str) -> Any:
    """Takes a photo through the pipeline, up to a stage."""
    spec, options = reading.spec, reading.options
    if isinstance(reading.source, PhotoFolder):
        photo = dataclasses.replace(photo, payload=tf.io.read_file(photo.payload))
    if last_stage == "read":
        return tf.strings.length(photo.payload)
    encoded, label, boxes = _parse(photo, reading.source)
    lowest = imagenet.lowest_label(reading.source.first_label, spec.num_classes)
    in_range = (label >= lowest) & (label < lowest + spec.num_classes)
    # tf.debugging.Assert would put a conditional around it.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=in_range, data=["label out of range", label])]):
        label = label - lowest
    if last_stage == "parse":
        return label
    seed = photo.seed(spec.seed)
    image = preprocessing.decode(encoded, boxes, seed, spec.image_size, options)
    if last_stage == "decode":
        return tf.shape(image)
    image = preprocessing.augment(image, seed, photo.number, spec.image_size, options)
    return image[0, 0, 0] if last_stage == "augment" else (image, label)


def _parse(photo: _Photo, source: Photos) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the JPEG, the label, and boxes as [1, boxes, 4] in the order ymin, xmin, ymax, xmax, in 0..1."""
    no_boxes = tf.zeros([1, 0, 4])
    if isinstance(source, PhotoFolder):
        return photo.payload, tf.gather(tf.constant(source.labels, tf.int64), photo.file), no_boxes
    layout = source.layout
    corners = [BOX + corner for corner in ("ymin", "xmin", "ymax", "xmax")] if layout.has_boxes else []
    features = {
        layout.encoded: tf.io.FixedLenFeature([], tf.string),
        layout.label: tf.io.FixedLenFeature([], tf.int64),
        **{corner: tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for corner in corners},
    }
    parsed = tf.io.parse_single_example(photo.payload, features)
    boxes = tf.stack([parsed[corner] for corner in corners], axis=-1)[tf.newaxis] if corners else no_boxes
    return parsed[layout.encoded], parsed[layout.label], boxes


def _epochs(reading: Reading) -> tf.data.Dataset:
    """Returns an endless data set of (epoch, (file, (record, payload))). In each epoch each record comes once."""
    epochs = tf.data.Dataset.counter()
    kept = _one_pass(reading, None).cache() if reading.options.cache == "records" else None

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        records = kept if kept is not None else _one_pass(reading, epoch)
        shuffled = records.shuffle(max(1, reading.options.shuffle_records), seed=reading.spec.seed + epoch)
        return _with(epoch, shuffled)

    # One epoch after the other, but the next begins to be read before this one has been handed out.
    return epochs.interleave(one_epoch, cycle_length=1, num_parallel_calls=1, deterministic=True)


def _with(value: tf.Tensor, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Puts a value before every element."""
    # A map would call a function for each: 0.03 ms of a core.
    return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(value).repeat(), dataset))


def _one_pass(reading: Reading, epoch: tf.Tensor | None) -> tf.data.Dataset:
    """Returns a data set of (file, (record, payload)): this worker's files in random order, several at a time."""
    options, files = reading.options, reading.source.files
    by_record = len(files) < reading.workers
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(len(files), dtype=tf.int64), [str(file) for file in files]))
    seed = reading.spec.seed + (0 if epoch is None else epoch)
    mine = numbered.shuffle(len(files), seed=seed)
    if not by_record:
        mine = mine.shard(reading.workers, reading.worker)
    if isinstance(reading.source, PhotoFolder):
        # What is shuffled are names; each photo is read where it is decoded.
        records = mine.map(lambda file, name: (file, (tf.zeros([], tf.int64), name)))
    else:
        records = mine.interleave(
            _file_reader(reading.skipping),
            cycle_length=min(options.cycle_length, len(files)),
            num_parallel_calls=min(parallel_calls(options), options.cycle_length, len(files)),
            deterministic=not options.sloppy,
        )
    return records.shard(reading.workers, reading.worker) if by_record else records


def _file_reader(skipping: Skipping | None) -> Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset]:
    """Returns a function from a file's number and name to a data set of (file, (record, payload))."""
    if skipping is None:
        return lambda file, name: _with(
            file, tf.data.Dataset.zip((tf.data.Dataset.counter(), tf.data.TFRecordDataset(name)))
        )
    signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
    return lambda file, name: _with(
        file, tf.data.Dataset.from_generator(skipping.read, output_signature=signature, args=(file,))
    )
