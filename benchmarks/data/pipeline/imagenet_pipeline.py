"""Photos from disk to batches: files in random order, records in random order, decoded, cropped, resized, flipped.

The random choices about a photo depend on the run's seed, the epoch, and the photo's file and record. So in an epoch
each photo is prepared in the same way, for any worker and any order of reading. Only the photos that share a batch
depend on the workers.

A pipeline that begins after `InputSpec.images_before` continues the order of one that began before: earlier epochs are
not read, and records of the same epoch are read and shuffled, but not decoded. With --on_bad_record=skip the position
is approximate, since bad records count as drawn. With --datasets_sloppy_parallel_interleave there is no order to
continue.

No function here has control flow that depends on tensors, so none is converted by AutoGraph, which would take 1.7 s of
each process on a 2-core AMD EPYC.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.data.options import InputOptions, parallel_calls
from benchmarks.data.pipeline import photo_decoding
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources import imagenet_files, safe_files, tfrecord
from benchmarks.data.sources.bad_records import Skipping
from benchmarks.data.sources.class_folders import PhotoFolder
from benchmarks.data.sources.imagenet_files import PhotoRecords, Photos
from benchmarks.data.sources.photo_layouts import BOX_CORNERS
from benchmarks.data.sources.storage import Address
from benchmarks.errors import DataError, UsageError
from benchmarks.machine import hardware

# Each includes those before it.
STAGES = ("read", "parse", "decode", "augment", "batch")
# File, record and the stream of random numbers share 64 bits.
_BITS_OF_RECORD, _BITS_OF_STREAM = 32, 3
# To call Python from a pipeline takes 0.3 ms of a core.
_PHOTOS_AT_ONCE = 256


@tf.autograph.experimental.do_not_convert
def batches(
    source: Photos,
    spec: InputSpec,
    options: InputOptions,
    skipping: Skipping | None = None,
    last_stage: str = "batch",
    *,
    shuffle: Callable[..., tf.data.Dataset] = tf.data.Dataset.shuffle,
) -> tf.data.Dataset:
    """See `input_pipeline.batches`: images uint8 [batch, size, size, 3], labels int64 [batch].

    Each worker of `spec` reads its own files, or with fewer files than workers its own records. Before the last of
    STAGES, only sizes or labels come out. `shuffle` may do more than shuffle the records of an epoch.

    Raises (when the data set is read):
        tf.errors.OpError: a record is bad and `skipping` is None.
    """
    # One record that repeats is the same one in a training that continues.
    before = spec.images_before // spec.workers if options.cache != "one_record" else 0
    pipeline = _Pipeline(source, spec, options, skipping)
    return pipeline.in_batches(pipeline.epochs(shuffle, before), last_stage, before=before)


@tf.autograph.experimental.do_not_convert
def one_pass(
    source: Photos, spec: InputSpec, options: InputOptions, skipping: Skipping | None = None
) -> tf.data.Dataset:
    """Returns a data set of all photos once, in their order, as in `batches`; the last batch may be smaller."""
    pipeline = _Pipeline(source, spec, options, skipping)
    return pipeline.in_batches(_with(tf.zeros([], tf.int64), pipeline.one_pass(None)), "batch", drop_remainder=False)


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    source: Photos
    spec: InputSpec
    options: InputOptions
    skipping: Skipping | None

    def one_pass(self, epoch: tf.Tensor | int | None, *, repeated: bool = False) -> tf.data.Dataset:
        """Returns a data set of (file, (record, payload)): this worker's files in random order, several at a time.

        Without an `epoch`, the files are in their own order. With `repeated`, it has the same order whenever it is
        read.
        """
        source, options, skipping, count = self.source, self.options, self.skipping, len(self.source.files)
        files, share_records = self._own_files(epoch, repeated=repeated)
        if isinstance(source, PhotoFolder) or skipping is None:  # which checks for itself
            files = checked(source, files)

        def read(file: tf.Tensor, name: tf.Tensor) -> tf.data.Dataset:
            assert isinstance(source, PhotoRecords)
            if skipping is None:
                records = tf.data.TFRecordDataset(name, source.compression)
                return _with(file, tf.data.Dataset.zip((tf.data.Dataset.counter(), records)))
            signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
            read_records = functools.partial(skipping.read_records, source)
            records = tf.data.Dataset.from_generator(read_records, output_signature=signature, args=(file,))
            return _with(file, records)

        if isinstance(source, PhotoFolder):
            # The names are files; `_prepare` reads each photo.
            records = files.map(lambda file, name: (file, (tf.zeros([], tf.int64), name)))
        else:
            records = files.interleave(
                read,
                cycle_length=min(options.cycle_length, count),
                num_parallel_calls=min(parallel_calls(options), options.cycle_length, count),
                deterministic=share_records or not options.sloppy,  # workers that share records need one order
            )
        return records.shard(self.spec.workers, self.spec.worker) if share_records else records

    def _own_files(self, epoch: tf.Tensor | int | None, *, repeated: bool) -> tuple[tf.data.Dataset, bool]:
        """Returns (file, name) of a worker's files in an epoch's order, and whether all share them by records."""
        count, files, spec = len(self.source.files), numbered_files(self.source), self.spec
        if epoch is not None:
            files = files.shuffle(count, seed=spec.seed + epoch, reshuffle_each_iteration=not repeated)
        if count < spec.workers:
            return files, True
        return files.shard(spec.workers, spec.worker), False

    def epochs(self, shuffle: Callable[..., tf.data.Dataset], before: int) -> tf.data.Dataset:
        """Returns an endless data set of (epoch, (file, (record, payload))). In each epoch each record comes once.

        The first `before` elements are left out.
        """
        cached = self.one_pass(0, repeated=True).cache() if self.options.cache == "records" else None
        buffer = max(1, self.options.shuffle_records)

        def one_epoch(epoch: tf.Tensor, done: tf.Tensor) -> tf.data.Dataset:
            records = self.one_pass(epoch) if cached is None else cached
            return _with(epoch, shuffle(records, buffer, seed=self.spec.seed + epoch).skip(done))

        epochs = self._unfinished(before, same_files=cached is not None)
        # One epoch after the other, but reading of the next one starts before this one is used up.
        return epochs.interleave(one_epoch, cycle_length=1, num_parallel_calls=1, deterministic=True)

    def _unfinished(self, before: int, *, same_files: bool) -> tf.data.Dataset:
        """Returns an endless data set of (epoch, records of it already drawn), after `before` records of this worker.

        A worker's share of an epoch depends on the shards that it gets in it; with `same_files`, on those of epoch 0.
        """
        source, spec, zero = self.source, self.spec, tf.zeros([], tf.int64)
        if isinstance(source, PhotoFolder) or not before:
            first, drawn = divmod(before, max(1, len(range(spec.worker, len(source.files), spec.workers))))
            return tf.data.Dataset.counter(first).map(
                lambda epoch: (epoch, tf.where(tf.equal(epoch, first), zero + drawn, zero))
            )
        records_of = tf.constant(source.counts, tf.int64)

        def count(left: tf.Tensor, epoch: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
            shuffled, share_records = self._own_files(0 if same_files else epoch, repeated=same_files)
            share = shuffled.reduce(zero, lambda total, file: total + tf.gather(records_of, file[0]))
            if share_records:
                share = (share - spec.worker + spec.workers - 1) // spec.workers
            done = tf.minimum(left, share)
            return left - done, (epoch, done, share)

        counted = tf.data.Dataset.counter().scan(tf.constant(before, tf.int64), count)
        unfinished = counted.filter(lambda epoch, done, share: done < share)
        return unfinished.map(lambda epoch, done, share: (epoch, done))

    def in_batches(
        self, records: tf.data.Dataset, last_stage: str, *, before: int = 0, drop_remainder: bool = True
    ) -> tf.data.Dataset:
        """Prepares a data set of (epoch, (file, (record, payload))), of which so many were drawn `before`."""
        options, skipping, size = self.options, self.skipping, self.spec.batch_per_device
        if self.source.is_decoded and (options.decode_scaling or not options.fuse_decode_and_crop):
            raise UsageError("--decode_scaling and --nofuse_decode_and_crop are for JPEGs, not pixels: drop them.")
        numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(), records))
        if skipping:
            numbered = numbered.take_while(lambda number, _: tf.numpy_function(skipping.goes_on, [number], tf.bool))
        if options.cache == "one_record":
            numbered = numbered.take(1).cache().repeat()
        labels = imagenet_files.labels_of(self.source, self.spec.num_classes)

        def prepare(number: tf.Tensor, element: Any) -> Any:
            return self._prepare(number, element, labels, last_stage, before)

        def note(numbers: tf.Tensor, prepared: Any) -> Any:
            assert skipping is not None
            with tf.control_dependencies([tf.numpy_function(skipping.note_batch, [numbers], tf.int64)]):
                return tf.nest.map_structure(tf.identity, prepared)

        how = {"num_parallel_calls": parallel_calls(options), "deterministic": not options.sloppy}
        if skipping is None:
            return numbered.map(prepare, **how).batch(size, drop_remainder=drop_remainder)
        photos = numbered.map(lambda number, element: (number, prepare(number, element)), **how)
        return photos.ignore_errors().batch(size, drop_remainder=drop_remainder).map(note)

    def _prepare(self, number: tf.Tensor, element: Any, labels: range, last_stage: str, before: int) -> Any:
        """Returns image and label of a record, or what there is of them after an earlier stage."""
        epoch, (file, (record, payload)) = element
        source, spec, options = self.source, self.spec, self.options
        if isinstance(source, PhotoFolder):
            payload = tf.io.read_file(payload)
        if last_stage == "read":
            return tf.strings.length(payload)
        stored, label, boxes = _parse(source, file, payload)
        in_range = (label >= max(0, labels.start)) & (label < labels.stop)
        # tf.debugging.Assert would add a conditional.
        with tf.control_dependencies([tf.raw_ops.Assert(condition=in_range, data=["label out of range", label])]):
            label = label - labels.start
        if last_stage == "parse":
            return label
        seed = _seed(spec.seed, epoch, file, record)
        if source.is_decoded:
            image = photo_decoding.crop_decoded(stored, boxes, seed, options)
        else:
            image = photo_decoding.decode(stored, boxes, seed, spec.image_size, options, source.may_be_png)
        if last_stage == "decode":
            return tf.shape(image)
        image = photo_decoding.augment(image, seed, number + before, spec.image_size, options)
        return image[0, 0, 0] if last_stage == "augment" else (image, label)


def _parse(source: Photos, file: tf.Tensor, payload: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the JPEG or pixels, the label, and boxes as [1, boxes, 4]: ymin, xmin, ymax, xmax, in 0..1."""
    no_boxes = tf.zeros([1, 0, 4])
    if isinstance(source, PhotoFolder):
        return payload, tf.gather(tf.constant(source.labels, tf.int64), file), no_boxes
    layout = source.layout
    corners = BOX_CORNERS if layout.has_boxes else ()
    features = {
        layout.encoded: tf.io.FixedLenFeature([], tf.string),
        **{key: tf.io.FixedLenFeature([], tf.int64) for key in (layout.label, *layout.sides)},
        **{corner: tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for corner in corners},
    }
    parsed = tf.io.parse_single_example(payload, features)
    boxes = tf.stack([parsed[corner] for corner in corners], axis=-1)[tf.newaxis] if corners else no_boxes
    stored = parsed[layout.encoded]
    if layout.sides:
        stored = photo_decoding.decode_stored(stored, *(parsed[key] for key in layout.sides))
    return stored, parsed[layout.label], boxes


def _seed(base: int, epoch: tf.Tensor, file: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Returns the seed, [2], of all random choices about a photo in an epoch."""
    position = tf.bitwise.left_shift(file, tf.constant(_BITS_OF_RECORD, tf.int64)) + record
    streams = tf.bitwise.left_shift(position, tf.constant(_BITS_OF_STREAM, tf.int64))
    return tf.stack([base + tf.bitwise.left_shift(epoch, tf.constant(32, tf.int64)), streams])


def _with(value: tf.Tensor, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Puts a value before every element; a map would call a function for each one, 0.03 ms of a core."""
    return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(value).repeat(), dataset))


def numbered_files(source: Photos) -> tf.data.Dataset:
    """Returns a data set of (file, name); names may hold bytes that are not UTF-8."""
    names = [os.fsencode(str(file)) for file in source.files]
    return tf.data.Dataset.from_tensor_slices((tf.range(len(names), dtype=tf.int64), names))


def checked(source: Photos, numbered: tf.data.Dataset) -> tf.data.Dataset:
    """Changes the names in a data set of (file, name) so that TensorFlow reads only what it can be given.

    TensorFlow waits for a FIFO, and allocates any length that a file states; if the host has less, it crashes. A shard
    of another size than at the start is of another data set. The name of such a file becomes that of a file below it,
    which cannot exist: then reading fails, and the error names the file.

    This is part of what is measured, so a process walks a shard again only if it has changed.
    """
    if isinstance(source.files[0], Address):  # there is no FIFO, and to look at lengths would read each shard twice
        return numbered

    def safe_name(number: np.int64, name: bytes) -> bytes:
        file = source.files[int(number)]
        return name if _is_safe(source, file) else f"{safe_files.printable(file)}/unsafe".encode()

    def check(numbers: tf.Tensor, names: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        safe = tf.numpy_function(lambda *own: np.array([*map(safe_name, *own)], object), [numbers, names], tf.string)
        return numbers, tf.ensure_shape(safe, names.shape)

    chunks = numbered.batch(_PHOTOS_AT_ONCE if isinstance(source, PhotoFolder) else 1)
    return chunks.map(check, num_parallel_calls=hardware.usable_cores(), deterministic=True).unbatch()


def _is_safe(source: Photos, file: Path) -> bool:
    """Returns whether a photo is a regular file of a usual size, or a shard unchanged and without absurd lengths."""
    try:
        status = os.stat(file)
        if isinstance(source, PhotoFolder):
            return stat.S_ISREG(status.st_mode) and status.st_size <= safe_files.MOST_PHOTO_BYTES
        source.require_unchanged(file)
        return _lengths_are_safe(file, status.st_size, status.st_mtime_ns)
    except (OSError, DataError):
        return False


@functools.cache
def _lengths_are_safe(shard: Path, size: int, modified_ns: int) -> bool:
    """Remembers for each shard, as long as it does not change, whether TensorFlow's reader may have it."""
    return tfrecord.lengths_are_safe(shard)
