"""Answers that take long to find, in the user's cache directory. Imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from benchmarks.machine.cache import CacheFile
from results.record import Identity, key_of
from results.version import SUITE_VERSION

T = TypeVar("T")

FILE = CacheFile("recommendations.json", "recommendations")


def key(identity: Identity, question: Mapping[str, Any]) -> str:
    """Returns the key of an answer: hardware, software and the question."""
    return f"{identity.hardware_key} {identity.software_key} {key_of({**question, 'suite': SUITE_VERSION})}"


class Answered(msgspec.Struct, Generic[T]):
    """An answer, and when it was found (UTC)."""

    time_utc: str
    answer: T
