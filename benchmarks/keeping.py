"""Opening the results directory, and keeping records in it, come what may. Imports no TensorFlow."""

from __future__ import annotations

from pathlib import Path

from benchmarks.console import say, warn
from benchmarks.errors import UsageError
from results.record import Record
from results.store import Store, StoreError


def open_store(output_dir: str) -> Store:
    """Opens the results directory.

    Raises:
        UsageError: it cannot be written; so a run is refused before it starts.
    """
    try:
        return Store(Path(output_dir))
    except StoreError as error:
        raise UsageError(str(error)) from error


def keep(store: Store, *records: Record) -> bool:
    """Stores records; if that fails, stdout is the last place where they can be kept. Returns whether it worked."""
    try:
        problems = store.append(*records)
    except StoreError as error:
        warn(f"{error} The record follows on stdout.")
        for record in records:
            say(record.to_json())
        return False
    for problem in problems:
        warn(problem)
    return True
