"""Writes a fake ImageNet: the layout of the real one, images that cost as much to decode, no meaning at all.

Real training images of ImageNet have a median of 500x375 pixels and about 110 KB. What decoding costs follows from
the pixels, the bytes (entropy coding) and the chroma subsampling, so the images match in these: a texture whose
amplitude falls with frequency as in photos (Field 1987, "Relations between the statistics of natural images"), cut
from one canvas at random, with random contrast, encoded at the usual quality with 4:2:0 chroma.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.errors import UsageError
from benchmarks.input.imagenet import BOX

_MEAN_WIDTH, _MEAN_HEIGHT = 500, 375
_JPEG_QUALITY = 95
_CANVAS_PIXELS = 1536
_CANVASES = 3
# Chosen by trial so that an image of the mean size takes 110 KB on average.
_MEAN_CONTRAST = 22.0
_NUM_CLASSES = 1000
# Labels follow Zipf's law: how often each class comes is the one thing that can be learnt here, and within a few steps,
# so that the loss of even a short run falls if, and only if, the training works.
_LABEL_WEIGHTS = 1.0 / np.arange(1, _NUM_CLASSES + 1)
_LABEL_SHARES = _LABEL_WEIGHTS / _LABEL_WEIGHTS.sum()
_SHARE_WITH_BOXES = 1 / 3

# What `write` raises if the directory cannot be made or written.
WRITE_ERRORS = (OSError, tf.errors.OpError)


def write(directory: Path, part: Split, *, seed: int, on_shard: Callable[[Path, int], None]) -> None:
    """Writes a split; equal seeds write equal bytes. Each file appears only when it is whole.

    Args:
        directory: is made if needed.
        part: what to write. Shards of the same split that are there already are removed first.
        seed: of everything.
        on_shard: told of each file and how many images it holds, once it is there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f"{part.name}-?????-of-?????"):
        old.unlink()
    canvases = [_texture(np.random.default_rng((seed, number))) for number in range(_CANVASES)]
    shares = np.array_split(np.arange(part.images), part.shards)

    def write_shard(job: tuple[Path, np.ndarray]) -> tuple[Path, int]:
        path, numbers = job
        partial = path.with_name(f".{path.name}.partial")
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for number in numbers:
                generator = np.random.default_rng((seed, len(part.name), int(number)))
                writer.write(_record(part.name, int(number), canvases, generator).serialize())
        os.replace(partial, path)
        return path, len(numbers)

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for path, count in pool.map(write_shard, zip(part.paths(directory), shares, strict=True)):
            on_shard(path, count)


def _texture(generator: np.random.Generator) -> np.ndarray:
    """Returns a canvas [pixels, pixels, 3], float32, mean 0 and deviation 1, amplitude falling as 1 / frequency."""
    frequencies = np.fft.fftfreq(_CANVAS_PIXELS)
    radius = np.hypot(frequencies[:, np.newaxis], frequencies[np.newaxis, : _CANVAS_PIXELS // 2 + 1])
    radius[0, 0] = np.inf  # no mean
    channels = []
    for _ in range(3):
        phase = np.exp(2j * np.pi * generator.random(radius.shape))
        channel = np.fft.irfft2(phase / radius, s=(_CANVAS_PIXELS, _CANVAS_PIXELS))
        channels.append(channel / channel.std())
    luminance, *colour = channels
    # Photos vary more in brightness than in colour.
    mixed = [
        luminance + 0.3 * colour[0],
        luminance - 0.15 * (colour[0] + colour[1]),
        luminance + 0.3 * colour[1],
    ]
    return np.stack(mixed, axis=-1).astype(np.float32)


def _record(
    split_name: str, number: int, canvases: list[np.ndarray], generator: np.random.Generator
) -> InceptionRecord:
    label = 1 + int(generator.choice(_NUM_CLASSES, p=_LABEL_SHARES))
    height, width = _size(generator)
    encoded = _jpeg(canvases, height, width, generator)
    boxes = list(_boxes(generator)) if generator.random() < _SHARE_WITH_BOXES else []
    synset = f"n{label:08d}"
    return InceptionRecord(
        encoded=encoded,
        height=height,
        width=width,
        label=label,
        synset=synset,
        name=f"{split_name}_{synset}_{number}.JPEG",
        text=f"fake class {label}",
        boxes=boxes,
    )


def _size(generator: np.random.Generator) -> tuple[int, int]:
    """Returns height and width: mostly 500x375, some smaller, as many larger."""
    scale = float(generator.choice([0.6, 1.0, 1.4], p=[0.1, 0.8, 0.1]))
    return round(_MEAN_HEIGHT * scale), round(_MEAN_WIDTH * scale)


def _jpeg(canvases: list[np.ndarray], height: int, width: int, generator: np.random.Generator) -> bytes:
    canvas = canvases[generator.integers(len(canvases))]
    top, left = (int(generator.integers(_CANVAS_PIXELS - extent)) for extent in (height, width))
    crop = canvas[top : top + height, left : left + width]
    contrast = _MEAN_CONTRAST * float(generator.lognormal(sigma=0.35))
    brightness = generator.uniform(90, 160)
    pixels = np.clip(crop * contrast + brightness, 0, 255).astype(np.uint8)
    return bytes(tf.io.encode_jpeg(pixels, quality=_JPEG_QUALITY).numpy())


def _boxes(generator: np.random.Generator) -> Iterator[tuple[float, float, float, float]]:
    """Yields one to three boxes (ymin, xmin, ymax, xmax) as shares of height and width."""
    for _ in range(int(generator.integers(1, 4))):
        ymin, xmin = generator.uniform(0.0, 0.6, size=2)
        ymax, xmax = ymin + generator.uniform(0.2, 0.4), xmin + generator.uniform(0.2, 0.4)
        yield float(ymin), float(xmin), float(ymax), float(xmax)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InceptionRecord:
    """A photo and what is known of it.

    Attributes:
        encoded: the JPEG.
        height: pixels.
        width: pixels.
        label: from 1.
        synset: the class's name in WordNet, or the folder's.
        name: the file's.
        text: the class in words.
        boxes: ymin, xmin, ymax, xmax as shares of height and width.
    """

    encoded: bytes
    height: int
    width: int
    label: int
    synset: str
    name: str
    text: str = ""
    boxes: Sequence[tuple[float, float, float, float]] = ()

    def serialize(self) -> bytes:
        """Returns the tf.train.Example."""
        feature = {
            "image/height": _ints([self.height]),
            "image/width": _ints([self.width]),
            "image/colorspace": _bytes(b"RGB"),
            "image/channels": _ints([3]),
            "image/class/label": _ints([self.label]),
            "image/class/synset": _bytes(self.synset.encode()),
            "image/class/text": _bytes(self.text.encode()),
            BOX + "label": _ints([self.label] * len(self.boxes)),
            "image/format": _bytes(b"JPEG"),
            "image/filename": _bytes(self.name.encode()),
            "image/encoded": _bytes(self.encoded),
        }
        for index, corner in enumerate(("ymin", "xmin", "ymax", "xmax")):
            feature[BOX + corner] = _floats([box[index] for box in self.boxes])
        return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def _ints(values: list[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: list[float]) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Part of a data set: its name (`train`, `validation`) and how many images in how many files."""

    name: str
    images: int
    shards: int

    def paths(self, directory: Path) -> list[Path]:
        """Returns the files that hold it."""
        return [directory / f"{self.name}-{i:05d}-of-{self.shards:05d}" for i in range(self.shards)]


def split(name: str, images: int, images_per_shard: int) -> Split:
    """Divides images evenly among as few shards as hold at most `images_per_shard` each."""
    return Split(name=name, images=images, shards=-(-images // images_per_shard))


def refuse_to_overwrite(directory: Path, splits: list[Split]) -> None:
    """Checks that no shard of these splits, of any number, is in the directory.

    Raises:
        UsageError: there is one.
    """
    for part in splits:
        there = sorted(directory.glob(f"{part.name}-?????-of-?????")) if directory.is_dir() else []
        if there:
            raise UsageError(
                f"{directory} already holds {len(there)} {part.name} shards ({there[0].name}, ...): name another "
                "directory, or say --overwrite to replace them."
            )
