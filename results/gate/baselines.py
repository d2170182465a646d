"""Baselines: records that are stored in a repository, for later comparisons.

Their files are `DIRECTORY/<hardware_key>/<config_key>.jsonl`, one record per line, so that a diff shows additions, and
`report` reads them like any other results.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from results import loading, store
from results.gate.rounds import sessions, why_not
from results.record import Record

BASELINES_DIR = "results/baselines"
_KEY = re.compile(r"[0-9A-Za-z_-]+")
_CLOCKS_DIFFER_SECONDS = 24 * 3600


def store_runs(directory: Path, records: Iterable[Record]) -> tuple[list[Record], list[Record], list[str]]:
    """Appends the records that can be baselines and are not yet stored; creates the directory.

    Of two processes that store at once, one waits for the other.

    Returns:
        The records that are new; those that were baselines before; a sentence on each of the others.

    Raises:
        OSError: a file cannot be read or written.
    """
    refused: list[str] = []
    files: dict[Path, list[Record]] = {}
    for record in records:
        identity = record.identity
        if why := _why_not(record):
            refused.append(f"Run {identity.run_id} cannot be stored: {why}.")
        else:
            path = directory / identity.hardware_key / f"{identity.config_key}.jsonl"
            files.setdefault(path, []).append(record)
    added: list[Record] = []
    present: list[Record] = []
    for path, group in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with store.locked(path) as file:
            stored = {record.identity.run_id for record in loading.load(path).records}
            new = [record for record in group if record.identity.run_id not in stored]
            if new:
                store.append_lines(file, new)
        present += [record for record in group if record.identity.run_id in stored]
        added += new
    return added, present, refused


def prune(directory: Path, keep: int) -> dict[Path, int]:
    """Keeps the last `keep` sessions of each configuration, and returns how many were removed from which file.

    A file from which something is removed loses its damaged lines, and keeps misdated runs and other formats.

    Raises:
        OSError: a file cannot be read or written.
    """
    removed = {}
    for path in paths(directory):
        with store.locked(path):
            loaded = loading.load(path)
            stored = sessions(record for record in loaded.records if not is_misdated(record))
            if len(stored) > keep:
                kept = [record for session in stored[-keep:] for record in session.records]
                kept += filter(is_misdated, loaded.records)
                lines = [*(record.to_json().encode() for record in kept), *loaded.of_other_formats]
                store.replace(path, b"".join(line.strip() + b"\n" for line in lines))
                removed[path] = len(stored) - keep
    return removed


def paths(directory: Path) -> list[Path]:
    """Returns the files of a directory's baselines."""
    return sorted(directory.glob("*/*.jsonl"))


def is_misdated(record: Record) -> bool:
    """Returns whether the time of a record cannot be read or is in the future: it would be the newest for years."""
    return not 0 < record.ended < time.time() + _CLOCKS_DIFFER_SECONDS


def _why_not(record: Record) -> str | None:
    """Returns why a record cannot be a baseline, or None if it can."""
    if why := why_not(record):
        return why
    if is_misdated(record):
        return f"its time_utc, {record.identity.time_utc}, is in the future or cannot be read"
    if record.environment.get("slowed_down_by"):
        return "it was slowed down on purpose"
    if record.is_interleaved:
        return "it interleaved its steps with another run"
    keys = (record.identity.config_key, record.identity.hardware_key)
    # A record must not choose where this process writes.
    return None if all(_KEY.fullmatch(key) for key in keys) else f"its keys, {keys}, cannot name a file"
