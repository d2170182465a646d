"""Writes a fake ImageNet: the layout of the real one, and images without meaning that cost as much to decode.

That cost depends on the pixels (a median of 500x375), the bytes (about 110 KB) and the chroma subsampling (4:2:0).
Images are cut at random from a canvas whose amplitude falls with frequency as in photos (Field 1987, "Relations between
the statistics of natural images"), with random contrast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from benchmarks.console import progress
from benchmarks.data.sources import tfrecord
from benchmarks.data.sources.imagenet_files import BOX, DECODED, INCEPTION, Layout
from benchmarks.data.sources.safe_files import FileWork, written_whole
from models.model_spec import IMAGENET_CLASSES

if TYPE_CHECKING:
    from PIL import Image

_MEAN_WIDTH, _MEAN_HEIGHT = 500, 375
_JPEG_QUALITY = 95
_CANVAS_PIXELS = 1536
_CANVASES = 3
# Chosen by trial so that an image of the mean size takes 110 KB on average.
_MEAN_CONTRAST = 22.0
# Labels follow Zipf's law. Their frequencies can be learned within a few steps, and nothing else can. So the loss of
# even a short run falls if, and only if, the training works.
_LABEL_WEIGHTS = 1.0 / np.arange(1, IMAGENET_CLASSES + 1)
_LABEL_SHARES = _LABEL_WEIGHTS / _LABEL_WEIGHTS.sum()
_SHARE_WITH_BOXES = 1 / 3


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


def split(name: str, images: int, images_per_shard: int) -> Split:
    """Divides images evenly among the fewest shards that hold at most `images_per_shard` each."""
    return Split(name=name, images=images, shards=-(-images // images_per_shard))


def write(
    directory: Path,
    part: Split,
    *,
    seed: int,
    on_shard: Callable[[Path, int], None],
    shorter_side: int | None = None,
    decoded: bool = False,
    work: FileWork | None = None,
) -> None:
    """Writes a split; equal seeds write equal records. Existing shards of the split are removed first.

    Images whose shorter side is above `shorter_side` pixels are made smaller. With `decoded`, pixels are stored, not
    JPEGs. Each file appears only when it is complete. `on_shard` is called with the file and its number of images.
    """
    work = work or FileWork()
    directory.mkdir(parents=True, exist_ok=True)
    for old in part.shards_in(directory):
        old.unlink()
    canvases = [_canvas(np.random.default_rng((seed, number))) for number in range(_CANVASES)]

    def write_shard(share: tuple[Path, np.ndarray]) -> tuple[Path, int]:
        path, numbers = share
        with written_whole(path) as file:
            for number in numbers:
                work.go_on(path)
                generator = np.random.default_rng((seed, len(part.name), int(number)))
                photo = _photo(canvases, generator)
                tfrecord.write(file, _record(photo, part.name, int(number), generator, shorter_side, decoded))
                progress.advance()
        return path, len(numbers)

    shares = np.array_split(np.arange(part.images), part.shards)
    with (
        progress.counted(f"Writing {part.name} images to {directory}", part.images),
        work.on_all_cores(write_shard, zip(part.paths(directory), shares, strict=True)) as written,
    ):
        for path, count in written:
            on_shard(path, count)


def _canvas(generator: np.random.Generator) -> np.ndarray:
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
    mixed = [luminance + 0.3 * colour[0], luminance - 0.15 * (colour[0] + colour[1]), luminance + 0.3 * colour[1]]
    return np.stack(mixed, axis=-1).astype(np.float32)


def smaller(image: Image.Image, shorter_side: int | None) -> Image.Image:
    """Returns an image whose shorter side has at most so many pixels; None keeps the size."""
    from PIL import Image

    if shorter_side is None or min(image.size) <= shorter_side:
        return image
    scale = shorter_side / min(image.size)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def _photo(canvases: list[np.ndarray], generator: np.random.Generator) -> tuple[int, np.ndarray]:
    """Returns a label, and pixels as uint8, [height, width, 3]."""
    label = 1 + int(generator.choice(IMAGENET_CLASSES, p=_LABEL_SHARES))
    # Mostly 500x375, some smaller, as many larger.
    scale = float(generator.choice([0.6, 1.0, 1.4], p=[0.1, 0.8, 0.1]))
    height, width = round(_MEAN_HEIGHT * scale), round(_MEAN_WIDTH * scale)
    canvas = canvases[generator.integers(len(canvases))]
    top, left = (int(generator.integers(_CANVAS_PIXELS - extent)) for extent in (height, width))
    contrast = _MEAN_CONTRAST * float(generator.lognormal(sigma=0.35))
    brightness = generator.uniform(90, 160)
    pixels = canvas[top : top + height, left : left + width] * contrast + brightness
    return label, np.clip(pixels, 0, 255).astype(np.uint8)


def _record(
    photo: tuple[int, np.ndarray],
    split_name: str,
    number: int,
    generator: np.random.Generator,
    shorter_side: int | None,
    decoded: bool,
) -> bytes:
    label, pixels = photo
    boxes = []
    if generator.random() < _SHARE_WITH_BOXES:
        for _ in range(int(generator.integers(1, 4))):
            ymin, xmin = generator.uniform(0.0, 0.6, size=2)
            ymax, xmax = ymin + generator.uniform(0.2, 0.4), xmin + generator.uniform(0.2, 0.4)
            boxes.append((float(ymin), float(xmin), float(ymax), float(xmax)))
    if shorter_side is not None:
        from PIL import Image

        pixels = np.asarray(smaller(Image.fromarray(pixels), shorter_side))
    synset = f"n{label:08d}"
    return photo_example(
        pixels.tobytes() if decoded else bytes(tf.io.encode_jpeg(pixels, quality=_JPEG_QUALITY).numpy()),
        pixels.shape[:2],
        label,
        synset,
        f"{split_name}_{synset}_{number}.JPEG",
        text=f"fake class {label}",
        boxes=boxes,
        layout=DECODED if decoded else INCEPTION,
    )


def photo_example(
    image: bytes,
    size: tuple[int, int],
    label: int,
    synset: str,
    name: str,
    *,
    text: str = "",
    boxes: Sequence[tuple[float, float, float, float]] = (),
    layout: Layout = INCEPTION,
) -> bytes:
    """Returns a photo as a serialised tf.train.Example in a layout: INCEPTION for a JPEG, DECODED for pixels.

    The size is height and width in pixels, the label counts from 1, the synset is the class's name in WordNet or of its
    folder, the text is the class in words, and boxes are ymin, xmin, ymax, xmax as shares of height and width.
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
        "image/class/label": ints([label]),
        "image/class/synset": data(synset.encode()),
        "image/class/text": data(text.encode()),
        BOX + "label": ints([label] * len(boxes)),
        "image/format": data(b"RAW" if layout.sides else b"JPEG"),
        "image/filename": data(name.encode()),
        layout.encoded: data(image),
    }
    for index, corner in enumerate(("ymin", "xmin", "ymax", "xmax")):
        values = tf.train.FloatList(value=[box[index] for box in boxes])
        feature[BOX + corner] = tf.train.Feature(float_list=values)
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
