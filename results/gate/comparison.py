"""Compares two sets of records, base and candidate, configuration by configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean

from results.gate import rounds
from results.gate.comparability import hardware_in_words, listed, refuse_unlike, software_differences, software_in_words
from results.gate.decision import Decision, judge, judge_apart
from results.gate.findings import Finding, Findings, Side, Verdict
from results.gate.noise import QUIET_THRESHOLD
from results.gate.rounds import Key, RunGroup
from results.record import Record

# With fewer rounds, the noise is hardly known.
FEWEST_ROUNDS = 3


def compare(
    base: Sequence[Record],
    candidate: Sequence[Record],
    *,
    base_name: str,
    candidate_name: str,
    threshold: float = QUIET_THRESHOLD,
) -> Findings:
    """Compares all runs of the candidate with those of the base of equal configuration and hardware.

    Args:
        base: records; those that are not of runs are ignored.
        candidate: records, by the same rule.
        base_name: its name in messages, such as its file or revision.
        candidate_name: its name in messages.
        threshold: the share by which a rate must drop to matter.

    Raises:
        UnlikeError: the hardware differs, no configuration is in both, or a side has no runs.
        ValueError: the threshold is not between 0 and 1.
    """
    names = (base_name, candidate_name)
    mine, others = rounds.group(base), rounds.group(candidate)
    refuse_unlike(mine, others, names)
    findings, apart = [], []
    for key, of_base in mine.items():
        of_candidate = others.get(key)
        decision, is_paired = _without_rates(of_base, of_candidate), True
        if decision is None and of_candidate is not None:
            decision, is_paired = _judged(of_base, of_candidate, threshold)
        apart += [] if is_paired else [of_base.title]
        findings += [_finding(of_base, of_candidate, threshold, decision)] if decision else []
    machines = {key[1]: hardware_in_words(of.records[0]) for key, of in mine.items() if key in others}
    sides = [_records(mine), _records(others)]
    only = [side.title for key, side in others.items() if key not in mine]
    return Findings(
        base=Side(name=base_name, software=software_in_words(sides[0])),
        candidate=Side(name=candidate_name, software=software_in_words(sides[1])),
        hardware="; ".join(machines.values()),
        findings=findings,
        notes=[
            *_notes_on_software(sides, names),
            *rounds.notes_on_interleaving([*sides[0], *sides[1]]),
            *_note_on_separate_rounds(apart),
            *([f"Only the candidate has {listed(only)}."] if only else []),
        ],
    )


def _without_rates(base: RunGroup, candidate: RunGroup | None) -> Decision | None:
    """Returns the decision if a side is missing or has failed; None if rates must decide."""
    if candidate is None:
        return _decided(Verdict.MISSING, "The candidate has no run of it on this hardware.")
    if not base.rates:
        reason = f"The base has no valid round to compare with. {_how_it_ended(base)}"
        return _decided(Verdict.INCONCLUSIVE, reason)
    if candidate.failures:
        seen = f"{len(candidate.failures)} of {len(candidate.records)} rounds failed"
        if candidate.rates and base.failures:
            reason = f"{seen}, but so did {len(base.failures)} of {len(base.records)} of the base."
            verdict = Verdict.INCONCLUSIVE
        else:
            reason, verdict = f"{seen} where the base ran.", Verdict.FAILED
        return _decided(verdict, f"{reason} {_how_it_ended(candidate)}")
    if not candidate.rates:
        return _decided(Verdict.MISSING, f"The candidate did not run it. {_how_it_ended(candidate)}")
    return None


def _decided(verdict: Verdict, reason: str) -> Decision:
    return Decision(verdict=verdict, reason=reason, rounds=0)


def _judged(base: RunGroup, candidate: RunGroup, threshold: float) -> tuple[Decision, bool]:
    """Returns the decision from the rates, and whether rounds were interleaved or too few for that to matter."""
    counts = len(base.rates), len(candidate.rates)
    if min(counts) < FEWEST_ROUNDS:
        reason = (
            f"Valid rounds: {counts[0]} of the base and {counts[1]} of the candidate; {FEWEST_ROUNDS} of each are "
            "needed to separate a change from noise. Run more rounds."
        )
        return _decided(Verdict.INCONCLUSIVE, reason), True
    paired = rounds.pairs(base, candidate)
    if paired is not None and len(paired) >= FEWEST_ROUNDS:
        ratios = [math.log(other) - math.log(mine) for mine, other in paired]
        return judge(ratios, threshold=threshold, fresh=len(ratios) // 2), True
    logs = [[math.log(rate) for rate in side.rates] for side in (base, candidate)]
    return judge_apart(*logs, threshold=threshold), paired is not None


def _finding(base: RunGroup, candidate: RunGroup | None, threshold: float, decision: Decision) -> Finding:
    rates = [geometric_mean(side.rates) if side and side.rates else None for side in (base, candidate)]
    change = rates[1] / rates[0] - 1 if rates[0] is not None and rates[1] is not None else None
    return Finding(
        title=base.title,
        config_key=base.config_key,
        verdict=decision.verdict,
        reason=decision.reason,
        threshold=threshold,
        change=change if decision.change is None else decision.change,
        change_low=decision.change_low,
        change_high=decision.change_high,
        smallest_drop=decision.smallest_drop,
        base_images_per_sec=rates[0],
        candidate_images_per_sec=rates[1],
        base_rounds=len(base.rates),
        candidate_rounds=len(candidate.rates) if candidate else 0,
    )


def _how_it_ended(side: RunGroup) -> str:
    """Returns the reason of an invalid round; of a failed one, if there is any."""
    ended = [*side.failures, *(record for record in side.records if rounds.rate(record) is None)]
    return rounds.why_failed(ended[0])


def _records(groups: Mapping[Key, RunGroup]) -> list[Record]:
    return [record for side in groups.values() for record in side.records]


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


def _note_on_separate_rounds(titles: Sequence[str]) -> Iterable[str]:
    if titles:
        yield (
            f"Rounds were not interleaved ({listed(titles)}), so a drift of the machine would look like a change. "
            "The verb `ab` interleaves them."
        )
