"""Baselines: records that are kept in a repository, to be compared with.

They lie in `DIRECTORY/<hardware_key>/<config_key>.jsonl`, a whole record per line, so that a diff shows what was added,
and `report` reads them like any other results.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from results import store
from results.gate.comparability import hardware
from results.gate.rounds import sessions, why_not
from results.record import Record

_KEY = re.compile(r"[0-9A-Za-z_-]+")


@dataclasses.dataclass(frozen=True)
class Promoted:
    """What became of records that were to be baselines.

    Attributes:
        added: are baselines now.
        there: were it before.
        refused: a sentence on each of the others.
    """

    added: Sequence[Record]
    there: Sequence[Record]
    refused: Sequence[str]


class Baselines:
    """A directory of baselines; it need not exist before something is promoted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self) -> store.Loaded:
        """Reads all records.

        Raises:
            OSError: a file cannot be read.
        """
        return store.load(*self._paths())

    def promote(self, records: Iterable[Record]) -> Promoted:
        """Appends the records that may be baselines and are not yet.

        Raises:
            OSError: a file cannot be read or written.
        """
        refused: list[str] = []
        files: dict[Path, list[Record]] = {}
        for record in records:
            why = why_not(record) or _disturbed(record) or _strange_keys(record)
            if why:
                refused.append(f"Run {record.identity.run_id} cannot become a baseline: {why}.")
            else:
                identity = record.identity
                path = self.directory / identity.hardware_key / f"{identity.config_key}.jsonl"
                files.setdefault(path, []).append(record)
        added: list[Record] = []
        there: list[Record] = []
        for path, group in files.items():
            stored = {record.identity.run_id for record in store.load(path).records} if path.exists() else set()
            new = [record for record in group if record.identity.run_id not in stored]
            there += [record for record in group if record.identity.run_id in stored]
            added += new
            if new:
                _append(path, new)
        return Promoted(added, there, refused)

    def prune(self, keep: int) -> dict[Path, int]:
        """Keeps the last sessions of each configuration, and returns how many were taken from which file.

        Lines that are no records stay, for somebody to look at, if nothing is taken from their file.

        Raises:
            OSError: a file cannot be read or written.
        """
        taken = {}
        for path in self._paths():
            found = sessions(store.load(path).records)
            if len(found) > keep:
                store.replace(path, _lines([record for session in found[-keep:] for record in session.records]))
                taken[path] = len(found) - keep
        return taken

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("*/*.jsonl"))


def nearest_hardware(record: Record, stored: Iterable[Record]) -> tuple[Record, str] | None:
    """Returns the stored record whose hardware differs least from another's, and in what, in words.

    None if nothing is stored.
    """
    wanted = hardware(record)
    found = []
    for other in {other.identity.hardware_key: other for other in stored}.values():
        theirs = hardware(other)
        differing = [
            f"{name} is {wanted[name]} here, not {theirs[name]}" for name in wanted if wanted[name] != theirs[name]
        ]
        found.append((other, differing))
    if not found:
        return None
    other, differing = min(found, key=lambda pair: len(pair[1]))
    return other, "; ".join(differing) or "other versions of the suite have computed their hardware_key"


def _append(path: Path, records: Iterable[Record]) -> None:
    """Appends lines by writing the file anew, so that a reader, or a crash, sees all of them or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    torn = bool(text) and not text.endswith("\n")
    store.replace(path, text + "\n" * torn + _lines(records))


def _lines(records: Iterable[Record]) -> str:
    return "".join(record.to_json() + "\n" for record in records)


def _disturbed(record: Record) -> str | None:
    if record.environment.get("slowed_down_by"):
        return "it was slowed down on purpose"
    return "it measured in turn with another run" if record.in_turn else None


def _strange_keys(record: Record) -> str | None:
    """Returns why the record's keys cannot name a file: whoever wrote the record must not choose where we write."""
    keys = (record.identity.config_key, record.identity.hardware_key)
    return None if all(_KEY.fullmatch(key) for key in keys) else f"its keys, {keys}, cannot name a file"
