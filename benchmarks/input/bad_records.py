"""Bad records that are left out and counted, where the user says so. Imports without TensorFlow.

TensorFlow's own reader gives up the rest of a file at the first bad checksum; this one goes on with the next record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.errors import DataError
from benchmarks.input import tfrecord
from benchmarks.input.tfrecord import Defect

# So many records in a row without one that can be used: the data set is not damaged but something else altogether.
_HOPELESS = 20_000


class Skipping:
    """Reads records in Python, and counts those that were left out of the batches that were made.

    Every record gets a number in the order of reading, also a bad one, which goes on as an empty record and is left
    out where it cannot be parsed. So the numbers that are missing in the batches are those of bad records, and nothing
    counts that was only read ahead. The methods are called by several threads.
    """

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._since_last_batch = 0
        self._last_number, self._used = -1, 0
        self.failure: DataError | None = None

    @property
    def skipped(self) -> int:
        """Returns how many records were left out of the batches that have been made."""
        with self._lock:
            return self._last_number + 1 - self._used

    def close(self) -> int:
        """Returns how many records were left out.

        Raises:
            DataError: a file could not be read at all, so what was trained on is not the data set.
        """
        if self.failure:
            raise self.failure
        return self.skipped

    def read(self, file: np.int64) -> Iterator[tuple[int, bytes]]:
        """Yields number and payload of each record of a file; the payload of a bad one is empty."""
        try:
            for found in tfrecord.walk(self._files[int(file)]):
                yield found.number, b"" if isinstance(found, Defect) else found.payload
        except DataError as error:
            self.failure = error

    def goes_on(self) -> bool:
        """Returns whether to take another record. If not, `failure` says why."""
        with self._lock:
            self._since_last_batch += 1
            if self.failure is None and self._since_last_batch > _HOPELESS:
                self.failure = DataError(
                    f"--on_bad_record=skip: of {self._since_last_batch} records in a row none could be used. "
                    "'run_bench.py data check DIR' says why."
                )
            return self.failure is None

    def note_batch(self, numbers: np.ndarray) -> np.int64:
        """Takes note of the records of a batch, by their numbers in the order of reading.

        Returns:
            How many they are (so that the call has a result that a graph can wait for).
        """
        with self._lock:
            self._last_number = max(self._last_number, int(numbers.max()))
            self._used += len(numbers)
            self._since_last_batch = 0
        return np.int64(len(numbers))
