"""The layouts of a tf.train.Example that holds a photo, and what is wrong with one.

Needs TensorFlow only for its protocol buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import tensorflow as tf
from google.protobuf.message import DecodeError

from benchmarks.data.sources.class_folders import some
from benchmarks.data.sources.jpeg_header import BadPhotoError
from models.model_spec import NUM_CHANNELS

BOX_CORNERS = tuple(f"image/object/bbox/{corner}" for corner in ("ymin", "xmin", "ymax", "xmax"))
# What to do with a record that cannot be used.
_ANEW = "make the file again"
Features = Mapping[str, tf.train.Feature]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The keys of a photo and of its label in a tf.train.Example. Labels below `first_label` are background.

    With `has_boxes`, a record may have boxes in `image/object/bbox/*`. With `sides`, the keys of height and width, the
    photo is not a JPEG but its pixels, uint8, row by row.
    """

    title: str
    encoded: str
    label: str
    first_label: int
    has_boxes: bool
    sides: tuple[str, ...] = ()


INCEPTION = Layout("Inception TFRecords", "image/encoded", "image/class/label", 1, True)
TFDS = Layout("TFDS TFRecords", "image", "label", 0, False)
DECODED = Layout("decoded TFRecords", "image/pixels", INCEPTION.label, 1, True, ("image/height", "image/width"))
LAYOUTS = (INCEPTION, TFDS, DECODED)


def features_of(payload: bytes) -> Features:
    """Returns the features of a serialised tf.train.Example.

    Raises:
        BadPhotoError: the bytes are no tf.train.Example.
    """
    try:
        return tf.train.Example.FromString(payload).features.feature
    except DecodeError as error:
        raise BadPhotoError("keys", "it is no tf.train.Example", _ANEW) from error


def encoded_of(feature: Features, layout: Layout) -> bytes:
    """Returns the JPEG, or the pixels, of a record that `read_example` has read."""
    return bytes(feature[layout.encoded].bytes_list.value[0])


def label_of(feature: Features, layout: Layout) -> int:
    """Returns the label of a record that `read_example` has read, as it is stored."""
    return feature[layout.label].int64_list.value[0]


def read_example(payload: bytes, layout: Layout, labels: range) -> Features:
    """Returns the features of a record, one of whose labels it has, with one photo. A JPEG is not looked at.

    Negative labels, as of images that have none, are no classes.

    Raises:
        BadPhotoError: its keys, its label, or its pixels are not sound.
    """
    feature = features_of(payload)
    for key, wanted in ((layout.encoded, "bytes_list"), (layout.label, "int64_list")):
        if key not in feature:
            raise BadPhotoError("keys", f"it has no '{key}', only {some(sorted(feature)) or 'nothing'}", _ANEW)
        if (kind := feature[key].WhichOneof("kind")) not in (None, wanted):
            raise BadPhotoError("keys", f"its '{key}' is {kind}, not {wanted}", _ANEW)
    label, encoded = feature[layout.label].int64_list.value, feature[layout.encoded].bytes_list.value
    lowest, highest = max(0, labels.start), labels.stop - 1
    if len(label) != 1 or not lowest <= label[0] <= highest:
        what = f"its label is {list(label[:5])}, not one number of {lowest} to {highest}"
        advice = "correct it"
        if len(label) == 1 and label[0] > highest:
            advice += ", or pass --num_classes"
        elif list(label) == [0]:  # no image that was looked at before had it
            advice += "; if labels count from 0, shuffle the images over the shards, since the first ones must show it"
        raise BadPhotoError("label", what, advice)
    if len(encoded) != 1:
        raise BadPhotoError("keys", f"it holds {len(encoded)} images instead of one", "make it again")
    if layout.sides:
        _check_pixels(feature, encoded[0])
    return feature


def check_boxes(feature: Features) -> None:
    """Checks the boxes of a record, by which only its random crop fails.

    Raises:
        BadPhotoError: they are not sound.
    """
    corners = [feature[key] if key in feature else tf.train.Feature() for key in BOX_CORNERS]
    shares = [corner.float_list.value for corner in corners]
    are_floats = {corner.WhichOneof("kind") for corner in corners} <= {None, "float_list"}
    in_range = all(0 <= share <= 1 for of_corner in shares for share in of_corner)
    if not (are_floats and in_range and len({*map(len, shares)}) == 1):
        what = "the corners of its boxes, 'image/object/bbox/*', are no shares of 0 to 1, float32"
        raise BadPhotoError("boxes", what, "correct them")


def _check_pixels(feature: Features, stored: bytes) -> None:
    sides = [list(feature[key].int64_list.value[:2]) if key in feature else [] for key in DECODED.sides]
    if any(len(side) != 1 for side in sides):
        what = f"'image/height' and 'image/width' hold {sides[0]} and {sides[1]}, not one number each"
        raise BadPhotoError("keys", what, "make it again")
    ((height,), (width,)) = sides
    size = NUM_CHANNELS * height * width
    if min(height, width) <= 0 or size != len(stored):
        kind = "zero_length" if not stored else "truncated" if len(stored) < size else "size"
        raise BadPhotoError(kind, f"its {len(stored)} bytes are not {height} rows of {width} pixels", _ANEW)
