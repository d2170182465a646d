"""Damages one record of a data set, so that it can be seen what is made of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.errors import UsageError
from benchmarks.input import imagenet, tfrecord
from benchmarks.input.imagenet import INCEPTION
from benchmarks.input.tfrecord import Defect

_BAD_LABEL = 4711


def corrupt(file: Path, kind: str) -> tuple[int, int]:
    """Damages the middle record of a file of TFRecords; `cut_file` cuts the file off within it.

    Args:
        file: is written again.
        kind: one of `corruption.KINDS`.

    Returns:
        Number and offset of the record.
    """
    records = list(tfrecord.records(file))
    chosen = records[len(records) // 2]
    if kind == "cut_file":
        with file.open("r+b") as opened:
            opened.truncate(chosen.offset + len(chosen.payload) // 2)
        return chosen.number, chosen.offset
    with file.open("wb") as opened:
        for record in records:
            payload = record.payload
            if record is chosen and kind != "crc":
                payload = _changed(payload, kind)
            tfrecord.write(opened, payload)
    if kind == "crc":
        with file.open("r+b") as opened:
            place = chosen.offset + len(chosen.payload) // 2
            opened.seek(place)
            byte = opened.read(1)[0]
            opened.seek(place)
            opened.write(bytes([byte ^ 0xFF]))
    return chosen.number, chosen.offset


def _changed(payload: bytes, kind: str) -> bytes:
    example = tf.train.Example.FromString(payload)
    feature = example.features.feature
    encoded = feature[INCEPTION.encoded].bytes_list
    if kind == "bad_label":
        feature[INCEPTION.label].int64_list.value[0] = _BAD_LABEL
    else:
        encoded.value[0] = damaged_image(imagenet.encoded_of(payload, INCEPTION), kind)
    return bytes(example.SerializeToString())


def damaged_image(encoded: bytes, kind: str) -> bytes:
    """Returns what a photo looks like with a kind of damage.

    Raises:
        UsageError: the damage is not one of images.
    """
    if kind == "truncated":
        return encoded[: len(encoded) // 2]
    if kind == "not_jpeg":
        return b"GIF89a" + encoded[6:]
    if kind == "zero_length":
        return b""
    pixels = tf.io.decode_jpeg(encoded, channels=3).numpy()
    if kind == "png":
        return bytes(tf.io.encode_png(pixels).numpy())
    if kind == "cmyk":
        from PIL import Image  # TensorFlow writes no CMYK

        buffer = io.BytesIO()
        Image.fromarray(np.asarray(pixels)).convert("CMYK").save(buffer, format="JPEG")
        return buffer.getvalue()
    raise UsageError(f"--corrupt={kind} is not about images.")


def described(file: Path, kind: str, where: tuple[int, int]) -> str:
    """Returns what was done, in a line."""
    return str(Defect(file, *where, kind, f"damaged ({kind})"))
