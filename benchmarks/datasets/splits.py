"""How a data set is divided into splits and shards. Imports without TensorFlow."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Part of a data set: its name (`train`, `validation`) and how many images in how many files."""

    name: str
    images: int
    shards: int

    def paths(self, directory: Path) -> list[Path]:
        """Returns the files that hold it."""
        return [directory / f"{self.name}-{i:05d}-of-{self.shards:05d}" for i in range(self.shards)]


def split(name: str, images: int, images_per_shard: int) -> Split:
    """Divides images evenly among as few shards as hold at most `images_per_shard` each."""
    return Split(name=name, images=images, shards=-(-images // images_per_shard))


def refuse_to_overwrite(directory: Path, splits: list[Split]) -> None:
    """Checks that no shard of these splits, of any number, is in the directory.

    Raises:
        UsageError: there is one.
    """
    for part in splits:
        there = sorted(directory.glob(f"{part.name}-?????-of-?????")) if directory.is_dir() else []
        if there:
            raise UsageError(
                f"{directory} already holds {len(there)} {part.name} shards ({there[0].name}, ...): name another "
                "directory, or say --overwrite to replace them."
            )
