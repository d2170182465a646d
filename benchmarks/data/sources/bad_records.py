"""Skips and counts bad records, for --on_bad_record=skip. Imports without TensorFlow.

TensorFlow's own reader drops the rest of a file at the first bad checksum; this one continues with the next record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.data.sources import tfrecord
from benchmarks.data.sources.tfrecord import Defect
from benchmarks.errors import DataError

# After this many unusable records in a row, the data set is not damaged but of another kind.
_HOPELESS = 20_000


class Skipping:
    """Reads records in Python, and counts the bad ones that were left out of finished batches.

    Every record gets a number in the order of reading. A bad record continues as an empty one, and the pipeline drops
    it where it cannot be parsed. So the numbers that are missing in the batches are those of bad records; records that
    were only read ahead do not count. Several threads call the methods.
    """

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._since_last_batch = 0
        self._last_number, self._used = -1, 0
        self.failure: DataError | None = None

    def close(self) -> int:
        """Returns the number of records left out of the batches so far.

        Raises:
            DataError: a file could not be read, so the run trained on another data set.
        """
        if self.failure:
            raise self.failure
        with self._lock:
            return self._last_number + 1 - self._used

    def read(self, file: np.int64) -> Iterator[tuple[int, bytes]]:
        """Yields number and payload of each record of a file; the payload of a bad one is empty."""
        try:
            for found in tfrecord.walk(self._files[int(file)]):
                yield found.number, b"" if isinstance(found, Defect) else found.payload
        except DataError as error:
            self.failure = error

    def goes_on(self) -> bool:
        """Returns whether to take another record; if not, `failure` is set."""
        with self._lock:
            self._since_last_batch += 1
            if self.failure is None and self._since_last_batch > _HOPELESS:
                self.failure = DataError(
                    f"--on_bad_record=skip: of {self._since_last_batch} records in a row none could be used. "
                    "'run_bench.py data check DIR' lists the reasons."
                )
            return self.failure is None

    def note_batch(self, numbers: np.ndarray) -> np.int64:
        """Registers the records of a batch by their numbers in the order of reading; returns how many they are."""
        with self._lock:
            self._last_number = max(self._last_number, int(numbers.max()))
            self._used += len(numbers)
            self._since_last_batch = 0
        return np.int64(len(numbers))
