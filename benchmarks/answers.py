"""Answers of `recommend` and of the search for a batch size, found before. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.cache_file import CacheFile
from results.record import Identity, key_of
from results.version import SUITE_VERSION

FILE = CacheFile("recommendations.json", "recommendations")


def key(identity: Identity, question: Mapping[str, Any]) -> str:
    """Returns what an answer is kept under: hardware, software and the question."""
    return f"{identity.hardware_key} {identity.software_key} {key_of({**question, 'suite': SUITE_VERSION})}"


def find(wanted: str) -> tuple[str, Mapping[str, Any]] | None:
    """Returns when an answer was found (UTC) and what it is; None if there is none, or the file is damaged."""
    entry = FILE.find(wanted)
    try:
        return None if entry is None else (str(entry["time_utc"]), dict(entry["answer"]))
    except (KeyError, TypeError, ValueError) as error:
        FILE.ignore(error)
        return None


def keep(wanted: str, answer: Mapping[str, Any]) -> None:
    """Keeps an answer under a key."""
    FILE.keep(wanted, {"answer": answer})
