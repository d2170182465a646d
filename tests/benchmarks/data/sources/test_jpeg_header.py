"""What the header of a photo says, and how it may be wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.sources import jpeg_header


def _jpeg() -> bytes:
    return bytes(tf.io.encode_jpeg(np.zeros((30, 40, 3), np.uint8)).numpy())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[:10], "truncated"),
        (lambda data: data[:-2], "truncated"),
        (lambda data: b"\xff\xd8\x00\x00" + data, "not_jpeg"),
        (lambda data: data.replace(b"\xff\xc0", b"\xff\xda"), "not_jpeg"),
        (lambda data: data.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x0c"), "unusual"),
        (lambda data: data.replace(b"\xff\xc0", b"\xff\xc3"), "unusual"),
        (lambda data: b"", "zero_length"),
        (lambda data: b"BM" + data, "not_jpeg"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "lfs"),
    ],
)
def test_headers_that_are_not_right(change: Callable[[bytes], bytes], kind: str) -> None:
    with pytest.raises(jpeg_header.BadPhotoError) as caught:
        jpeg_header.read_jpeg_header(change(_jpeg()))
    assert caught.value.kind == kind


def test_a_png_that_is_cut_off_is_named() -> None:
    png = bytes(tf.io.encode_png(np.zeros((30, 40, 3), np.uint8)).numpy())
    jpeg_header.check_header(png + b"behind its end", png_too=True)
    for part in (png[:-8], png[:20], jpeg_header.PNG_SIGNATURE):
        with pytest.raises(jpeg_header.BadPhotoError) as caught:
            jpeg_header.check_header(part, png_too=True)
        assert caught.value.kind == "truncated"


def test_headers_say_the_size() -> None:
    assert jpeg_header.read_jpeg_header(_jpeg()) == jpeg_header.JpegHeader(30, 40, 3)
    assert jpeg_header.read_jpeg_header(_jpeg() + b"\0" * 16).components == 3, "something after the end is usual"


@pytest.mark.parametrize("photo", [jpeg_header.PNG_SIGNATURE, b"RIFF\x00\x00\x00\x00WEBP"])
def test_what_a_conversion_takes_is_not_only_to_be_replaced(photo: bytes) -> None:
    with pytest.raises(
        jpeg_header.BadPhotoError, match="; replace it, or convert all with 'run_bench.py data convert'"
    ):
        jpeg_header.check_header(photo)
