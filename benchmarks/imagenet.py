"""ImageNet as TFRecords in the Inception layout: found, checked, read, decoded, distorted.

Files `train-00000-of-01024`; in each record `image/encoded` (JPEG), `image/class/label` (1 to 1000; 0 is background)
and boxes in `image/object/bbox/*`. The layout is that of Inception's build_imagenet_data script.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError

from benchmarks import tfrecord
from benchmarks.devices import HOST
from benchmarks.display import warn
from benchmarks.errors import DataError, headline
from benchmarks.inputs import InputSpec, TowerInput
from models.layers import DataFormat
from models.specs import BACKGROUND_CLASSES, IMAGENET_CLASSES
from variable_mgr import staging

TRAIN_IMAGES = 1_281_167
_SHARD_NAME = re.compile(r"train-(\d{5})-of-(\d{5})")
_ENCODED, _LABEL = "image/encoded", "image/class/label"
_BOX = "image/object/bbox/"
_EXAMPLES_NAMED = 3

# How long to look for a damaged record: some 100,000 images on one core.
_SEARCH_SECONDS = 600.0
# Records that wait to be drawn from; at 110 KB each, 110 MB.
_SHUFFLE_RECORDS = 1024
_FILES_AT_A_TIME = 10
# Per channel, of ImageNet's photos, in 0..255 (torchvision's transforms give the same in 0..1).
_CHANNEL_MEAN = (123.675, 116.28, 103.53)
_CHANNEL_STDDEV = (58.395, 57.12, 57.375)


def find_shards(directory: str) -> list[Path]:
    """Returns the training shards in a directory, in order.

    Raises:
        DataError: there is no such directory, no shard in it, a shard is missing or empty, or the first record is not
            of the Inception layout.
    """
    path = Path(directory)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise DataError(
            f"--data_dir={directory} {what}: name the directory with train-00000-of-... in it, or make one with "
            "'run_bench.py data make-imagenet DIR'."
        )
    shards = {match: file for file in path.iterdir() if (match := _SHARD_NAME.fullmatch(file.name))}
    if not shards:
        held = sorted(file.name for file in path.iterdir())[:_EXAMPLES_NAMED]
        holds = f"it holds {', '.join(held)}, ..." if held else "it is empty"
        raise DataError(
            f"--data_dir={directory}: no file is named like train-00000-of-00008; {holds}. Make a fake ImageNet "
            "with 'run_bench.py data make-imagenet DIR', or leave --data_dir out for synthetic images."
        )
    _check_complete(directory, [(int(match[1]), int(match[2])) for match in shards])
    files = sorted(shards.values())
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is a broken link or no file: link, copy or make it again.")
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty (0 bytes): copy or make it again.")
    _check_first_record(files[0])
    return files


def _check_complete(directory: str, numbers: Sequence[tuple[int, int]]) -> None:
    totals = {total for _, total in numbers}
    if len(totals) > 1:
        raise DataError(
            f"--data_dir={directory} mixes shards of {len(totals)} data sets "
            f"(-of-{' and -of-'.join(map(str, sorted(totals)))}): keep one."
        )
    total = totals.pop()
    missing = sorted(set(range(total)) - {number for number, _ in numbers})
    if missing:
        some = ", ".join(f"train-{number:05d}-of-{total:05d}" for number in missing[:_EXAMPLES_NAMED])
        raise DataError(
            f"--data_dir={directory}: {len(missing)} of {total} shards are missing: {some}"
            f"{', ...' if len(missing) > _EXAMPLES_NAMED else ''}. Copy or make them again."
        )


def _check_first_record(file: Path) -> None:
    first = next(tfrecord.records(file))
    problem = _problem_of_example(first.payload, lowest_label=0)
    if problem:
        raise tfrecord.bad_record(file, first.number, first.offset, problem)


def count_images(shards: Sequence[Path]) -> int:
    """Returns the number of records, read off their lengths alone."""
    return sum(tfrecord.count(file) for file in shards)


def read(
    shards: Sequence[Path], tower_devices: Sequence[str], spec: InputSpec, *, in_turn: bool, pipelined: bool
) -> tuple[list[TowerInput], list[tf.Operation]]:
    """Builds the training input: one pipeline on the host, from which all towers draw their batches.

    So no two towers see the same image before all images have been seen. Decoding yields uint8; the cast and the
    normalisation are done on the tower's device, so that a quarter of the bytes travel.

    Args:
        shards: the files.
        tower_devices: one per tower.
        spec: what is wanted.
        in_turn: towers that step together draw in their order, so that each run deals the same batches; towers that go
            their own way must not wait for each other.
        pipelined: each tower's next batch is brought to its device while it computes.

    Returns:
        One input per tower, and the operations that must run in this order before the first step.
    """
    with tf.device(HOST), tf.name_scope("imagenet"):
        options = tf.data.Options()
        options.threading.max_intra_op_parallelism = 1
        dataset = _images(shards, spec)
        dataset = dataset.batch(spec.batch_per_device, drop_remainder=True).prefetch(2 * len(tower_devices))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset.with_options(options))
        batches: list[tuple[tf.Tensor, tf.Tensor]] = []
        for _ in tower_devices:
            # In turn: without an order between them, which tower gets which batch would change from run to run.
            earlier = batches[-1:] if in_turn else []
            with tf.control_dependencies([tensor for batch in earlier for tensor in batch]):
                batches.append(iterator.get_next())
    inputs, stages = [], []
    for device, batch in zip(tower_devices, batches, strict=True):
        stage, (images, labels) = staging.area(device, batch) if pipelined else (None, batch)
        stages += [stage] if stage is not None else []
        with tf.device(device):
            inputs.append(TowerInput(_normalise(images, spec.data_format), labels, stage))
    # In one run, or what the towers draw in their order would be drawn again for each of them.
    return inputs, [iterator.initializer, tf.group(*stages)]


def _images(shards: Sequence[Path], spec: InputSpec) -> tf.data.Dataset:
    """Returns an endless data set of (uint8 [size, size, 3], int64 label)."""
    files = tf.data.Dataset.from_tensor_slices([str(file) for file in shards])
    records = files.shuffle(len(shards), seed=spec.seed).interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(_FILES_AT_A_TIME, len(shards)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    # Repeated after shuffling, so that every image is seen once before any is seen again.
    endless = records.shuffle(_SHUFFLE_RECORDS, seed=spec.seed).repeat()
    numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(), endless))

    def prepare(number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label, boxes = _parse(record)
        lowest = _lowest_label(spec.num_classes)
        in_range = tf.debugging.Assert((label >= lowest) & (label <= IMAGENET_CLASSES), ["label out of range", label])
        with tf.control_dependencies([in_range]):
            label -= lowest
        return _distorted_crop(encoded, boxes, spec.image_size, tf.stack([spec.seed, number])), label

    return numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _lowest_label(num_classes: int) -> int:
    """Returns the record's label that is class 0: the background, or without it the first of the photos."""
    return BACKGROUND_CLASSES - num_classes


def _parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the JPEG, the label, and boxes as [1, boxes, 4] in the order ymin, xmin, ymax, xmax, in 0..1."""
    corners = ("ymin", "xmin", "ymax", "xmax")
    features = {
        _ENCODED: tf.io.FixedLenFeature([], tf.string),
        _LABEL: tf.io.FixedLenFeature([], tf.int64),
        **{_BOX + corner: tf.io.VarLenFeature(tf.float32) for corner in corners},
    }
    parsed = tf.io.parse_single_example(record, features)
    boxes = tf.stack([tf.sparse.to_dense(parsed[_BOX + corner]) for corner in corners], axis=-1)
    return parsed[_ENCODED], parsed[_LABEL], boxes[tf.newaxis]


def _distorted_crop(encoded: tf.Tensor, boxes: tf.Tensor, size: int, seed: tf.Tensor) -> tf.Tensor:
    """Decodes only a random part, resizes it, and flips every other: the crop of Szegedy et al., arXiv:1409.4842."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        bounding_boxes=boxes,
        seed=seed,
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.resize(image, (size, size), method="bilinear")
    image = tf.image.stateless_random_flip_left_right(image, seed + [1, 0])  # independent of the crop
    return tf.ensure_shape(tf.cast(tf.round(image), tf.uint8), (size, size, 3))


def _normalise(images: tf.Tensor, data_format: DataFormat) -> tf.Tensor:
    """Returns float32 of mean 0 and standard deviation 1 per channel, on the current device."""
    scaled = (tf.cast(images, tf.float32) - tf.constant(_CHANNEL_MEAN)) / tf.constant(_CHANNEL_STDDEV)
    return tf.transpose(scaled, (0, 3, 1, 2)) if data_format == "NCHW" else scaled


def explain_failure(shards: Sequence[Path], num_classes: int, error: Exception) -> DataError:
    """Finds the record behind an error of the pipeline, since TensorFlow's own message names no file.

    Walks the records, for a limited time; the first that is damaged is taken to be the one.
    """
    warn(f"The input failed; looking for the damaged record in {len(shards)} files ...")
    give_up_at = time.monotonic() + _SEARCH_SECONDS
    with _JpegCheck() as problem_of_jpeg:
        for number, file in enumerate(shards):
            for record in tfrecord.records(file):
                if time.monotonic() > give_up_at:
                    return _unexplained(shards, f"the first {number} of {len(shards)} files are sound", error)
                problem = _problem_of_example(record.payload, _lowest_label(num_classes))
                problem = problem or problem_of_jpeg(_example(record.payload))
                if problem:
                    return tfrecord.bad_record(file, record.number, record.offset, problem)
    return _unexplained(shards, "every record in it is sound", error)


def _unexplained(shards: Sequence[Path], found: str, error: Exception) -> DataError:
    return DataError(f"Reading {shards[0].parent} failed, though {found}: {headline(error)}")


def _example(payload: bytes) -> Mapping[str, tf.train.Feature]:
    return tf.train.Example.FromString(payload).features.feature


def _problem_of_example(payload: bytes, lowest_label: int) -> str | None:
    """Returns what is wrong with a record's keys and label, or None."""
    try:
        feature = _example(payload)
    except DecodeError:
        return "it is no tf.train.Example; convert the data to the Inception layout (docs/data.md)"
    for key in (_ENCODED, _LABEL):
        if key not in feature:
            holds = ", ".join(sorted(feature)[:5]) or "nothing"
            return f"it has no '{key}', only {holds}; convert the data to the Inception layout (docs/data.md)"
    label, encoded = feature[_LABEL].int64_list.value, feature[_ENCODED].bytes_list.value
    if len(label) != 1 or not lowest_label <= label[0] <= IMAGENET_CLASSES:
        return f"its label is {list(label)}, one number of {lowest_label} to {IMAGENET_CLASSES} is wanted; correct it"
    return None if len(encoded) == 1 else f"it holds {len(encoded)} images, one is wanted; make it again"


class _JpegCheck:
    """Decodes JPEGs as the pipeline does, in a session of its own that leaves GPUs alone."""

    def __enter__(self) -> Callable[[Mapping[str, tf.train.Feature]], str | None]:
        with tf.Graph().as_default() as graph, tf.device(HOST):
            self._encoded = tf.compat.v1.placeholder(tf.string, [])
            self._decoded = tf.io.decode_and_crop_jpeg(self._encoded, [0, 0, 1, 1], channels=3)
            self._whole = tf.io.decode_jpeg(self._encoded, channels=3)
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        return self._problem_of

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def _problem_of(self, feature: Mapping[str, tf.train.Feature]) -> str | None:
        encoded = feature[_ENCODED].bytes_list.value[0]
        try:
            self._session.run([self._decoded.op, self._whole.op], {self._encoded: encoded})
        except tf.errors.OpError as error:
            reason = headline(error).split("[[")[0].strip()[:120]
            return f"its image of {len(encoded)} bytes does not decode as JPEG ({reason}); replace it"
        return None
