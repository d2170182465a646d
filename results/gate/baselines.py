"""Baselines: records that are stored in a repository, for later comparisons.

Their files are `DIRECTORY/<hardware_key>/<config_key>.jsonl`, one record per line, so that a diff shows additions, and
`report` reads them like any other results.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from results import loading, store
from results.gate import rounds
from results.gate.comparison import UnlikeError, hardware_in_words, refuse_new_hardware, software_in_words
from results.gate.findings import Finding, Findings, Side, Verdict
from results.gate.rounds import RunGroup, Session, session_of, sessions, why_not
from results.gate.session_history import change_points
from results.gate.session_limits import MOST_SESSIONS, SessionLimits
from results.record import Record

BASELINES_DIR = "results/baselines"
_KEY = re.compile(r"[0-9A-Za-z_-]+")


@dataclasses.dataclass(frozen=True)
class Promoted:
    """The result of promoting records to baselines.

    Attributes:
        added: records that are new.
        present: records that were baselines before.
        refused: a sentence on each of the others.
    """

    added: Sequence[Record]
    present: Sequence[Record]
    refused: Sequence[str]


def load(directory: Path) -> loading.Loaded:
    """Reads all baselines of a directory.

    Raises:
        OSError: a file cannot be read.
    """
    return loading.load(*_paths(directory))


def promote(directory: Path, records: Iterable[Record]) -> Promoted:
    """Appends the records that can be baselines and are not yet stored; creates the directory.

    Of two processes that promote at once, one waits for the other.

    Raises:
        OSError: a file cannot be read or written.
    """
    refused: list[str] = []
    files: dict[Path, list[Record]] = {}
    for record in records:
        identity = record.identity
        if why := _why_not(record):
            refused.append(f"Run {identity.run_id} cannot become a baseline: {why}.")
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
    return Promoted(added, present, refused)


def prune(directory: Path, keep: int) -> dict[Path, int]:
    """Keeps the last `keep` sessions of each configuration, and returns how many were removed from which file.

    A file from which nothing is removed also keeps its lines that are not records.

    Raises:
        OSError: a file cannot be read or written.
    """
    removed = {}
    for path in _paths(directory):
        with store.locked(path):
            found = sessions(loading.load(path).records)
            if len(found) > keep:
                kept = [record for session in found[-keep:] for record in session.records]
                store.replace(path, "".join(record.to_json() + "\n" for record in kept))
                removed[path] = len(found) - keep
    return removed


def _paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*.jsonl"))


def _why_not(record: Record) -> str | None:
    """Returns why a record cannot be a baseline, or None if it can."""
    if why := why_not(record):
        return why
    if record.environment.get("slowed_down_by"):
        return "it was slowed down on purpose"
    if record.in_turn:
        return "it interleaved its steps with another run"
    keys = (record.identity.config_key, record.identity.hardware_key)
    # A record must not choose where this process writes.
    return None if all(_KEY.fullmatch(key) for key in keys) else f"its keys, {keys}, cannot name a file"


def check(
    today: Sequence[Record], stored: Sequence[Record], names: tuple[str, str], threshold: float | None
) -> Findings:
    """Judges today's runs by the stored sessions of the same configuration and hardware.

    Of today's records, those that are already stored are neither judged nor used to judge. If all records of a
    configuration are stored, its latest session is judged by the others.

    Args:
        today: records; those that are not of runs are ignored.
        stored: baselines.
        names: of today's records and the baselines in messages, such as their file and directory.
        threshold: the share by which a rate must drop to matter; None: 5 %, or twice the noise of the stored sessions.

    Raises:
        UnlikeError: there are no runs, or no baselines of their hardware.
        ValueError: the threshold is not between 0 and 1.
    """
    today_name, stored_name = names
    mine, theirs = rounds.group(today), rounds.group(stored)
    if not mine:
        raise UnlikeError(f"There is no record of a run in {today_name}. Name a file that `run` or `sweep` wrote.")
    findings: list[Finding] = []
    bases: list[Session] = []
    candidates: list[Record] = []
    notes: list[str] = []
    for key, of_file in mine.items():
        refuse_new_hardware(of_file.records[0], stored, stored_name)
        history, judged = _split(of_file, theirs.get(key))
        findings.append(_finding(judged, history, threshold))
        bases += history
        candidates += judged.records
        notes += _note_on_levels(findings[-1], history)
    hardware = {key[1]: hardware_in_words(group.records[0]) for key, group in mine.items()}
    notes += rounds.notes_on_interleaving([*candidates, *stored])
    missing = [group.title for key, group in theirs.items() if key[1] in hardware and key not in mine]
    if missing:
        notes.append(f"{today_name} lacks runs of stored configurations: {'; '.join(missing)}.")
    return Findings(
        base=_side(stored_name, bases),
        candidate=Side(name=today_name, software=software_in_words(candidates)),
        hardware="; ".join(hardware.values()),
        findings=findings,
        notes=notes,
    )


def _split(of_file: RunGroup, of_store: RunGroup | None) -> tuple[list[Session], RunGroup]:
    """Returns the stored sessions to judge by, and the rounds to judge."""
    stored = of_store.records if of_store else []
    known = {record.identity.run_id for record in stored}
    new = [record for record in of_file.records if record.identity.run_id not in known] or of_file.records[-1:]
    names = {session_of(record) for record in new}
    judged = [record for record in of_file.records if session_of(record) in names]
    history = [session for session in sessions(stored) if session_of(session.records[0]) not in names]
    return history[-MOST_SESSIONS:], dataclasses.replace(of_file, records=judged)


def _finding(today: RunGroup, history: Sequence[Session], threshold: float | None) -> Finding:
    limits = SessionLimits([session.images_per_sec for session in history])
    limit = limits.threshold if threshold is None else threshold
    decision = limits.judge(today.rates, threshold=limit)
    failed = today.failures
    if history and failed:
        reason = f"{len(failed)} of today's {len(today.records)} rounds failed where {len(history)} stored sessions "
        reason += f"ran. {rounds.why_failed(failed[0])}"
        decision = dataclasses.replace(decision, verdict=Verdict.FAILED, reason=reason)
    elif not today.rates:
        reason = f"Today has no valid round of it. {rounds.why_failed(today.records[0])}"
        decision = dataclasses.replace(decision, verdict=Verdict.MISSING, reason=reason)
    stored_rounds = sum(len(session.records) for session in history)
    base = (math.exp(limits.centre) if history else None, stored_rounds)
    candidate = (statistics.median(today.rates) if today.rates else None, len(today.rates))
    return decision.finding(today.title, today.config_key, limit, base, candidate)


def _note_on_levels(finding: Finding, history: Sequence[Session]) -> Iterable[str]:
    """Yields a note if nothing could be decided and the stored sessions had several levels, which may be why."""
    if finding.verdict is not Verdict.INCONCLUSIVE:
        return
    points = change_points([session.images_per_sec for session in history])
    if points:
        yield (
            f"{finding.title}: its rate changed with the session of {history[points[-1]].date}, which counts as noise. "
            f"If the new rate is expected, `baseline prune --keep={len(history) - points[-1]}` keeps only the sessions "
            "since then, of every configuration."
        )


def _side(name: str, history: Sequence[Session]) -> Side:
    if not history:
        return Side(name=name, software="")
    first, last = (choose(history, key=lambda session: session.date) for choose in (min, max))
    return Side(
        name=f"{name}, {first.date[:10]} to {last.date[:10]}", software=f"last {software_in_words(last.records[-1:])}"
    )
