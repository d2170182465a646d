"""Today's records against the stored baselines, configuration by configuration."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from results.gate import rounds
from results.gate.baselines import nearest_hardware
from results.gate.change_points import change_points
from results.gate.comparability import UnlikeError, hardware_in_words, software_in_words
from results.gate.findings import Finding, Findings, Side, Verdict
from results.gate.rounds import Key, Rounds, Session, session_of, sessions
from results.gate.session_limits import MOST_SESSIONS, Past
from results.record import Record


def check(
    today: Sequence[Record], stored: Sequence[Record], *, today_name: str, stored_name: str, threshold: float | None
) -> Findings:
    """Judges today's runs by the stored sessions of the same configuration and hardware.

    Of today's records, those that are stored already are not judged, nor do they judge; of a configuration all of whose
    records are stored, the latest session is judged by the others.

    Args:
        today: records; those that are not of runs are left out.
        stored: baselines.
        today_name: what to call them, such as their file.
        stored_name: likewise, their directory.
        threshold: the share by which a rate must drop to matter; None: 5 %, or twice the noise of the stored sessions.

    Raises:
        UnlikeError: there are no runs, or no baselines of their hardware.
        ValueError: the threshold is not between 0 and 1.
    """
    mine, theirs = rounds.group(today), rounds.group(stored)
    if not mine:
        raise UnlikeError(f"There is no record of a run in {today_name}. Name a file that `run` or `sweep` has left.")
    _refuse_strange_hardware(mine, stored, stored_name)
    findings: list[Finding] = []
    bases: list[Session] = []
    candidates: list[Record] = []
    notes: list[str] = []
    for key, of_file in mine.items():
        past, judged = _split(of_file, theirs.get(key))
        findings.append(_finding(judged, past, threshold))
        bases += past
        candidates += judged.records
        notes += _note_on_levels(findings[-1], past)
    hardware = {key[1]: hardware_in_words(group.records[0]) for key, group in mine.items()}
    notes += rounds.notes_on_turns([*candidates, *stored])
    missing = [group.title for key, group in theirs.items() if key[1] in hardware and key not in mine]
    return Findings(
        base=_side(stored_name, bases),
        candidate=Side(name=today_name, software=software_in_words(candidates)),
        hardware="; ".join(hardware.values()),
        findings=findings,
        notes=[*notes, *([f"{today_name} has no run of what is stored: {'; '.join(missing)}."] if missing else [])],
    )


def _refuse_strange_hardware(mine: Mapping[Key, Rounds], stored: Sequence[Record], stored_name: str) -> None:
    known = {record.identity.hardware_key for record in stored}
    for (_, hardware_key), group in mine.items():
        if hardware_key in known:
            continue
        first = group.records[0]
        nearest = nearest_hardware(first, stored)
        if nearest is None:
            raise UnlikeError(
                f"There are no baselines in {stored_name}. Keep some with `baseline promote FILE`, or name the "
                "directory with --baselines_dir."
            )
        other, differing = nearest
        raise UnlikeError(
            f"There are no baselines of this hardware ({hardware_in_words(first)}) in {stored_name}. The nearest there "
            f"is {hardware_in_words(other)}: {differing}. Only rates of equal machines compare: check on one of which "
            "there are baselines, or promote runs of this one."
        )


def _split(of_file: Rounds, of_store: Rounds | None) -> tuple[list[Session], Rounds]:
    """Returns the stored sessions to judge by, and the rounds to judge."""
    stored = of_store.records if of_store else []
    known = {record.identity.run_id for record in stored}
    new = [record for record in of_file.records if record.identity.run_id not in known] or of_file.records[-1:]
    names = {session_of(record) for record in new}
    judged = [record for record in of_file.records if session_of(record) in names]
    past = [session for session in sessions(stored) if session.name not in names]
    return past[-MOST_SESSIONS:], dataclasses.replace(of_file, records=judged)


def _finding(today: Rounds, past: Sequence[Session], threshold: float | None) -> Finding:
    judge = Past([session.images_per_sec for session in past])
    limit = judge.threshold if threshold is None else threshold
    decision = judge.judge(today.images_per_sec, threshold=limit)
    verdict, reason = decision.verdict, decision.reason
    failed = today.failures
    if past and failed:
        verdict = Verdict.FAILED
        reason = f"{len(failed)} of today's {len(today.records)} rounds failed where {len(past)} stored sessions ran. "
        reason += rounds.why_failed(failed[0])
    elif not today.valid:
        verdict = Verdict.MISSING
        reason = f"Today has no valid round of it. {rounds.why_failed(today.records[0])}"
    return Finding(
        title=today.title,
        config_key=today.config_key,
        verdict=verdict,
        reason=reason,
        threshold=limit,
        change=decision.change,
        change_low=decision.change_low,
        change_high=decision.change_high,
        smallest_drop=decision.smallest_drop,
        base_images_per_sec=math.exp(judge.centre) if past else None,
        candidate_images_per_sec=statistics.median(today.images_per_sec) if today.valid else None,
        base_rounds=sum(len(session.records) for session in past),
        candidate_rounds=len(today.valid),
    )


def _note_on_levels(finding: Finding, past: Sequence[Session]) -> list[str]:
    """Returns a sentence if nothing could be decided and the stored sessions have had several levels, one a reason."""
    if finding.verdict is not Verdict.INCONCLUSIVE:
        return []
    points = change_points([session.images_per_sec for session in past])
    if not points:
        return []
    return [
        f"{finding.title}: its rate has changed with the session of {past[points[-1]].date}, which counts as noise. If "
        f"it is to stay so, `baseline prune --keep={len(past) - points[-1]}` leaves the sessions since, of every "
        "configuration."
    ]


def _side(name: str, past: Sequence[Session]) -> Side:
    if not past:
        return Side(name=name, software="")
    first, last = (choose(past, key=lambda session: session.date) for choose in (min, max))
    return Side(
        name=f"{name}, {first.date[:10]} to {last.date[:10]}", software=f"last {software_in_words(last.records[-1:])}"
    )
