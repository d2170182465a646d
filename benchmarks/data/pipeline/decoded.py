"""Photos that are stored as pixels: their size, their decoding and their crop. `data convert --decoded` writes them."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from benchmarks.data.options import InputOptions
from benchmarks.data.pipeline import preprocessing
from benchmarks.errors import UsageError
from models.model_spec import NUM_CHANNELS

HEIGHT, WIDTH = "image/height", "image/width"


def pixels(stored: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns a stored photo, [height, width, 3], uint8.

    Args:
        stored: the pixels as bytes, row by row, a scalar.
        height: scalar, int64, as width.
        width: what a record states; fails where it is not the size of `stored`, so it cannot take more memory.
    """
    # A side below 1 would be a wildcard of the reshape, or leave nothing to crop.
    has_pixels = tf.minimum(height, width) > 0
    with tf.control_dependencies([tf.raw_ops.Assert(condition=has_pixels, data=["no pixels", height, width])]):
        shape = tf.stack([height, width, NUM_CHANNELS])
    return tf.reshape(tf.io.decode_raw(stored, tf.uint8), shape)


def check(options: InputOptions) -> None:
    """Refuses what is done to JPEGs only, so that a record does not name an option without effect.

    Raises:
        UsageError: such an option is set.
    """
    for flag, is_set in (
        ("decode_scaling", options.decode_scaling),
        ("nofuse_decode_and_crop", not options.fuse_decode_and_crop),
    ):
        if is_set:
            raise UsageError(f"--{flag} is for JPEGs, and this data set holds pixels: drop it.")


def crop(image: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor, options: InputOptions) -> tf.Tensor:
    """Returns the part of a photo that `preprocessing.decode` would keep of one of this size."""
    # Taking the rows as a part of the string first, and decoding only them, is 0.02 ms of a core slower per photo.
    top, left, height, width = tf.unstack(preprocessing.window(tf.shape(image), boxes, seed, options))
    return tf.slice(image, [top, left, 0], [height, width, NUM_CHANNELS])


def problem(feature: Mapping[str, tf.train.Feature], stored: bytes) -> tuple[str, str] | None:
    """Returns the kind of defect of a record's size or pixels, and the reason; None for a sound record."""
    sides = [list(feature[key].int64_list.value[:2]) if key in feature else [] for key in (HEIGHT, WIDTH)]
    if any(len(side) != 1 for side in sides):
        return "keys", f"'{HEIGHT}' and '{WIDTH}' hold {sides[0]} and {sides[1]}, not one number each; make it again"
    ((height,), (width,)) = sides
    wanted = NUM_CHANNELS * height * width
    if min(height, width) > 0 and wanted == len(stored):
        return None
    kind = "zero_length" if not stored else "truncated" if len(stored) < wanted else "size"
    return kind, f"its {len(stored)} bytes are not {height} rows of {width} pixels; make the file again"
