"""Small images in memory: MNIST's idx files and CIFAR-10's two archives, read, augmented and put into batches."""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import operator
import os
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.data.options import InputOptions, parallel_calls
from benchmarks.data.pipeline.tower_input import InputSpec
from benchmarks.data.sources.class_folders import some
from benchmarks.data.sources.data_sets import DATA_SETS, StoredImages, existing_directory
from benchmarks.data.sources.safe_files import MOST_SMALL_IMAGES_BYTES, UNREADABLE, files_in, load_arrays, read_file
from benchmarks.errors import DataError

STAGES = ("draw", "augment", "batch")  # the files are read before
_MARGIN = 4  # pixels of zeros around an image that is cropped at random
_TORCHVISION = ("MNIST/raw", "raw")  # where it keeps them, below its root
_CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-batches-py-target/cifar-10-batches-py")
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_PIXELS = math.prod(_CIFAR_SHAPE)
_IDX_UINT8 = 0x08


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels(StoredImages):
    """A data set of small images in memory; `layout` is the format on disk, in words.

    Images are [images, height, width, channels], uint8; labels are [images], int64, from 0.
    """

    layout: str
    images: np.ndarray
    labels: np.ndarray

    @property
    def count(self) -> int:
        """All are in memory."""
        return len(self.images)

    def identify(self) -> str:
        """The checksum is of the labels."""
        return f"{self.layout}, {len(self.images)} images, {zlib.crc32(self.labels.tobytes()):08x}"

    def describe(self) -> str:
        """The line holds the lowest and highest label, too."""
        return (
            f"{self.layout}, {len(self.images)} {self.split} images in {self.directory}, labels {self.labels.min()} to "
            f"{self.labels.max()}"
        )


def find_small_images(name: str, directory: str, split: str) -> Pixels:
    """Reads a split of `cifar10` or `mnist`.

    Raises:
        DataError: the data set is missing or incomplete.
    """
    path = existing_directory(name, directory)
    layout, images, labels = (_read_mnist if name == "mnist" else _read_cifar10)(path, split)
    if not len(images):
        raise DataError(f"--data_dir={directory} holds no {split} images: copy or make the data set again.")
    classes = DATA_SETS[name].classes
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(bad):
        raise DataError(
            f"--data_dir={directory}: the label of {split} image {bad[0]} is {labels[bad[0]]}, not one of 0 to "
            f"{classes - 1} ({len(bad)} such labels): copy or make the data set again."
        )
    return Pixels(layout=layout, directory=directory, split=split, images=images, labels=labels.astype(np.int64))


def _read_mnist(path: Path, split: str) -> tuple[str, np.ndarray, np.ndarray]:
    stem = {"train": "train", "validation": "t10k"}[split]
    folders = (path, *(path / raw for raw in _TORCHVISION))
    folder = next((folder for folder in folders if _idx_file(folder, f"{stem}-images-idx3-ubyte")), path)
    images = _read_idx(folder, f"{stem}-images-idx3-ubyte", dimensions=3)
    labels = _read_idx(folder, f"{stem}-labels-idx1-ubyte", dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"--data_dir={path} holds {len(images)} images, but {len(labels)} labels: they must match.")
    return "MNIST idx files", images[..., np.newaxis], labels


def _idx_file(directory: Path, name: str) -> Path | None:
    # The names on the original site, unpacked, and as some tools unpack them; Kaggle's is in a folder of its own name.
    forms = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    folders = (directory, *(directory / form for form in forms))
    candidates = [folder / form for folder in folders for form in forms]
    return next((path for path in candidates if path.exists() and not path.is_dir()), None)


def _read_idx(directory: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads an idx file: two zero bytes, a type, the number of dimensions, each as 4 bytes big-endian, the values."""
    file = _idx_file(directory, name)
    if file is None:
        raise DataError(
            f"--data_dir={directory}: there is neither {name} nor {name}.gz; it holds "
            f"{some(sorted(os.listdir(directory)))}. Name the folder with these files, the only form that is read, or "
            "make a fake MNIST with 'run_bench.py data make_mnist DIR'."
        )
    data = _bytes_of(file)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes((0, 0, _IDX_UINT8, dimensions)):
        raise DataError(
            f"{file} is no idx file of unsigned bytes in {dimensions} dimension(s) (it begins with {data[:4].hex()}): "
            "copy it again."
        )
    shape = struct.unpack(f">{dimensions}I", data[4:head])
    if len(data) - head != math.prod(shape):
        raise DataError(
            f"{file} should hold {math.prod(shape)} values after its header of {head} bytes, but holds "
            f"{len(data) - head}: copy it again."
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _bytes_of(file: Path) -> bytes:
    """Returns the bytes of a file, decompressed.

    Raises:
        DataError: they cannot be read, or are more than such a file has.
    """
    try:
        data = read_file(file, MOST_SMALL_IMAGES_BYTES)
        if data[:2] != b"\x1f\x8b":
            return data
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as compressed:
            unpacked = compressed.read(MOST_SMALL_IMAGES_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}. Copy it again."
        ) from error
    if len(unpacked) > MOST_SMALL_IMAGES_BYTES:
        raise DataError(f"{file} unpacks to more than the limit of {MOST_SMALL_IMAGES_BYTES} bytes. Copy it again.")
    return unpacked


def _read_cifar10(path: Path, split: str) -> tuple[str, np.ndarray, np.ndarray]:
    stems = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    for layout, ending, parse in (("binary", ".bin", _parse_binary), ("python", "", _parse_python)):
        names = [stem + ending for stem in stems]
        members = _cifar_members(path, names)
        if not members:
            continue
        missing = [name for name in names if name not in members]
        if missing:
            raise DataError(f"--data_dir={path}: {', '.join(missing)} of CIFAR-10 ({layout}) is missing: copy it.")
        parts = [parse(name, data) for name, data in members.items()]
        planes = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, *_CIFAR_SHAPE)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return f"CIFAR-10, {layout} version", images, np.concatenate([labels for _, labels in parts])
    raise DataError(
        f"--data_dir={path}: there is neither {stems[0]}.bin nor {stems[0]} of CIFAR-10, nor their archive; it holds "
        f"{some(sorted(os.listdir(path)))}. Name the folder with these files, the only forms that are read, or make a "
        "fake CIFAR-10 with 'run_bench.py data make_cifar10 DIR'."
    )


def _cifar_members(path: Path, names: list[str]) -> dict[str, bytes]:
    """Returns files of these names, from the directory, the folder that the archive unpacks to, or the archive."""
    for folder in (path, *(path / name for name in _CIFAR_FOLDERS)):
        members = {name: _bytes_of(folder / name) for name in names if (folder / name).exists()}
        if members:
            return members
    for archive in sorted(path.glob("cifar-10-*.tar.gz")):
        unpacked = _bytes_of(archive)  # so a member cannot be larger
        try:
            with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as tar:
                members = {}
                for member in files_in(tar):
                    name, file = Path(member.name).name, tar.extractfile(member)
                    if file is not None and name in names:
                        members[name] = file.read()
        except UNREADABLE as error:
            raise DataError(f"{archive} cannot be read: {error}. Copy it again.") from error
        if members:
            return {name: members[name] for name in names if name in members}
    return {}


def _parse_binary(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    size = 1 + _CIFAR_PIXELS
    if len(data) % size:
        raise DataError(f"{name} of {len(data)} bytes is no whole number of records of {size} bytes: copy it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, 1:], records[:, 0]


def _parse_python(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch: Mapping[Any, Any] = load_arrays(data)
        pixels, labels = batch[b"data"], batch[b"labels"]
        # Before they are copied: a pickle of some bytes can describe any amount.
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.nbytes > len(data):
            raise ValueError("its data are no array of bytes")
        if pixels.shape[1:] not in ((_CIFAR_PIXELS,), (3, 32, 32)):  # 32x32x3 would be in another order
            raise ValueError(f"its data have the shape {pixels.shape}, not (images, {_CIFAR_PIXELS})")
        if len(pixels) != len(labels):
            raise ValueError(f"{len(pixels)} images and {len(labels)} labels")
        return pixels.reshape(-1, _CIFAR_PIXELS), np.asarray([operator.index(label) for label in labels], np.int64)
    except Exception as error:  # a pickle can fail in any way
        raise DataError(f"{name} is no batch of CIFAR-10 ({type(error).__name__}: {error}): copy it again.") from error


@tf.autograph.experimental.do_not_convert
def batches(source: Pixels, spec: InputSpec, options: InputOptions, last_stage: str = "batch") -> tf.data.Dataset:
    """See `input_pipeline.batches`: images uint8 [batch, height, width, channels], labels int64 [batch].

    Before the last of STAGES, only labels come out.
    """
    images = source.images
    augmented = options.crop == "distorted" and images.shape[-1] == 3 and last_stage != "draw"

    share = len(range(spec.worker, len(images), spec.workers))
    first, skipped = divmod(spec.images_before // spec.workers, share) if options.cache != "one_record" else (0, 0)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order = tf.data.Dataset.range(len(images)).shuffle(len(images), seed=spec.seed + number)
        return order.shard(spec.workers, spec.worker).map(lambda index: (number, index))

    drawn_in_order = tf.data.Dataset.counter(first).flat_map(epoch).skip(skipped)
    numbered = drawn_in_order.batch(spec.batch_per_device, drop_remainder=True)
    if options.cache == "one_record":
        numbered = numbered.take(1).cache().repeat()
    drawn = _drawn(source, numbered, spec.batch_per_device, options, seed=spec.seed if augmented else None)
    return drawn if last_stage == "batch" else drawn.map(lambda _, labels: labels)


@tf.autograph.experimental.do_not_convert
def one_pass(source: Pixels, spec: InputSpec, options: InputOptions) -> tf.data.Dataset:
    """Returns a data set of all images once, in their order, as in `batches`; the last batch may be smaller."""
    indices = tf.data.Dataset.range(source.count).batch(spec.batch_per_device)
    return _drawn(source, indices.map(lambda at: (tf.zeros_like(at), at)), None, options, seed=None)


def _drawn(
    source: Pixels, numbered: tf.data.Dataset, batch: int | None, options: InputOptions, *, seed: int | None
) -> tf.data.Dataset:
    """Returns batches of images and labels at (epochs, indices); with a seed, the images are augmented."""

    def gather(epochs: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, labels = source.images[indices], source.labels[indices]
        return (images if seed is None else _augmented(images, epochs, indices, seed)), labels

    def draw(epochs: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(gather, [epochs, indices], (tf.uint8, tf.int64))
        return tf.ensure_shape(images, (batch, *source.images.shape[1:])), tf.ensure_shape(labels, (batch,))

    return numbered.map(draw, num_parallel_calls=parallel_calls(options), deterministic=True)


def _augmented(images: np.ndarray, epochs: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
    """Crops and flips each image at random; the choice depends on seed, epoch and index, not on worker or batch."""
    choices = _random_words(epochs, indices, seed)
    positions = 2 * _MARGIN + 1
    tops, lefts, flips = choices % positions, choices // positions % positions, choices // positions**2 % 2
    margins = ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN), (0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, margins), images.shape[1:3], axis=(1, 2))
    # [image, channel, row, column], a view until it is copied.
    cut = windows[np.arange(len(images)), tops, lefts].transpose(0, 2, 3, 1)
    return np.ascontiguousarray(np.where(flips[:, None, None, None] == 1, cut[:, :, ::-1], cut))


def _random_words(epochs: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
    """Returns a random number for each image and epoch: SplitMix64, by Steele et al., OOPSLA 2014."""
    with np.errstate(over="ignore"):
        x = indices.astype(np.uint64) + (epochs.astype(np.uint64) << np.uint64(40)) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = x + np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
