"""Which data set lies in a directory."""

from __future__ import annotations

from benchmarks.datasets import photos, pixels
from benchmarks.datasets.reading import Source


def find(name: str, directory: str, split: str) -> Source:
    """Finds a data set and checks that it is whole.

    Args:
        name: of `catalog.DATA_SETS`.
        directory: where to look.
        split: `train` or `validation`.

    Raises:
        DataError: it is not there, or something of it is missing.
    """
    return photos.find(directory, split) if name == "imagenet" else pixels.find(name, directory, split)
