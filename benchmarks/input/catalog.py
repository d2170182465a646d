"""The data sets and the facts about them. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.errors import DataError

SYNTHETIC, SYNTHETIC_HOST = "synthetic", "synthetic_host"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known of a data set before it is looked at.

    Attributes:
        name: what the command line calls it.
        title: what people call it.
        train_images: how many images an epoch of the real one has.
        classes: how many there are, without a background class.
        mean: of each channel, in 0..255.
        stddev: likewise.
    """

    name: str
    title: str
    train_images: int
    classes: int
    mean: tuple[float, ...]
    stddev: tuple[float, ...]


DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet(
            name="imagenet",
            title="ImageNet",
            train_images=1_281_167,
            classes=1000,
            # torchvision's transforms give the same in 0..1.
            mean=(123.675, 116.28, 103.53),
            stddev=(58.395, 57.12, 57.375),
        ),
        DataSet(
            name="cifar10",
            title="CIFAR-10",
            train_images=50_000,
            classes=10,
            # Of the training images; widely given as 0.4914, 0.4822, 0.4465 and 0.2470, 0.2435, 0.2616.
            mean=(125.31, 122.95, 113.87),
            stddev=(62.99, 62.09, 66.70),
        ),
        DataSet(
            name="mnist",
            title="MNIST",
            train_images=60_000,
            classes=10,
            # Of the training images; widely given as 0.1307 and 0.3081.
            mean=(33.32,),
            stddev=(78.57,),
        ),
    )
}


def existing_directory(name: str, directory: str) -> Path:
    """Returns the directory of a data set.

    Args:
        name: of `catalog.DATA_SETS`.
        directory: as the user says it.

    Raises:
        DataError: it is not there, or nobody may know.
    """
    path = Path(directory)
    try:
        if path.is_dir():
            return path
        what = "is a file" if path.exists() else "does not exist"
    except OSError as error:
        raise DataError(f"--data_dir={directory} cannot be read: {error.strerror}.") from error
    holding = "train-00000-of-... in it" if name == "imagenet" else "the data set"
    raise DataError(
        f"--data_dir={directory} {what}: name the directory with {holding}, or make one with "
        f"'run_bench.py data make-{name} DIR'."
    )


KINDS = ("crc", "truncated", "not_jpeg", "zero_length", "png", "cmyk", "bad_label", "cut_file")
KINDS_FOR_PIXELS = ("cut_file", "bad_label")
