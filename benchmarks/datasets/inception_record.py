"""A photo as a record of the Inception layout, with the keys of Inception's build_imagenet_data script."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.datasets.photos import BOX


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
