"""Compares two sets of records, base and candidate, configuration by configuration.

Runs compare if their configurations and hardware are equal; differences are reported in words.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from results.environment import (
    differences,
    hardware,
    hardware_in_words,
    listed,
    software,
    software_in_words,
)
from results.gate import rounds
from results.gate.decision import FEWEST_ROUNDS, QUIET_THRESHOLD, judge, judge_apart
from results.gate.findings import Decision, Finding, Findings, Side, Verdict
from results.gate.rounds import Key, failures
from results.intervals import Interval, geometric_mean
from results.record import Kind, Record, flat
from results.summary import Row
from results.text import counted

_SEPARATE_ROUNDS = (
    "Rounds were not interleaved ({}), so a drift of the machine would look like a change. The verb `ab` interleaves "
    "them."
)


class UnlikeError(ValueError):
    """The runs cannot be compared. The message names the fields that differ, and what to do."""


def compare(
    base: Sequence[Record], candidate: Sequence[Record], names: tuple[str, str], threshold: float = QUIET_THRESHOLD
) -> Findings:
    """Compares all runs of the candidate with those of the base of equal configuration and hardware.

    Runs that both sides have, as if new ones were appended to a copy of the base, are the base's only.

    `names` are base and candidate in messages, such as their files or revisions; `threshold` is the share by which a
    rate must drop to matter.

    Raises:
        UnlikeError: the hardware differs, no configuration is in both, or a side has no runs of its own.
    """
    known = {record.identity.run_id for record in base}
    runs = [record for record in candidate if record.kind is Kind.RUN]
    own = [record for record in runs if record.identity.run_id not in known]
    shared = len(runs) - len(own)
    if shared and not own:
        raise UnlikeError(
            f"All runs of {names[1]} are in {names[0]}, too, so there is nothing to compare. Name the runs of two "
            "builds, each with an --output_dir of its own."
        )
    mine, others = map(rounds.group, rounds.completed(base, own))
    _refuse_unlike(mine, others, names)
    findings, apart = [], []
    for key, of_base in mine.items():
        of_candidate = others.get(key, Row(records=()))
        paired = rounds.pairs(of_base.records, of_candidate.records)
        decision = _without_rates(of_base, of_candidate)
        if decision is None:
            apart += [of_base.title] if paired is None else []
            decision = _judged(of_base, of_candidate, paired or [], threshold)
        findings.append(_finding(of_base, of_candidate, threshold, decision))
    machines = {key[1]: hardware_in_words(of.records[0]) for key, of in mine.items() if key in others}
    sides = [[record for group in side.values() for record in group.records] for side in (mine, others)]
    only = [side.title + differing_in(side, mine.values(), names) for key, side in others.items() if key not in mine]
    in_both = f"{counted(shared, 'run')} of {names[1]} also in {names[0]}: counted as the base's only."
    return Findings(
        base=Side(name=names[0], software=software_in_words(sides[0])),
        candidate=Side(name=names[1], software=software_in_words(sides[1])),
        hardware="; ".join(machines.values()),
        findings=findings,
        notes=[
            *([in_both] if shared else []),
            *_notes_on_software(sides, names),
            *notes_on_differences(((mine[key].records, others[key].records) for key in mine if key in others), names),
            *rounds.notes_on_interleaving([*sides[0], *sides[1]]),
            *([_SEPARATE_ROUNDS.format(listed(apart))] if apart else []),
            *([f"Only the candidate has {listed(only)}."] if only else []),
        ],
    )


def differing_in(side: Row, of_base: Iterable[Row], names: tuple[str, str]) -> str:
    """Returns in what runs differ from those of the base of the same title, if it has some, to follow that."""
    for record in (group.records[0] for group in of_base if group.title == side.title):
        machines = differences(hardware(record), hardware(side.records[0]), names)
        return f" ({listed([*machines, *config_differences(record, side.records[0], names)])})"
    return ""


def _without_rates(base: Row, candidate: Row) -> Decision | None:
    """Returns the decision if a side has failed or has too few rounds; None if rates must decide."""
    counts = len(base.rates), len(candidate.rates)
    failed, failed_in_base = failures(candidate), failures(base)
    if not candidate.records:
        return Decision(verdict=Verdict.MISSING, reason="The candidate has no run of it on this hardware.")
    if not base.rates:
        reason = f"The base has no valid run to compare with. {_how_it_ended(base)}"
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason)
    if failed:
        seen = f"{len(failed)} of {len(candidate.records)} runs failed"
        if candidate.rates and failed_in_base:
            reason = f"{seen}, but so did {len(failed_in_base)} of {len(base.records)} of the base."
            verdict = Verdict.INCONCLUSIVE
        else:
            reason, verdict = f"{seen} where the base ran.", Verdict.FAILED
        return Decision(verdict=verdict, reason=f"{reason} {rounds.why_failed(failed[0])}")
    if not candidate.rates:
        reason = f"The candidate did not run it. {_how_it_ended(candidate)}"
        return Decision(verdict=Verdict.MISSING, reason=reason)
    if min(counts) < FEWEST_ROUNDS:
        reason = (
            f"Valid runs: {counts[0]} of the base and {counts[1]} of the candidate; {FEWEST_ROUNDS} of each are "
            "needed to separate a change from noise. Run more repeats."
        )
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason)
    return None


def _judged(base: Row, candidate: Row, paired: Sequence[tuple[float, float]], threshold: float) -> Decision:
    if len(paired) >= FEWEST_ROUNDS:
        ratios = [math.log(other) - math.log(mine) for mine, other in paired]
        return judge(ratios, threshold=threshold, fresh=len(ratios) // 2)
    logs = [[math.log(rate) for rate in side.rates] for side in (base, candidate)]
    return judge_apart(*logs, threshold=threshold)


def _finding(base: Row, candidate: Row, threshold: float, decision: Decision) -> Finding:
    mine, other = (geometric_mean(side.rates) if side.rates else None for side in (base, candidate))
    if decision.change is None and mine is not None and other is not None:
        decision = dataclasses.replace(decision, change=Interval(other / mine - 1))
    sides = ((mine, len(base.rates)), (other, len(candidate.rates)))
    return decision.finding(base.title, base.records, threshold, *sides)


def _how_it_ended(side: Row) -> str:
    ended = [*failures(side), *(record for record in side.records if record.rate is None)]
    return rounds.why_failed(ended[0])


def _notes_on_software(sides: Sequence[Sequence[Record]], names: tuple[str, str]) -> list[str]:
    notes = []
    for name, records in zip(names, sides, strict=True):
        softwares = {record.identity.software_key for record in records}
        commits = {(record.identity.suite_version, record.identity.suite_commit) for record in records}
        mixtures = [f"{len(softwares)} sets of software versions"] if len(softwares) > 1 else []
        mixtures += [f"{len(commits)} commits of the suite"] if len(commits) > 1 else []
        if mixtures:
            notes.append(f"{name} mixes {' and '.join(mixtures)}; a difference between them counts as noise.")
    return notes


def notes_on_differences(
    configurations: Iterable[tuple[Sequence[Record], Sequence[Record]]], names: tuple[str, str]
) -> Iterator[str]:
    """Yields in what the software of the first configuration differs that is valid in both; each has runs of both."""
    for sides in configurations:
        valid = [[record for record in side if record.rate is not None] for side in sides]
        if all(valid):
            if unlike := differences(software(valid[0][0]), software(valid[1][0]), names):
                yield f"The software differs: {listed(unlike)}."
            return


def _refuse_unlike(base: Mapping[Key, Row], candidate: Mapping[Key, Row], names: tuple[str, str]) -> None:
    """Checks that both sides ran at least one configuration on equal hardware; `names` are the sides in messages.

    Raises:
        UnlikeError: they ran none, or a side has no runs.
    """
    for side, name in zip((base, candidate), names, strict=True):
        if not side:
            raise UnlikeError(f"There is no record of a run in {name}. Name a file that `run`, `sweep` or `ab` wrote.")
    if base.keys() & candidate.keys():
        return
    couples = [
        (mine, other)
        for (_, machine), mine in base.items()
        for (_, where), other in candidate.items()
        if machine == where
    ]
    if not couples:
        first, second = (next(iter(side.values())).records[0] for side in (base, candidate))
        unlike = differences(hardware(first), hardware(second), names)
        raise UnlikeError(
            f"The hardware differs: {listed(unlike)}. Only rates of equal machines compare: run both on one of them."
        )
    by_couple = [config_differences(mine.records[0], other.records[0], names) for mine, other in couples]
    unlike, (mine, other) = min(zip(by_couple, couples, strict=True), key=lambda pair: len(pair[0]))
    raise UnlikeError(
        f"No configuration is both in {names[0]} and in {names[1]}. The nearest are {mine.title} and {other.title}: "
        f"{listed(unlike)}. Run both with the same flags."
    )


def refuse_new_hardware(records: Sequence[Record], stored: Sequence[Record], stored_name: str) -> None:
    """Checks that baselines exist for the hardware of one of the records; `stored_name` is their directory in messages.

    Raises:
        UnlikeError: there are none.
    """
    if not stored:
        raise UnlikeError(
            f"There are no baselines in {stored_name}. Add some with `track store FILE`, or name the directory "
            "with --baselines_dir."
        )
    if {record.identity.hardware_key for record in records} & {other.identity.hardware_key for other in stored}:
        return
    record = records[0]
    # The baselines whose hardware differs least.
    names = ("this run", "the baselines")
    candidates = [(other, differences(hardware(record), hardware(other), names)) for other in stored]
    other, unlike = min(candidates, key=lambda pair: len(pair[1]))
    raise UnlikeError(
        f"There are no baselines of this hardware ({hardware_in_words(record)}) in {stored_name}. The nearest there is "
        f"{hardware_in_words(other)}: {listed(unlike)}. Only rates of equal machines compare: check on a machine "
        "that has baselines, or store runs of this one."
    )


def config_differences(base: Record, candidate: Record, names: tuple[str, str]) -> list[str]:
    """Returns in which fields that can change the rate the configurations differ, a phrase each."""
    not_in_key = {*base.config_not_in_key, *candidate.config_not_in_key}
    first, second = (
        flat({name: value for name, value in record.config.items() if name not in not_in_key})
        for record in (base, candidate)
    )
    return differences(first, second, names)
