"""How photos are prepared, against NumPy and against TensorFlow's own functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.data.options import RESIZE_METHODS, InputOptions
from benchmarks.data.pipeline import photo_decoding
from tests.support.images import take_batches
from tests.support.rotation import rotating

DISTORTED = InputOptions()
CENTRAL = InputOptions(crop="central")
SIZE = 24


def _photo(height: int, width: int) -> np.ndarray:
    """A smooth photo, in which every place has a colour of its own."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (255 * rows / height, 255 * columns / width, 128 + 100 * np.sin((rows + columns) / 40))
    return np.stack(channels, axis=-1).astype(np.uint8)


def _prepared(
    photo: np.ndarray, ways: Sequence[InputOptions], seeds: Iterable[int] = (1,), numbers: Iterable[int] = (0,)
) -> list[list[np.ndarray]]:
    """Returns for every seed, and for every number in the stream, a photo prepared in each of the ways."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        seed, number = tf.compat.v1.placeholder(tf.int64, [2]), tf.compat.v1.placeholder(tf.int64, [])
        encoded = tf.constant(tf.io.encode_jpeg(photo, quality=100, chroma_downsampling=False).eval())
        images = [
            photo_decoding.augment(
                photo_decoding.decode(encoded, tf.zeros([1, 0, 4]), seed, SIZE, options), seed, number, SIZE, options
            )
            for options in ways
        ]
        return [
            [image.astype(float) for image in session.run(images, {seed: [one, 8 * one], number: place})]
            for one in seeds
            for place in numbers
        ]


def _augmented(image: np.ndarray, options: InputOptions, seeds: Iterable[int]) -> list[np.ndarray]:
    """Returns an image that has been decoded, augmented with each of the seeds."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        seed = tf.compat.v1.placeholder(tf.int64, [2])
        found = photo_decoding.augment(tf.constant(image), seed, tf.constant(0, tf.int64), SIZE, options)
        return [session.run(found, {seed: [one, 0]}) for one in seeds]


@pytest.mark.parametrize(("height", "width"), [(96, 128), (128, 96), (60, 60), (28, 28)])
def test_the_central_crop_is_the_middle_seven_eighths(height: int, width: int) -> None:
    photo = _photo(height, width)
    side = round(min(height, width) / 1.145)
    top, left = (height - side) // 2, (width - side) // 2
    expected = tf.image.resize(photo[top : top + side, left : left + side], (SIZE, SIZE)).numpy()
    ((found,),) = _prepared(photo, [CENTRAL])
    assert np.abs(found - expected).max() < 8, "but for what JPEG loses"


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_resizing_is_tensorflows(method: str) -> None:
    image = _photo(50, 40)
    expected = np.clip(tf.image.resize(image, (SIZE, SIZE), method=method).numpy(), 0, 255)
    (found,) = _augmented(image, dataclasses.replace(CENTRAL, resize_method=method), [0])
    assert np.abs(found - expected).max() <= 0.5 + 1e-3, "rounded to the nearest"


def test_round_robin_takes_the_methods_in_turn() -> None:
    methods = [dataclasses.replace(CENTRAL, resize_method=method) for method in RESIZE_METHODS]
    in_turn = dataclasses.replace(CENTRAL, resize_method="round_robin")
    taken = _prepared(_photo(96, 128), [in_turn, *methods], numbers=range(2 * len(methods)))
    for number, (found, *expected) in enumerate(taken):
        np.testing.assert_array_equal(found, expected[number % len(methods)])


def test_random_crops_lie_within_the_bounds_of_the_paper() -> None:
    height, width = 300, 400
    photo = np.zeros((height, width, 3), np.uint8)
    photo[..., 0] = np.linspace(0, 255, height)[:, np.newaxis]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        seed = tf.compat.v1.placeholder(tf.int64, [2])
        encoded = tf.constant(tf.io.encode_jpeg(photo, quality=100, chroma_downsampling=False).eval())
        crop = photo_decoding.decode(encoded, tf.zeros([1, 0, 4]), seed, SIZE, DISTORTED)
        crops = [session.run(crop, {seed: [number, 0]}) for number in range(200)]
    sides = np.array([crop.shape[:2] for crop in crops], float)
    shares, ratios = sides.prod(axis=1) / (height * width), sides[:, 1] / sides[:, 0]
    assert 0.04 < shares.min() < 0.15 and 0.7 < shares.max() <= 1.0
    assert 0.72 < ratios.min() < 0.85 and 1.2 < ratios.max() < 1.37
    # The photo becomes brighter from its top to its bottom.
    room = height - sides[:, 0]
    tops = np.array([crop[0, :, 0].mean() for crop in crops]) / 255 * height
    assert (np.abs(tops - room / 2) <= room / 2 + 3).all(), "within the photo"
    assert (tops < room / 3).any() and (tops > 2 * room / 3).any()


@pytest.mark.row("G4.2")
def test_decoding_a_part_is_cutting_the_whole() -> None:
    whole = dataclasses.replace(DISTORTED, fuse_decode_and_crop=False)
    for part, cut in _prepared(_photo(96, 128), [DISTORTED, whole], seeds=range(8)):
        np.testing.assert_array_equal(part, cut)


@pytest.mark.parametrize("pixels", [40, 100, 230, 400])
def test_scaling_while_decoding_keeps_the_picture(pixels: int) -> None:
    scaled = dataclasses.replace(DISTORTED, decode_scaling=True)
    for usual, found in _prepared(_photo(pixels, pixels + 30), [DISTORTED, scaled], seeds=range(6)):
        assert np.corrcoef(usual.ravel(), found.ravel())[0, 1] > 0.97
        assert abs(usual.mean() - found.mean()) < 3


def test_every_other_photo_is_mirrored() -> None:
    image = _photo(SIZE, SIZE)
    found = _augmented(image, DISTORTED, range(100))
    mirrored = sum((one == image[:, ::-1]).all() for one in found)
    assert mirrored + sum((one == image).all() for one in found) == 100
    assert 30 < mirrored < 70
    assert all((one == image).all() for one in _augmented(image, CENTRAL, range(8))), "not where the middle is wanted"


@pytest.mark.parametrize("in_yiq", [True, False])
def test_distortions_move_colours_and_keep_the_range(in_yiq: bool) -> None:
    distorted = dataclasses.replace(DISTORTED, distortions=True, distort_color_in_yiq=in_yiq)
    pairs = _prepared(_photo(96, 128), [DISTORTED, distorted], seeds=range(12))
    assert all(np.abs(plain - found).mean() > 1 for plain, found in pairs)
    means = [found.mean() - plain.mean() for plain, found in pairs]
    assert min(means) < 0 < max(means), "brighter and darker"


# Rows are Y, I and Q of NTSC, in the common rounding to three digits.
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


def test_colours_are_turned_in_yiq() -> None:
    """Luminance is scaled alike in all pixels, and so is chroma, which is turned besides: to each a straight line."""
    image = np.random.default_rng(0).integers(110, 146, (SIZE, SIZE, 3), np.uint8)  # distorted, it stays within 0..255
    options = dataclasses.replace(CENTRAL, distortions=True, distort_color_in_yiq=True)
    luminance, *chroma = YIQ @ image.reshape(-1, 3).T
    turns, saturations = [], []
    for found in _augmented(image, options, range(20)):
        new_luminance, *new_chroma = YIQ @ found.reshape(-1, 3).T
        contrast = _slope(luminance, new_luminance)
        turned = _slope(chroma[0] + 1j * chroma[1], new_chroma[0] + 1j * new_chroma[1]) / contrast
        assert contrast.imag == 0 and 0.45 < contrast.real < 1.55
        turns.append(np.angle(turned) / (2 * np.pi))
        saturations.append(abs(turned))
    assert -0.21 < min(turns) < -0.1 and 0.1 < max(turns) < 0.21
    assert 0.45 < min(saturations) < 0.8 and 1.2 < max(saturations) < 1.55


def _slope(before: np.ndarray, after: np.ndarray) -> complex:
    """Returns the slope of the line on which all values lie, but for rounding to whole numbers."""
    columns = np.stack([before, np.ones_like(before)], axis=1)
    (slope, constant), *_ = np.linalg.lstsq(columns, after, rcond=None)
    assert np.abs(slope * before + constant - after).max() < 1.2
    return complex(slope)


@pytest.fixture(scope="module")
def as_usual(fake_imagenet: Path) -> list[bytes]:
    """Every photo of an epoch, prepared with the default options."""
    return sorted(image.tobytes() for images, _ in take_batches(fake_imagenet, 10) for image in images)


@rotating(
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
    first=2,
)
def test_how_files_are_read_does_not_change_what_becomes_of_a_photo(
    fake_imagenet: Path, as_usual: list[bytes], changes: dict
) -> None:
    other = take_batches(fake_imagenet, 10, options=dataclasses.replace(DISTORTED, **changes))
    assert sorted(image.tobytes() for images, _ in other for image in images) == as_usual


def test_one_record_may_be_used_again_and_again(fake_imagenet: Path) -> None:
    batches = take_batches(fake_imagenet, 5, options=dataclasses.replace(DISTORTED, cache="one_record"))
    assert len({int(label) for _, labels in batches for label in labels}) == 1
