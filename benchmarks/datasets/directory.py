"""The directory of a data set, before anybody looks into it. Imports without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from benchmarks.errors import DataError


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
