"""Compares two sets of records, base and candidate, configuration by configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import geometric_mean

from results.gate import rounds
from results.gate.comparability import hardware_in_words, listed, refuse_unlike, software_differences, software_in_words
from results.gate.decision import judge, judge_apart
from results.gate.findings import Decision, Finding, Findings, Side, Verdict
from results.gate.noise import QUIET_THRESHOLD
from results.gate.rounds import RunGroup
from results.intervals import Interval
from results.record import Record

# With fewer rounds, the noise is hardly known.
FEWEST_ROUNDS = 3
_NO_RUNS = RunGroup(title="", records=())
_SEPARATE_ROUNDS = (
    "Rounds were not interleaved ({}), so a drift of the machine would look like a change. The verb `ab` interleaves "
    "them."
)


def compare(
    base: Sequence[Record], candidate: Sequence[Record], names: tuple[str, str], threshold: float = QUIET_THRESHOLD
) -> Findings:
    """Compares all runs of the candidate with those of the base of equal configuration and hardware.

    Args:
        base: records; those that are not of runs are ignored.
        candidate: records, by the same rule.
        names: of base and candidate in messages, such as their files or revisions.
        threshold: the share by which a rate must drop to matter.

    Raises:
        UnlikeError: the hardware differs, no configuration is in both, or a side has no runs.
        ValueError: the threshold is not between 0 and 1.
    """
    mine, others = rounds.group(base), rounds.group(candidate)
    refuse_unlike(mine, others, names)
    findings, apart = [], []
    for key, of_base in mine.items():
        of_candidate = others.get(key, _NO_RUNS)
        paired = rounds.pairs(of_base, of_candidate)
        decision = _without_rates(of_base, of_candidate)
        if decision is None:
            apart += [of_base.title] if paired is None else []
            decision = _judged(of_base, of_candidate, paired or [], threshold)
        findings.append(_finding(of_base, of_candidate, threshold, decision))
    machines = {key[1]: hardware_in_words(of.records[0]) for key, of in mine.items() if key in others}
    sides = [[record for group in side.values() for record in group.records] for side in (mine, others)]
    only = [side.title for key, side in others.items() if key not in mine]
    return Findings(
        base=Side(name=names[0], software=software_in_words(sides[0])),
        candidate=Side(name=names[1], software=software_in_words(sides[1])),
        hardware="; ".join(machines.values()),
        findings=findings,
        notes=[
            *_notes_on_software(sides, names),
            *rounds.notes_on_interleaving([*sides[0], *sides[1]]),
            *([_SEPARATE_ROUNDS.format(listed(apart))] if apart else []),
            *([f"Only the candidate has {listed(only)}."] if only else []),
        ],
    )


def _without_rates(base: RunGroup, candidate: RunGroup) -> Decision | None:
    """Returns the decision if a side has failed or has too few rounds; None if rates must decide."""
    counts = len(base.rates), len(candidate.rates)
    if not candidate.records:
        return Decision(verdict=Verdict.MISSING, reason="The candidate has no run of it on this hardware.")
    if not base.rates:
        reason = f"The base has no valid round to compare with. {_how_it_ended(base)}"
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason)
    if candidate.failures:
        seen = f"{len(candidate.failures)} of {len(candidate.records)} rounds failed"
        if candidate.rates and base.failures:
            reason = f"{seen}, but so did {len(base.failures)} of {len(base.records)} of the base."
            verdict = Verdict.INCONCLUSIVE
        else:
            reason, verdict = f"{seen} where the base ran.", Verdict.FAILED
        return Decision(verdict=verdict, reason=f"{reason} {_how_it_ended(candidate)}")
    if not candidate.rates:
        reason = f"The candidate did not run it. {_how_it_ended(candidate)}"
        return Decision(verdict=Verdict.MISSING, reason=reason)
    if min(counts) < FEWEST_ROUNDS:
        reason = (
            f"Valid rounds: {counts[0]} of the base and {counts[1]} of the candidate; {FEWEST_ROUNDS} of each are "
            "needed to separate a change from noise. Run more rounds."
        )
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason)
    return None


def _judged(base: RunGroup, candidate: RunGroup, paired: Sequence[tuple[float, float]], threshold: float) -> Decision:
    """Returns the decision from interleaved pairs of rates if they suffice, otherwise from all rates."""
    if len(paired) >= FEWEST_ROUNDS:
        ratios = [math.log(other) - math.log(mine) for mine, other in paired]
        return judge(ratios, threshold=threshold, fresh=len(ratios) // 2)
    logs = [[math.log(rate) for rate in side.rates] for side in (base, candidate)]
    return judge_apart(*logs, threshold=threshold)


def _finding(base: RunGroup, candidate: RunGroup, threshold: float, decision: Decision) -> Finding:
    mine, other = (geometric_mean(side.rates) if side.rates else None for side in (base, candidate))
    if decision.change is None and mine is not None and other is not None:
        decision = dataclasses.replace(decision, change=Interval(other / mine - 1))
    sides = ((mine, len(base.rates)), (other, len(candidate.rates)))
    return decision.finding(base.title, base.config_key, threshold, *sides)


def _how_it_ended(side: RunGroup) -> str:
    """Returns the reason of an invalid round; of a failed one, if there is any."""
    ended = [*side.failures, *(record for record in side.records if rounds.rate(record) is None)]
    return rounds.why_failed(ended[0])


def _notes_on_software(sides: Sequence[Sequence[Record]], names: tuple[str, str]) -> list[str]:
    notes = []
    for name, records in zip(names, sides, strict=True):
        softwares = {record.identity.software_key for record in records}
        commits = {(record.identity.suite_version, record.identity.suite_commit) for record in records}
        found = [f"{len(softwares)} sets of software versions"] if len(softwares) > 1 else []
        found += [f"{len(commits)} commits of the suite"] if len(commits) > 1 else []
        if found:
            notes.append(f"{name} mixes {' and '.join(found)}; a difference between them counts as noise.")
    first, second = (records[0] for records in sides)
    if first.identity.software_key != second.identity.software_key:
        found = software_differences(first, second, names)
        notes += [f"The software differs: {listed(found)}."] if found else []
    return notes
