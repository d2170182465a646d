"""What is wrong with a record of a data set. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.errors import DataError


@dataclasses.dataclass(frozen=True)
class Defect:
    """A record that cannot be used.

    Attributes:
        path: the file.
        number: the record's number in it, from 0.
        offset: the byte where it starts.
        kind: one word: crc, truncated, keys, label, not_jpeg, png, size, pixels ...
        reason: what is wrong, and what to do.
    """

    path: Path
    number: int
    offset: int
    kind: str
    reason: str

    def __str__(self) -> str:
        """Returns a sentence."""
        return f"{self.path}: record {self.number} at byte {self.offset}: {self.reason}."

    def error(self) -> DataError:
        """Returns an error that says all of it."""
        return DataError(str(self))
