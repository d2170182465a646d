"""Small images from memory to batches: drawn in random order, and for training cut and flipped at random, as is usual.

Source: Lee et al., 'Deeply-supervised nets', arXiv:1409.5185, for CIFAR-10: four pixels of margin on each side, a
random crop of the old size, every other one mirrored. Digits are left as they are.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.datasets.options import InputOptions
from benchmarks.datasets.photo_pipeline import parallel_calls
from benchmarks.datasets.pixels import Pixels
from benchmarks.inputs import InputSpec

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
