"""Writes files of small images: fake MNIST and CIFAR-10 whose classes a linear model can separate, and real digits.

The digits are the 1,797 of scikit-learn: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository, 1998, its test set, by 13 writers, 8x8 pixels of 17 grey values. Needs no TensorFlow.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np

from benchmarks.errors import UsageError
from results import store

_CLASSES = 10
# The pattern of a class against the noise: enough to learn from some hundred images, not from ten.
_SIGNAL, _NOISE = 60.0, 40.0
_CIFAR_BATCHES = 5
_WHITE = 16  # the largest grey value of the real digits
_DIGITS_SEED = 1797


def draw(name: str, images: int, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of a data set, uint8, and labels, uint8. The classes are the same for every split of a seed.

    The images of `mnist` are [images, 28, 28], those of `cifar10` [images, 3, 32, 32].
    """
    shape = {"mnist": (28, 28), "cifar10": (3, 32, 32)}[name]
    # Training crops and flips colour images, so their patterns are broad stripes, each of one colour.
    stripes = (_CLASSES, 3, 4, 1) if len(shape) == 3 else (_CLASSES, *shape)
    patterns = np.random.default_rng(seed).choice([-1.0, 1.0], size=stripes)
    if len(shape) == 3:
        patterns = np.broadcast_to(patterns.repeat(shape[1] // 4, axis=2), (_CLASSES, *shape))
    generator = np.random.default_rng((seed, len(split)))
    labels = generator.integers(0, _CLASSES, images).astype(np.uint8)
    noise = generator.normal(size=(images, *shape))
    pixels = 128 + _SIGNAL * patterns[labels] + _NOISE * noise
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def write_idx(directory: Path, pixels: np.ndarray, labels: np.ndarray, *, split: str) -> list[Path]:
    """Writes images [images, height, width] and labels, both uint8, as MNIST's two files of a split; returns these."""
    stem = {"train": "train", "validation": "t10k"}[split]
    contents = {
        f"{stem}-images-idx3-ubyte": struct.pack(">4B3I", 0, 0, 8, 3, *pixels.shape) + pixels.tobytes(),
        f"{stem}-labels-idx1-ubyte": struct.pack(">4BI", 0, 0, 8, 1, len(labels)) + labels.tobytes(),
    }
    return _write(directory, contents)


def write_cifar10(directory: Path, pixels: np.ndarray, labels: np.ndarray, *, split: str) -> list[Path]:
    """Writes the binary files of a split, five for training and one for validation, and returns them."""
    names = [f"data_batch_{n}" for n in range(1, _CIFAR_BATCHES + 1)] if split == "train" else ["test_batch"]
    contents = {}
    for name, share in zip(names, np.array_split(np.arange(len(labels)), len(names)), strict=True):
        flat, its_labels = pixels[share].reshape(len(share), 3 * 32 * 32), labels[share]
        contents[f"{name}.bin"] = np.concatenate([its_labels[:, np.newaxis], flat], axis=1).tobytes()
    return _write(directory, contents)


def _write(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    """Writes complete files, and removes the same files in other forms, which would be read first."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in contents:
        stem = name.split(".")[0]
        for ending in ("", ".bin", ".gz"):
            (directory / f"{stem}{ending}").unlink(missing_ok=True)
    for name, data in contents.items():
        store.replace(directory / name, data)
    return [directory / name for name in contents]


def load_digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns images [images, 28, 28] and labels, both uint8, of `train` and `validation`.

    An image is enlarged to 28x28 pixels. Every fifth digit of each class
    is for validation, after a shuffle that is the same everywhere.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from scipy import ndimage
        from sklearn import datasets
    except ImportError as error:
        raise UsageError(
            "data make_digits takes the digits from scikit-learn, which is not installed: "
            f"run {sys.executable} -m pip install scikit-learn."
        ) from error
    small, labels = datasets.load_digits(return_X_y=True)
    # Bilinearly between the centres of pixels.
    large = ndimage.zoom(small.reshape(-1, 8, 8), (1, 3.5, 3.5), order=1, mode="nearest", grid_mode=True)
    images = np.rint(large * (255.0 / _WHITE)).astype(np.uint8)
    order = np.random.default_rng(_DIGITS_SEED).permutation(len(labels))
    place = np.zeros(len(labels), int)  # of a digit among those of its class
    for label in range(10):
        of_class = order[labels[order] == label]
        place[of_class] = np.arange(len(of_class))
    parts = {"train": order[place[order] % 5 != 0], "validation": order[place[order] % 5 == 0]}
    return {split: (images[chosen], labels[chosen].astype(np.uint8)) for split, chosen in parts.items()}
