"""Rates of other loaders of photos, each as its documentation writes it: `python loaders.py NAME RECORDS`.

All do the same work: 64 JPEGs are decoded, cropped at random, resized to 224 x 224 and flipped at random, and make a
batch of bytes in the host's memory. Photos come in random order, without an end. All loaders read class folders, which
are made of the records once, beside them. The script runs in an environment of its own, so it imports nothing of this
suite.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

_SIZE, _BATCH = 224, 64
# Of the crop, as in "Going deeper with convolutions" (arXiv:1409.4842): its share of the photo, and width over height.
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_SHUFFLED, _ENDLESS = 1024, 10**7
_CORES = len(os.sched_getaffinity(0))


def folders(records: Path) -> Path:
    """Returns a folder with `train/CLASS/PHOTO`, the photos of the records; it is made unless it is there."""
    folder = records.with_name(f"{records.name}-files")
    if folder.exists():
        return folder
    import tensorflow as tf

    partial = folder.with_name(f"{folder.name}.partial")
    for number, line in enumerate(tf.data.TFRecordDataset([str(file) for file in sorted(records.glob("train-*"))])):
        features = tf.train.Example.FromString(line.numpy()).features.feature
        of_class = partial / "train" / f"{features['image/class/label'].int64_list.value[0]:04d}"
        of_class.mkdir(parents=True, exist_ok=True)
        (of_class / f"{number:06d}.jpg").write_bytes(features["image/encoded"].bytes_list.value[0])
    return partial.rename(folder)


def _window(encoded: Any) -> Any:
    """Returns the random crop of a JPEG for `tf.io.decode_and_crop_jpeg`: top, left, height, width."""
    import tensorflow as tf

    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        aspect_ratio_range=_RATIO,
        area_range=_AREA,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.stack([begin[0], begin[1], size[0], size[1]])


def _resized(image: Any) -> Any:
    import tensorflow as tf

    return tf.cast(tf.image.random_flip_left_right(tf.image.resize(image, [_SIZE, _SIZE])), tf.uint8)


def tf_data(folder: Path) -> Iterator[Any]:
    """Source: https://www.tensorflow.org/guide/data_performance, parallel `map`, `batch` and `prefetch`."""
    import tensorflow as tf

    def load(path: Any) -> Any:
        encoded = tf.io.read_file(path)
        return _resized(tf.io.decode_and_crop_jpeg(encoded, _window(encoded), channels=3))

    files = tf.data.Dataset.list_files(str(folder / "train/*/*")).cache().repeat().shuffle(_SHUFFLED)
    return iter(files.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(_BATCH).prefetch(tf.data.AUTOTUNE))


def tfds(folder: Path) -> Iterator[Any]:
    """Source: https://www.tensorflow.org/datasets/decode, a decoder of its own that crops while it decodes."""
    import tensorflow as tf
    import tensorflow_datasets

    @tensorflow_datasets.decode.make_decoder()
    def cropped(encoded: Any, feature: Any) -> Any:
        return tf.io.decode_and_crop_jpeg(encoded, _window(encoded), channels=feature.shape[-1])

    builder = tensorflow_datasets.folder_dataset.ImageFolder(str(folder))
    read = tensorflow_datasets.ReadConfig(interleave_cycle_length=_CORES)
    records = builder.as_dataset("train", decoders={"image": cropped()}, shuffle_files=True, read_config=read)
    images = records.repeat().map(lambda record: _resized(record["image"]), num_parallel_calls=tf.data.AUTOTUNE)
    return iter(images.batch(_BATCH).prefetch(tf.data.AUTOTUNE))


def torchvision(folder: Path) -> Iterator[Any]:
    """Source: https://github.com/pytorch/examples/tree/main/imagenet, with bytes instead of normalised floats."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    crop = v2.RandomResizedCrop(_SIZE, scale=_AREA, ratio=_RATIO)
    photos = datasets.ImageFolder(
        str(folder / "train"), v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])
    )
    order = torch.utils.data.RandomSampler(photos, replacement=True, num_samples=_ENDLESS)
    return iter(torch.utils.data.DataLoader(photos, _BATCH, sampler=order, num_workers=_CORES))


def spdl(folder: Path) -> Iterator[Any]:
    """Source: https://facebookresearch.github.io/spdl, threads that decode with FFmpeg, which crops and resizes."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    files = [str(path) for path in sorted(folder.glob("train/*/*"))]

    def load(path: str) -> Any:
        area, ratio = random.uniform(*_AREA), math.exp(random.uniform(*map(math.log, _RATIO)))
        width, height = (
            f"floor(min(i{side},sqrt(iw*ih*{share:.6f})))" for side, share in (("w", area * ratio), ("h", area / ratio))
        )
        place = f"x='(iw-ow)*{random.random():.6f}':y='(ih-oh)*{random.random():.6f}'"
        flip = ",hflip" if random.random() < 0.5 else ""
        words = f"crop=w='{width}':h='{height}':{place}:exact=1,scale={_SIZE}:{_SIZE}:flags=bilinear{flip},format=rgb24"
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=words)

    builder = PipelineBuilder().add_source(random.choice(files) for _ in itertools.count())
    builder = builder.pipe(load, concurrency=_CORES).aggregate(_BATCH).pipe(spdl.io.convert_frames).add_sink(2)
    pipeline = builder.build(num_threads=_CORES)
    with pipeline.auto_stop():
        yield from pipeline


LOADERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    "tf.data": tf_data,
    "tfds": tfds,
    "torchvision": torchvision,
    "spdl": spdl,
}


def rate(batches: Iterator[Any], *, warmup: int = 10, seconds: float = 20.0) -> float:
    """Returns the images per second of the batches after the first ones, taken for at least so long."""
    for _ in range(warmup):
        next(batches)
    begin, taken = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        next(batches)
        taken += 1
    return taken * _BATCH / (time.perf_counter() - begin)


def main() -> None:
    """Prints a rate as tf_cnn_benchmarks does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=LOADERS)
    parser.add_argument("records", type=Path, help="a folder of ImageNet as TFRecords")
    given = parser.parse_args()
    # In another process: TensorFlow, which reads the records, and PyTorch 2.14 crash together (SIGSEGV).
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        folder = other.submit(folders, given.records).result()
    print(f"total images/sec: {rate(LOADERS[given.name](folder)):.2f}", flush=True)
    os._exit(0)  # a loader may hold threads and processes


if __name__ == "__main__":
    main()
