"""Writes a fake ImageNet: the layout of the real one, and images without meaning that cost as much to decode.

That cost depends on the pixels (a median of 500x375), the bytes (about 110 KB) and the chroma subsampling (4:2:0).
Images are cut at random from a canvas whose amplitude falls with frequency as in photos (Field 1987, "Relations between
the statistics of natural images"), with random contrast.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.console import progress
from benchmarks.data.sources import tfrecord
from benchmarks.data.sources.photo_layouts import DECODED, INCEPTION
from benchmarks.data.sources.safe_files import FileWork, written_whole
from benchmarks.data.writing.photo_records import Original, Split, photo_example, say_written, smaller
from models.model_spec import IMAGENET_CLASSES

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


def write(
    directory: Path,
    part: Split,
    *,
    seed: int,
    shorter_side: int | None = None,
    decoded: bool = False,
    work: FileWork | None = None,
) -> None:
    """Writes a split; equal seeds write equal records. Existing shards of the split are removed first.

    Images whose shorter side is above `shorter_side` pixels are made smaller. With `decoded`, pixels are stored, not
    JPEGs. Each file appears only when it is complete.
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
                label, pixels, boxes = _photo(canvases, generator)
                if shorter_side is not None:
                    from PIL import Image

                    pixels = np.asarray(smaller(Image.fromarray(pixels), shorter_side))
                synset = f"n{label:08d}"
                name, text = f"{part.name}_{synset}_{number}.JPEG", f"fake class {label}"
                stored = pixels.tobytes() if decoded else tf.io.encode_jpeg(pixels, quality=_JPEG_QUALITY).numpy()
                photo = Original(stored, label, synset, name, text, boxes)
                tfrecord.write(file, photo_example(photo, pixels.shape[:2], DECODED if decoded else INCEPTION))
                progress.advance()
        return path, len(numbers)

    shares = np.array_split(np.arange(part.images), part.shards)
    with (
        progress.counted(f"Writing {part.name} images to {directory}", part.images),
        work.on_all_cores(write_shard, zip(part.paths(directory), shares, strict=True)) as written,
    ):
        for path, count in written:
            say_written(path, count)


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


def _photo(
    canvases: list[np.ndarray], generator: np.random.Generator
) -> tuple[int, np.ndarray, list[tuple[float, float, float, float]]]:
    """Returns a label, pixels as uint8, [height, width, 3], and boxes as in `Original`."""
    label = 1 + int(generator.choice(IMAGENET_CLASSES, p=_LABEL_SHARES))
    # Mostly 500x375, some smaller, as many larger.
    scale = float(generator.choice([0.6, 1.0, 1.4], p=[0.1, 0.8, 0.1]))
    height, width = round(_MEAN_HEIGHT * scale), round(_MEAN_WIDTH * scale)
    canvas = canvases[generator.integers(len(canvases))]
    top, left = (int(generator.integers(_CANVAS_PIXELS - extent)) for extent in (height, width))
    contrast = _MEAN_CONTRAST * float(generator.lognormal(sigma=0.35))
    brightness = generator.uniform(90, 160)
    pixels = canvas[top : top + height, left : left + width] * contrast + brightness
    boxes = []
    if generator.random() < _SHARE_WITH_BOXES:
        for _ in range(int(generator.integers(1, 4))):
            ymin, xmin = generator.uniform(0.0, 0.6, size=2)
            ymax, xmax = ymin + generator.uniform(0.2, 0.4), xmin + generator.uniform(0.2, 0.4)
            boxes.append((float(ymin), float(xmin), float(ymax), float(xmax)))
    return label, np.clip(pixels, 0, 255).astype(np.uint8), boxes
