"""How photos are written: the shards of a split, and a photo as a tf.train.Example."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from benchmarks.console import say
from benchmarks.data.sources.photo_layouts import BOX_CORNERS, Layout

if TYPE_CHECKING:
    from PIL import Image


@dataclasses.dataclass(frozen=True)
class Original:
    """A photo to write, and what is known of it.

    Attributes:
        encoded: the file of any format, or pixels, row by row.
        label: counts from 1.
        class_name: in WordNet (a synset), or of its folder.
        name: of its file.
        text: the class in words.
        boxes: ymin, xmin, ymax, xmax as shares of height and width.
    """

    encoded: bytes
    label: int
    class_name: str
    name: str
    text: str = ""
    boxes: Sequence[tuple[float, float, float, float]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Part of a data set: its name (`train`, `validation`), and its numbers of images and of files."""

    name: str
    images: int
    shards: int

    def paths(self, directory: Path) -> list[Path]:
        """Returns the files of the split."""
        return [directory / f"{self.name}-{i:05d}-of-{self.shards:05d}" for i in range(self.shards)]

    def shards_in(self, directory: Path) -> list[Path]:
        """Returns the existing shards of a split of this name, of any number, sorted."""
        return sorted(directory.glob(f"{self.name}-?????-of-?????"))


def say_written(path: Path, images: int) -> None:
    """Prints a shard that is complete."""
    say(f"{path}: {images} images, {path.stat().st_size / 1e6:.1f} MB")


def split(name: str, images: int, images_per_shard: int) -> Split:
    """Divides images evenly among the fewest shards that hold at most `images_per_shard` each."""
    return Split(name=name, images=images, shards=-(-images // images_per_shard))


def smaller(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Returns an image whose shorter side has at most so many pixels; None keeps the size."""
    from PIL import Image

    if shorter_side is None or min(image.size) <= shorter_side:
        return image
    scale = shorter_side / min(image.size)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def photo_example(photo: Original, size: tuple[int, int], layout: Layout) -> bytes:
    """Returns a photo as a serialised tf.train.Example: in layout INCEPTION a JPEG, in DECODED pixels.

    The size is height and width in pixels.
    """

    def ints(values: list[int]) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def data(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    feature = {
        "image/height": ints([size[0]]),
        "image/width": ints([size[1]]),
        "image/colorspace": data(b"RGB"),
        "image/channels": ints([3]),
        "image/class/label": ints([photo.label]),
        "image/class/synset": data(_as_bytes(photo.class_name)),
        "image/class/text": data(_as_bytes(photo.text)),
        "image/object/bbox/label": ints([photo.label] * len(photo.boxes)),
        "image/format": data(b"RAW" if layout.sides else b"JPEG"),
        "image/filename": data(_as_bytes(photo.name)),
        layout.encoded: data(photo.encoded),
    }
    for index, corner in enumerate(BOX_CORNERS):
        values = tf.train.FloatList(value=[box[index] for box in photo.boxes])
        feature[corner] = tf.train.Feature(float_list=values)
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def _as_bytes(name: str) -> bytes:
    """Returns a name as the file system has it, which may be no UTF-8."""
    return name.encode("utf-8", "surrogateescape")
