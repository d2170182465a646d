"""How photos are prepared, against NumPy and against TensorFlow's own functions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.datasets import preparing
from benchmarks.datasets.options import RESIZE_METHODS, InputOptions
from tests.support.images import take_batches

CENTRAL = InputOptions(crop="central")
SIZE = 24


def _run(make: Any) -> Any:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(make())


def _photo(height: int, width: int) -> np.ndarray:
    """A smooth photo, in which every place has a colour of its own."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (255 * rows / height, 255 * columns / width, 128 + 100 * np.sin((rows + columns) / 40))
    return np.stack(channels, axis=-1).astype(np.uint8)


def _prepared(photo: np.ndarray, options: InputOptions, seed: int = 1, number: int = 0) -> np.ndarray:
    def make() -> tf.Tensor:
        encoded = tf.io.encode_jpeg(photo, quality=100, chroma_downsampling=False)
        seeds = tf.constant([seed, 8 * seed], tf.int64)
        image = preparing.decode(encoded, tf.zeros([1, 0, 4]), seeds, SIZE, options)
        return preparing.augment(image, seeds, tf.constant(number, tf.int64), SIZE, options)

    return _run(make)


@pytest.mark.parametrize(("height", "width"), [(96, 128), (128, 96), (60, 60), (28, 28)])
def test_the_central_crop_is_the_middle_seven_eighths(height: int, width: int) -> None:
    photo = _photo(height, width)
    side = round(min(height, width) / 1.145)
    top, left = (height - side) // 2, (width - side) // 2
    expected = tf.image.resize(photo[top : top + side, left : left + side], (SIZE, SIZE)).numpy()
    found = _prepared(photo, CENTRAL)
    assert np.abs(found.astype(float) - expected).max() < 8, "but for what JPEG loses"


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_resizing_is_tensorflows(method: str) -> None:
    image = _photo(50, 40)
    expected = np.clip(tf.image.resize(image, (SIZE, SIZE), method=method).numpy(), 0, 255)
    options = dataclasses.replace(CENTRAL, resize_method=method)
    found = _run(
        lambda: preparing.augment(tf.constant(image), tf.zeros([2], tf.int64), tf.constant(0, tf.int64), SIZE, options)
    )
    assert np.abs(found - expected).max() <= 0.5 + 1e-3, "rounded to the nearest"


def test_round_robin_takes_the_methods_in_turn() -> None:
    photo = _photo(96, 128)
    in_turn = dataclasses.replace(CENTRAL, resize_method="round_robin")
    for number in range(2 * len(RESIZE_METHODS)):
        method = RESIZE_METHODS[number % len(RESIZE_METHODS)]
        expected = _prepared(photo, dataclasses.replace(CENTRAL, resize_method=method))
        np.testing.assert_array_equal(_prepared(photo, in_turn, number=number), expected)


def test_random_crops_lie_within_the_bounds_of_the_paper() -> None:
    found = _windows(200)
    shares = found[:, 2] * found[:, 3] / (300 * 400)
    ratios = found[:, 3] / found[:, 2]
    assert shares.min() > 0.04 and shares.max() <= 1.0 and shares.std() > 0.1
    assert ratios.min() > 0.72 and ratios.max() < 1.37
    assert (found[:, 0] + found[:, 2] <= 300).all() and (found[:, 1] + found[:, 3] <= 400).all()


def _windows(count: int) -> np.ndarray:
    def make() -> tf.Tensor:
        shape, boxes = tf.constant([300, 400, 3]), tf.zeros([1, 0, 4])
        return tf.stack([preparing._random_window(shape, boxes, tf.constant([i, 0], tf.int64)) for i in range(count)])

    return _run(make).astype(float)


def test_decoding_a_part_is_cutting_the_whole() -> None:
    photo = _photo(96, 128)
    whole = dataclasses.replace(InputOptions(), fuse_decode_and_crop=False)
    for seed in range(8):
        np.testing.assert_array_equal(_prepared(photo, InputOptions(), seed), _prepared(photo, whole, seed))


@pytest.mark.parametrize("pixels", [40, 100, 230, 400])
def test_scaling_while_decoding_keeps_the_picture(pixels: int) -> None:
    photo = _photo(pixels, pixels + 30)
    scaled = dataclasses.replace(InputOptions(), decode_scaling=True)
    for seed in range(6):
        usual, found = _prepared(photo, InputOptions(), seed).astype(float), _prepared(photo, scaled, seed)
        assert np.corrcoef(usual.ravel(), found.ravel())[0, 1] > 0.97
        assert abs(usual.mean() - found.mean()) < 3


def test_every_other_photo_is_mirrored() -> None:
    image = _photo(SIZE, SIZE)

    def make() -> tf.Tensor:
        seeds = [tf.constant([seed, 0], tf.int64) for seed in range(100)]
        return tf.stack([preparing._flip(tf.constant(image), seed) for seed in seeds])

    found = _run(make)
    mirrored = sum((one == image[:, ::-1]).all() for one in found)
    assert mirrored + sum((one == image).all() for one in found) == 100
    assert 30 < mirrored < 70


@pytest.mark.parametrize("in_yiq", [True, False])
def test_distortions_move_colours_and_keep_the_range(in_yiq: bool) -> None:
    photo = _photo(96, 128)
    distorted = dataclasses.replace(InputOptions(), distortions=True, distort_color_in_yiq=in_yiq)
    means = []
    for seed in range(12):
        plain, found = (_prepared(photo, options, seed).astype(float) for options in (InputOptions(), distorted))
        assert np.abs(plain - found).mean() > 1
        means.append(found.mean() - plain.mean())
    assert min(means) < 0 < max(means), "brighter and darker"


def test_turning_in_yiq_keeps_grey_and_luminance() -> None:
    pixels = np.random.default_rng(0).uniform(size=(5, 7, 3)).astype(np.float32)
    pixels[0] = pixels[0, :, :1]  # grey
    turned = _run(lambda: preparing._turn_in_yiq(tf.constant(pixels), tf.constant(1.3), tf.constant(0.15)))
    luminance = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(turned @ luminance, pixels @ luminance, atol=2e-3)
    np.testing.assert_allclose(turned[0], pixels[0], atol=5e-3)
    back = _run(lambda: preparing._turn_in_yiq(tf.constant(turned), tf.constant(1 / 1.3), tf.constant(-0.15)))
    np.testing.assert_allclose(back, pixels, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache": "records"},
        {"shuffle_records": 0},
        {"cycle_length": 1},
        {"parallel_calls": 1},
        {"parallel_calls": -1},
        {"sloppy": True},
        {"prefetch_batches": 0},
    ],
)
def test_how_files_are_read_does_not_change_what_becomes_of_a_photo(fake_imagenet: Path, changes: dict) -> None:
    usual = take_batches(fake_imagenet, 10)
    other = take_batches(fake_imagenet, 10, options=dataclasses.replace(InputOptions(), **changes))
    assert sorted(image.tobytes() for images, _ in usual for image in images) == sorted(
        image.tobytes() for images, _ in other for image in images
    )


def test_one_record_may_be_used_again_and_again(fake_imagenet: Path) -> None:
    batches = take_batches(fake_imagenet, 5, options=dataclasses.replace(InputOptions(), cache="one_record"))
    assert len({int(label) for _, labels in batches for label in labels}) == 1
