"""A run: flags -> configuration -> graph -> timed steps. For scripts: `from benchmarks import Config, train`.

These names are imported when they are first used, so importing the package alone costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.config.config import Config
    from benchmarks.errors import BenchError, UsageError
    from benchmarks.library import train
    from results.record import Record, Status

__all__ = ["BenchError", "Config", "Record", "Status", "UsageError", "train"]
_MODULES = {
    "BenchError": "benchmarks.errors",
    "Config": "benchmarks.config.config",
    "Record": "results.record",
    "Status": "results.record",
    "UsageError": "benchmarks.errors",
    "train": "benchmarks.library",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
