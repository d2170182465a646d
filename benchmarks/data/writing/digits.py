"""Real handwritten digits as a small MNIST: the 1,797 of scikit-learn, from UCI's test set. Needs no TensorFlow.

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998: by 13
writers, 8x8 pixels of 17 grey values.
"""

from __future__ import annotations

import numpy as np

from benchmarks.errors import UsageError

_WHITE = 16  # the largest of their grey values
_SIDE = 28
_SEED = 1797


def load() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns images [images, 28, 28] and labels, both uint8, of `train` and `validation`.

    An image is enlarged to 28x28 pixels, bilinearly between the centres of its pixels. Every fifth digit of each class
    is for validation, after a shuffle that is the same everywhere.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise UsageError(
            "data make-digits takes the digits from scikit-learn, which is not installed: "
            "python -m pip install 'cnn-train-bench[digits]', or scikit-learn alone."
        ) from error
    small, labels = datasets.load_digits(return_X_y=True)
    images = enlarged(small.reshape(-1, 8, 8) * (255.0 / _WHITE), _SIDE)
    order = np.random.default_rng(_SEED).permutation(len(labels))
    place = np.zeros(len(labels), int)  # of a digit among those of its class
    for label in range(10):
        of_class = order[labels[order] == label]
        place[of_class] = np.arange(len(of_class))
    parts = {"train": order[place[order] % 5 != 0], "validation": order[place[order] % 5 == 0]}
    return {split: (images[chosen], labels[chosen].astype(np.uint8)) for split, chosen in parts.items()}


def enlarged(images: np.ndarray, side: int) -> np.ndarray:
    """Enlarges square images, [images, side, side] in 0..255, bilinearly; returns uint8."""
    old = images.shape[-1]
    centres = np.clip((np.arange(side) + 0.5) * old / side - 0.5, 0, old - 1)
    left = np.minimum(centres.astype(int), old - 2)
    weights = np.zeros((side, old))
    weights[np.arange(side), left], weights[np.arange(side), left + 1] = 1 - (centres - left), centres - left
    return np.rint(weights @ images @ weights.T).astype(np.uint8)
