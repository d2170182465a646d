"""The data sets. Imports without TensorFlow."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data.sources.storage import Address, path_of
from benchmarks.errors import DataError, UsageError

SYNTHETIC, SYNTHETIC_HOST = "synthetic", "synthetic_host"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """The published facts about a data set; the title is for reports.

    Classes do not count a background. Mean and deviation are of each channel of the training images, in 0..255. The
    side is that of square images which all have one size, in pixels; None: photos.
    """

    title: str
    train_images: int
    classes: int
    mean: tuple[float, ...]
    stddev: tuple[float, ...]
    side: int | None = None


# By their values of `--data_name`.
DATA_SETS = {
    "imagenet": DataSet(
        title="ImageNet",
        train_images=1_281_167,
        classes=1000,
        # torchvision's transforms give the same in 0..1.
        mean=(123.675, 116.28, 103.53),
        stddev=(58.395, 57.12, 57.375),
    ),
    "cifar10": DataSet(
        title="CIFAR-10",
        train_images=50_000,
        classes=10,
        # Usually given as 0.4914, 0.4822, 0.4465 and 0.2470, 0.2435, 0.2616.
        mean=(125.31, 122.95, 113.87),
        stddev=(62.99, 62.09, 66.70),
        side=32,
    ),
    # Usually given as 0.1307 and 0.3081.
    "mnist": DataSet(title="MNIST", train_images=60_000, classes=10, mean=(33.32,), stddev=(78.57,), side=28),
}
SMALL_IMAGES = tuple(name for name, data_set in DATA_SETS.items() if data_set.side)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredImages(abc.ABC):
    """A split of a data set that was found in a directory; a run reads `files`, none if all images are in memory."""

    directory: str
    split: str
    files: Sequence[Path] = ()

    @property
    def count(self) -> int:
        """The number of images: of files, unless one holds several."""
        return len(self.files)

    @abc.abstractmethod
    def identify(self) -> str:
        """Returns what distinguishes this data set: its format, its size, and a checksum."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a description of one line for the user."""


def data_set_of(name: str) -> DataSet:
    """Returns the facts of a model's data set; if it fits none, those of random images, as many as ImageNet's."""
    random = DataSet(title="Random images", train_images=1_281_167, classes=1000, mean=(127.5,), stddev=(73.9,))
    return DATA_SETS.get(name, random)


@contextlib.contextmanager
def reading(path: Path | None = None) -> Iterator[None]:
    """Raises DataError with the path if a file or directory cannot be read, or goes away; None: the error has it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path or error.filename} cannot be read: {error.strerror}.") from error


def only_one(named: Sequence[Path], content: str) -> Path | None:
    """Returns the folder of a list, if it has any; on this host, one may be a link to another.

    Raises:
        DataError: there are several, all with the same kind of content.
    """
    folders = {folder if isinstance(folder, Address) else folder.resolve(): folder for folder in named}
    if len(folders) > 1:
        raise DataError(f"{' and '.join(map(str, folders.values()))} both hold {content}: keep one, or name it.")
    return next(iter(folders.values()), None)


@reading()
def existing_directory(name: str, directory: str) -> Path:
    """Returns the directory (`--data_dir`) of a data set (a key of `DATA_SETS`); an address is not looked at.

    Raises:
        DataError: it is no directory, is empty, or cannot be read.
        UsageError: it is an address, and the data set has no TFRecords.
    """
    path = path_of(directory)
    if isinstance(path, Address):
        if name == "imagenet":
            return path
        raise UsageError(
            f"--data_dir={directory}: of an address, only TFRecords are read, and {name} has none. Copy the files, or "
            "mount the storage and name the directory."
        )
    if path.is_dir():
        if any(entry.name[0] != "." for entry in path.iterdir()):
            return path
        problem = "is empty"
    else:
        problem = "is a file" if path.exists() else "does not exist"
    content = "train-00000-of-... in it" if name == "imagenet" else "the data set"
    raise DataError(
        f"--data_dir={directory} {problem}: name the directory with {content}, or make one with "
        f"'run_bench.py data make_{name} DIR'."
    )
