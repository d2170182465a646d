"""Results that take long to measure, saved as JSON in the user's cache directory. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.console import warn
from results import store
from results.record import Identity, key_of
from results.version import SUITE_VERSION

_FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class CacheFile:
    """One file of entries by key. A damaged file is ignored with a warning, and replaced by the next entry.

    Attributes:
        name: of the file, below `$XDG_CACHE_HOME/cnn_bench` (default `~/.cache/cnn_bench`).
        holds: what its entries are, in words, such as `measured peaks`.
    """

    name: str
    holds: str

    def path(self, environ: Mapping[str, str] | None = None) -> Path:
        """Returns where the file is."""
        directory = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
        return Path(directory or os.path.expanduser("~/.cache")) / "cnn_bench" / self.name

    def find(self, key: str) -> dict[str, Any] | None:
        """Returns an entry, with its `time_utc`; None if it is missing."""
        return self._read().get(key)

    def keep(self, key: str, entry: Mapping[str, Any]) -> None:
        """Adds an entry, or warns that it cannot be saved. The file is replaced as a whole."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        target = self.path()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another process may read, add and write at the same time
                entries = {**self._read(), key: {**entry, "time_utc": now}}
                held = {"format_version": _FORMAT_VERSION, "entries": entries}
                store.replace(target, json.dumps(held, indent=1) + "\n")
        except OSError as error:
            warn(f"{self.holds.capitalize()} cannot be saved in {target} ({error}): they will be measured again.")

    def ignore(self, error: Exception) -> None:
        """Warns that the file cannot be used."""
        problem = f"{type(error).__name__}: {error}"
        warn(f"The {self.holds} in {self.path()} cannot be read ({problem}) and are ignored; they will be replaced.")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            held = json.loads(self.path().read_text(encoding="utf-8"))
            if held["format_version"] != _FORMAT_VERSION:
                raise ValueError(f"it is not of format {_FORMAT_VERSION}")
            return {str(key): dict(entry) for key, entry in held["entries"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.ignore(error)
            return {}


FILE = CacheFile("recommendations.json", "recommendations")


def key(identity: Identity, question: Mapping[str, Any]) -> str:
    """Returns the key of an answer: hardware, software and the question."""
    return f"{identity.hardware_key} {identity.software_key} {key_of({**question, 'suite': SUITE_VERSION})}"


def find(wanted: str) -> tuple[str, Mapping[str, Any]] | None:
    """Returns the time of an answer (UTC) and the answer; None if it is missing or damaged."""
    entry = FILE.find(wanted)
    try:
        return None if entry is None else (str(entry["time_utc"]), dict(entry["answer"]))
    except (KeyError, TypeError, ValueError) as error:
        FILE.ignore(error)
        return None


def keep(wanted: str, answer: Mapping[str, Any]) -> None:
    """Saves an answer under a key."""
    FILE.keep(wanted, {"answer": answer})
