"""Results that take long to measure, saved as JSON in the user's cache directory. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from benchmarks.console import warn, warn_once
from results import store
from results.loading import read_small
from results.record import strict

T = TypeVar("T")


class _Content(msgspec.Struct):
    """The content of a file."""

    format_version: Literal[1]
    entries: dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class CacheFile:
    """One file of entries by key. A damaged or foreign file is ignored with a warning, and replaced at the next entry.

    Attributes:
        name: of the file, below `$XDG_CACHE_HOME/cnn_bench` (default `~/.cache/cnn_bench`).
        holds: what its entries are, in words, such as `measured peaks`.
    """

    name: str
    holds: str

    def path(self) -> Path:
        """Returns where the file is."""
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if caches.startswith("~"):  # this user has no home
            caches = "/nonexistent/.cache"
        return Path(caches) / "cnn_bench" / self.name

    def saved(self, key: str, of: type[T]) -> T | None:
        """Returns an entry, whose fields are those of a type; None if it is missing or damaged."""
        entry = self._entries().get(key)
        try:
            return None if entry is None else msgspec.convert(entry, of)
        except msgspec.ValidationError as error:
            self._ignore(error)
            return None

    def put(self, key: str, entry: Mapping[str, Any] | None) -> None:
        """Replaces an entry, or removes it (None); warns if that cannot be saved.

        The file is replaced as a whole, with what other processes have added meanwhile.
        """
        target = self.path()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with store.locked(target.with_suffix(".lock")):  # another process may read, add and write at the same time
                entries = self._entries()
                entries.pop(key, None)
                if entry is not None:
                    entries[key] = dict(entry)
                content = {"format_version": 1, "entries": entries}
                store.replace(target, json.dumps(strict(content), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            warn(f"{self.holds.capitalize()} cannot be saved in {target} ({error}): they will be made again.")

    def _ignore(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        warn_once(
            f"The {self.holds} in {self.path()} cannot be read ({problem}) and are ignored; they will be replaced."
        )

    def _entries(self) -> dict[str, dict[str, Any]]:
        try:
            return msgspec.json.decode(read_small(self.path()), type=_Content).entries
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeError, msgspec.MsgspecError, RecursionError) as error:
            self._ignore(error)
            return {}
