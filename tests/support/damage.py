"""Damages one record of a data set, or the file that holds it."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.data.sources import imagenet_files, photo_layouts, tfrecord
from benchmarks.data.sources.photo_layouts import Layout
from benchmarks.data.sources.tfrecord import Defect

KINDS = ("crc", "truncated", "not_jpeg", "zero_length", "png", "cmyk", "bad_label", "cut_file")
_BAD_LABEL = 4711


def corrupt_middle(directory: Path, kind: str) -> Defect:
    """Damages the middle record of the middle shard of training images."""
    shards = sorted(directory.glob("train-*"))
    return corrupt(shards[len(shards) // 2], kind)


def corrupt(file: Path, kind: str) -> Defect:
    """Damages the middle record of a TFRecord file by one of `KINDS`, and returns the defect."""
    records = list(tfrecord.walk(file))
    chosen = records[len(records) // 2]
    layout = imagenet_files.layout_of([file])
    middle = chosen.offset + len(chosen.payload) // 2
    if kind == "cut_file":
        os.truncate(file, middle)
    elif kind == "crc":
        data = bytearray(file.read_bytes())
        data[middle] ^= 0xFF
        file.write_bytes(data)
    else:
        with file.open("wb") as opened:
            for record in records:
                tfrecord.write(opened, _changed(record.payload, layout, kind) if record is chosen else record.payload)
    return Defect(file, chosen.number, chosen.offset, kind, f"damaged ({kind})")


def _changed(payload: bytes, layout: Layout, kind: str) -> bytes:
    example = tf.train.Example.FromString(payload)
    feature = example.features.feature
    if kind == "bad_label":
        feature[layout.label].int64_list.value[0] = _BAD_LABEL
    else:
        damaged = damaged_image(photo_layouts.encoded_of(feature, layout), kind)
        feature[layout.encoded].bytes_list.value[0] = damaged
    return bytes(example.SerializeToString())


def state_length(file: Path, length: int) -> None:
    """Replaces the length of a file's first record, with its right checksum."""
    stated = struct.pack("<Q", length)
    with file.open("r+b") as opened:
        opened.write(stated + struct.pack("<I", tfrecord._masked_crc(stated)))


def damaged_image(encoded: bytes, kind: str) -> bytes:
    """Returns a JPEG with a kind of damage; `truncated` and `zero_length` are for pixels, too."""
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
    raise AssertionError(f"{kind} is not about images")
