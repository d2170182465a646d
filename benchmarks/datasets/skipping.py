"""Bad records that are left out and counted, where the user says so. Imports without TensorFlow.

TensorFlow's own reader gives up the rest of a file at the first bad checksum; this one goes on with the next record.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.datasets import tfrecord
from benchmarks.datasets.defects import Defect
from benchmarks.errors import DataError

# So many records in a row without one that can be used: the data set is not damaged but something else altogether.
_HOPELESS = 20_000


class Skipping:
    """Reads records in Python, and counts those that were left out: by the reader, or further on in the pipeline.

    Its methods are called by several threads.
    """

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._by_reader = 0
        self._handed_out = 0
        self._last_number = -1
        self._used = 0
        self._since_last_use = 0
        self.failure: DataError | None = None

    @property
    def skipped(self) -> int:
        """Returns how many records were left out of the batches that have been made."""
        with self._lock:
            return self._by_reader + self._last_number + 1 - self._used

    def read(self, file: np.int64) -> Iterator[tuple[int, bytes]]:
        """Yields number and payload of each good record of a file."""
        path = self._files[int(file)]
        try:
            for found in tfrecord.walk(path):
                with self._lock:
                    self._since_last_use += 1
                    self._by_reader += isinstance(found, Defect)
                if not isinstance(found, Defect):
                    yield found.number, found.payload
        except DataError as error:
            self.failure = error

    def goes_on(self) -> bool:
        """Returns whether another pass over the data makes sense. If not, `failure` says why."""
        with self._lock:
            if self.failure is None and self._since_last_use > _HOPELESS:
                self.failure = DataError(
                    f"--on_bad_record=skip: of {self._since_last_use} records in a row none could be used. "
                    "'run_bench.py data check DIR' says why."
                )
            return self.failure is None

    def note_batch(self, numbers: np.ndarray) -> np.int64:
        """Takes note of the records of a batch, by their numbers in the stream of what was read.

        Returns:
            How many they are (so that the call has a result that a graph can wait for).
        """
        with self._lock:
            self._last_number = max(self._last_number, int(numbers.max()))
            self._used += len(numbers)
            self._since_last_use = 0
        return np.int64(len(numbers))
