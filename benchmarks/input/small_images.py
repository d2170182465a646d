"""Data sets of small images that fit into memory: MNIST's idx files and CIFAR-10's two archives.

Imports without TensorFlow.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import pickle
import re
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.errors import DataError
from benchmarks.input.catalog import DATA_SETS, existing_directory
from benchmarks.input.imagenet_pipeline import parallel_calls
from benchmarks.input.options import InputOptions
from benchmarks.input.tower_input import InputSpec

_CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
_CIFAR_SIDE, _CIFAR_CHANNELS = 32, 3
_CIFAR_PIXELS = _CIFAR_SIDE * _CIFAR_SIDE * _CIFAR_CHANNELS
_CIFAR_FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "validation": ["test_batch"]}
_MNIST_FILES = {"train": "train", "validation": "t10k"}
_IDX_UINT8 = 0x08


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """Small images in memory.

    Attributes:
        layout: how they lay on disk.
        files: where.
        directory: as the user named it.
        split: which part it is.
        images: [images, height, width, channels], uint8.
        labels: [images], int64, from 0.
    """

    layout: str
    files: list[Path]
    directory: str
    split: str
    images: np.ndarray
    labels: np.ndarray

    def count(self) -> int:
        """Returns the number of images."""
        return len(self.images)

    def identify(self) -> str:
        """Returns what tells this data set from another: layout, number of images, and their labels."""
        return f"{self.layout}, {len(self.images)} images, {zlib.crc32(self.labels.tobytes()):08x}"

    def describe(self) -> str:
        """Returns in one line what was found."""
        return (
            f"{self.layout}, {len(self.images)} {self.split} images in {self.directory}, labels {self.labels.min()} to "
            f"{self.labels.max()}"
        )


def find(name: str, directory: str, split: str) -> Pixels:
    """Reads a data set.

    Args:
        name: `cifar10` or `mnist`.
        directory: where to look.
        split: `train` or `validation`.

    Raises:
        DataError: it is not there, or not whole.
    """
    path = existing_directory(name, directory)
    found = (_mnist if name == "mnist" else _cifar10)(path, directory, split)
    if not len(found.images):
        raise DataError(f"{found.files[0]} holds no images: copy or make it again.")
    classes = DATA_SETS[name].classes
    bad = np.flatnonzero((found.labels < 0) | (found.labels >= classes))
    if len(bad):
        raise DataError(
            f"{found.files[0].parent}: the label of {split} image {bad[0]} is {found.labels[bad[0]]}, one of 0 to "
            f"{classes - 1} is wanted ({len(bad)} such labels): copy or make the data set again."
        )
    return found


def _mnist(path: Path, directory: str, split: str) -> Pixels:
    stem = _MNIST_FILES[split]
    files = [_idx_file(path, f"{stem}-images-idx3-ubyte"), _idx_file(path, f"{stem}-labels-idx1-ubyte")]
    images, labels = (_read_idx(file, dimensions) for file, dimensions in zip(files, (3, 1), strict=True))
    if len(images) != len(labels):
        raise DataError(
            f"{files[0]} holds {len(images)} images, {files[1].name} {len(labels)} labels: they must match."
        )
    return Pixels(
        layout="MNIST idx files",
        files=files,
        directory=directory,
        split=split,
        images=images[..., np.newaxis],
        labels=labels.astype(np.int64),
    )


def _idx_file(directory: Path, name: str) -> Path:
    # As on the site it comes from, unpacked, and as some tools unpack it.
    for candidate in (name, f"{name}.gz", name.replace("-idx", ".idx")):
        if (directory / candidate).is_file():
            return directory / candidate
    held = ", ".join(sorted(entry.name for entry in directory.iterdir())[:3]) or "nothing"
    raise DataError(
        f"--data_dir={directory}: there is neither {name} nor {name}.gz; it holds {held}. Make a fake MNIST with "
        "'run_bench.py data make-mnist DIR'."
    )


def _read_idx(file: Path, dimensions: int) -> np.ndarray:
    """Reads an idx file: two zero bytes, a type, the number of dimensions, each as 4 bytes big-endian, the values."""
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
            f"{file} should hold {math.prod(shape)} values after its head of {head} bytes, but holds "
            f"{len(data) - head}: copy it again."
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _bytes_of(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}. Copy it again.") from error


def _cifar10(path: Path, directory: str, split: str) -> Pixels:
    wanted = _CIFAR_FILES[split]
    for layout, ending, parse in (("binary", ".bin", _cifar_binary), ("python", "", _cifar_python)):
        members = _cifar_members(path, [name + ending for name in wanted])
        missing = [name + ending for name in wanted if name + ending not in members]
        if not members:
            continue
        if missing:
            raise DataError(f"--data_dir={directory}: {', '.join(missing)} of CIFAR-10 ({layout}) is missing: copy it.")
        parts = [parse(Path(name), data) for name, data in members.items()]
        planes = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, _CIFAR_CHANNELS, _CIFAR_SIDE, _CIFAR_SIDE)
        return Pixels(
            layout=f"CIFAR-10, {layout} version",
            files=[path / name for name in members],
            directory=directory,
            split=split,
            images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
            labels=np.concatenate([labels for _, labels in parts]).astype(np.int64),
        )
    held = ", ".join(sorted(entry.name for entry in path.iterdir())[:3]) or "nothing"
    raise DataError(
        f"--data_dir={directory}: there is neither {wanted[0]}.bin nor {wanted[0]} of CIFAR-10, nor their archive; it "
        f"holds {held}. Make a fake CIFAR-10 with 'run_bench.py data make-cifar10 DIR'."
    )


def _cifar_members(path: Path, names: list[str]) -> dict[str, bytes]:
    """Returns files of these names, from the directory, the folder that the archive unpacks to, or the archive."""
    for folder in (path, *(path / name for name in _CIFAR_FOLDERS)):
        there = {name: _bytes_of(folder / name) for name in names if (folder / name).is_file()}
        if there:
            return there
    for archive in sorted(path.glob("cifar-10-*.tar.gz")):
        try:
            with tarfile.open(archive) as tar:
                inside = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
                found = {name: tar.extractfile(inside[name]) for name in names if name in inside}
                there = {name: opened.read() for name, opened in found.items() if opened is not None}
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise DataError(f"{archive} cannot be read: {error}. Copy it again.") from error
        if there:
            return there
    return {}


def _cifar_binary(file: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    size = 1 + _CIFAR_PIXELS
    if len(data) % size:
        raise DataError(f"{file} of {len(data)} bytes is no whole number of records of {size} bytes: copy it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    return records[:, 1:], records[:, 0]


def _cifar_python(file: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch: Mapping[Any, Any] = _OnlyArrays(io.BytesIO(data), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], np.uint8).reshape(-1, _CIFAR_PIXELS)
        labels = np.asarray(batch[b"labels"], np.int64).reshape(-1)
        if len(pixels) != len(labels):
            raise ValueError(f"{len(pixels)} images and {len(labels)} labels")
        return pixels, labels
    except Exception as error:  # a pickle can fail in any way
        raise DataError(f"{file} is no batch of CIFAR-10 ({type(error).__name__}: {error}): copy it again.") from error


class _OnlyArrays(pickle.Unpickler):
    """Unpickles NumPy arrays and plain containers; a file from elsewhere must not call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the few functions that an array needs."""
        if re.fullmatch(r"numpy(\._?core\.multiarray)?", module) and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        if (module, name) in (("_codecs", "encode"), ("__builtin__", "bytes"), ("builtins", "bytes")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


STAGES = ("read", "augment", "batch")
_MARGIN = 4


def batches(
    source: Pixels, spec: InputSpec, options: InputOptions, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns an endless data set of batches: images uint8 [batch, height, width, channels], labels int64 [batch]."""
    return stage(source, spec, options, "batch", worker, workers)


def stage(
    source: Pixels, spec: InputSpec, options: InputOptions, name: str, worker: int = 0, workers: int = 1
) -> tf.data.Dataset:
    """Returns what comes out of the pipeline if it ends after a stage; before the last, only labels."""
    images, labels, seed = source.images, source.labels, spec.seed
    augmented = options.crop == "distorted" and images.shape[-1] == 3 and name != "read"

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        mine = tf.data.Dataset.range(len(images)).shuffle(len(images), seed=seed + number).shard(workers, worker)
        return mine.map(lambda index: (number, index))

    def gather(epochs: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        drawn = images[indices]
        return (_augmented(drawn, epochs, indices, seed) if augmented else drawn), labels[indices]

    def draw(epochs: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | tf.Tensor:
        drawn, its_labels = tf.numpy_function(gather, [epochs, indices], (tf.uint8, tf.int64))
        if name != "batch":
            return its_labels
        return (
            tf.ensure_shape(drawn, (spec.batch_per_device, *images.shape[1:])),
            tf.ensure_shape(its_labels, (spec.batch_per_device,)),
        )

    numbered = tf.data.Dataset.counter().flat_map(epoch).batch(spec.batch_per_device, drop_remainder=True)
    if options.cache == "one_record":
        numbered = numbered.take(1).cache().repeat()
    return numbered.map(draw, num_parallel_calls=parallel_calls(options), deterministic=True)


def _augmented(images: np.ndarray, epochs: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
    """Cuts and flips each image at random: equally in each epoch, whoever draws it and in whatever batch."""
    choices = _random_words(epochs, indices, seed)
    places = 2 * _MARGIN + 1
    tops, lefts, flips = choices % places, choices // places % places, choices // places**2 % 2
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
            x = (x + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(1)
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return (x ^ (x >> np.uint64(31))) >> np.uint64(1)
