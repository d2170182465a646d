"""Two sets of records, base and candidate, compared configuration by configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from results.gate import rounds
from results.gate.comparability import UnlikeError as UnlikeError
from results.gate.comparability import hardware_in_words, refuse_unlike, software_differences, software_in_words
from results.gate.decision import Decision, judge, judge_apart
from results.gate.findings import Finding, Findings, Side, Verdict
from results.gate.noise import QUIET_THRESHOLD
from results.gate.rounds import Key, Rounds
from results.record import Record

# Of fewer, the noise is hardly known.
FEWEST_ROUNDS = 3
_MOST_TITLES = 5


def compare(
    base: Sequence[Record],
    candidate: Sequence[Record],
    *,
    base_name: str,
    candidate_name: str,
    threshold: float | None,
    thresholds: Mapping[str, float] = {},
) -> Findings:
    """Compares all runs of the candidate with those of the base of equal configuration and hardware.

    Args:
        base: records; those that are not of runs are left out.
        candidate: likewise.
        base_name: what to call it, such as its file or revision.
        candidate_name: likewise.
        threshold: the share by which a rate must drop to matter; None is 0.05.
        thresholds: by `config_key`, instead of that.

    Raises:
        UnlikeError: the hardware differs, no configuration is in both, or a side has no runs.
        ValueError: a threshold is not between 0 and 1.
    """
    names = (base_name, candidate_name)
    mine, others = rounds.group(base), rounds.group(candidate)
    refuse_unlike(mine, others, names)
    usual = QUIET_THRESHOLD if threshold is None else threshold
    findings, apart = [], []
    for key, of_base in mine.items():
        limit, of_candidate = thresholds.get(key[0], usual), others.get(key)
        finding = _without_rates(of_base, of_candidate, limit)
        if finding is None and of_candidate is not None:
            finding, is_paired = _judged(of_base, of_candidate, limit)
            apart += [] if is_paired else [of_base.title]
        findings += [finding] if finding else []
    machines = {key[1]: hardware_in_words(of.records[0]) for key, of in mine.items() if key in others}
    return Findings(
        base=_side(base_name, mine),
        candidate=_side(candidate_name, others),
        hardware="; ".join(machines.values()),
        findings=findings,
        notes=[
            *_notes_on_software(mine, others, names),
            *rounds.notes_on_turns([*_records(mine), *_records(others)]),
            *_notes_on_rounds(mine, others, apart),
        ],
    )


def _without_rates(base: Rounds, candidate: Rounds | None, threshold: float) -> Finding | None:
    """Returns what can be said without looking at rates: a side is missing, or has failed; None if both have run."""
    if candidate is None:
        return _finding(base, candidate, threshold, Verdict.MISSING, "The candidate has no run of it on this hardware.")
    if not base.valid:
        reason = f"The base has no valid round to compare with. {_how_it_ended(base)}"
        return _finding(base, candidate, threshold, Verdict.INCONCLUSIVE, reason)
    failed = candidate.failures
    if failed:
        seen = f"{len(failed)} of {len(candidate.records)} rounds failed"
        if candidate.valid and base.failures:
            reason = f"{seen}, but so did {len(base.failures)} of {len(base.records)} of the base."
            verdict = Verdict.INCONCLUSIVE
        else:
            reason, verdict = f"{seen} where the base ran.", Verdict.FAILED
        return _finding(base, candidate, threshold, verdict, f"{reason} {_how_it_ended(candidate)}")
    if not candidate.valid:
        reason = f"The candidate did not run it. {_how_it_ended(candidate)}"
        return _finding(base, candidate, threshold, Verdict.MISSING, reason)
    return None


def _judged(base: Rounds, candidate: Rounds, threshold: float) -> tuple[Finding, bool]:
    """Returns what the rates say, and whether they were of interleaved rounds, or too few for that to matter."""
    fewest = min(len(base.valid), len(candidate.valid))
    if fewest < FEWEST_ROUNDS:
        reason = (
            f"There are {len(base.valid)} valid rounds of the base and {len(candidate.valid)} of the candidate; "
            f"it takes {FEWEST_ROUNDS} of each to tell a change from noise. Run more rounds."
        )
        return _finding(base, candidate, threshold, Verdict.INCONCLUSIVE, reason), True
    paired = rounds.pairs(base, candidate)
    if paired is not None and len(paired) >= FEWEST_ROUNDS:
        ratios = [math.log(other) - math.log(mine) for mine, other in paired]
        decision = judge(ratios, threshold=threshold, fresh=len(ratios) // 2)
    else:
        logs = [[math.log(rate) for rate in side.images_per_sec] for side in (base, candidate)]
        decision = judge_apart(*logs, threshold=threshold)
    return _finding(base, candidate, threshold, decision.verdict, decision.reason, decision), paired is not None


def _finding(
    base: Rounds,
    candidate: Rounds | None,
    threshold: float,
    verdict: Verdict,
    reason: str,
    decision: Decision | None = None,
) -> Finding:
    rates = (_geometric_mean(base), _geometric_mean(candidate))
    change = rates[1] / rates[0] - 1 if rates[0] is not None and rates[1] is not None else None
    return Finding(
        title=base.title,
        config_key=base.config_key,
        verdict=verdict,
        reason=reason,
        threshold=threshold,
        change=decision.change if decision else change,
        change_low=decision.change_low if decision else None,
        change_high=decision.change_high if decision else None,
        smallest_drop=decision.smallest_drop if decision else None,
        base_images_per_sec=rates[0],
        candidate_images_per_sec=rates[1],
        base_rounds=len(base.valid),
        candidate_rounds=len(candidate.valid) if candidate else 0,
    )


def _geometric_mean(side: Rounds | None) -> float | None:
    rates = side.images_per_sec if side else []
    return math.exp(math.fsum(map(math.log, rates)) / len(rates)) if rates else None


def _how_it_ended(side: Rounds) -> str:
    """Returns the reason of a round that did not count; of a failed one, if there is any."""
    ended = [*side.failures, *(record for record in side.records if rounds.rate(record) is None)]
    return rounds.why_failed(ended[0])


def _side(name: str, groups: Mapping[Key, Rounds]) -> Side:
    return Side(name=name, software=software_in_words(_records(groups)))


def _records(groups: Mapping[Key, Rounds]) -> list[Record]:
    return [record for side in groups.values() for record in side.records]


def _notes_on_software(
    base: Mapping[Key, Rounds], candidate: Mapping[Key, Rounds], names: tuple[str, str]
) -> list[str]:
    notes = []
    sides = [_records(base), _records(candidate)]
    for name, records in zip(names, sides, strict=True):
        softwares = {record.identity.software_key for record in records}
        commits = {(record.identity.suite_version, record.identity.suite_commit) for record in records}
        found = [f"{len(softwares)} sets of software versions"] if len(softwares) > 1 else []
        found += [f"{len(commits)} commits of the suite"] if len(commits) > 1 else []
        if found:
            notes.append(f"{name} mixes {' and '.join(found)}; a difference between them counts as noise.")
    first, second = (records[0] for records in sides)
    if first.identity.software_key != second.identity.software_key:
        differences = software_differences(first, second, names)
        notes += [f"The software differs: {differences}."] if differences else []
    return notes


def _notes_on_rounds(base: Mapping[Key, Rounds], candidate: Mapping[Key, Rounds], apart: Sequence[str]) -> list[str]:
    notes = []
    if apart:
        notes.append(
            f"Rounds were not interleaved ({_listed(apart)}), so a drift of the machine would look like a change. "
            "The verb `ab` interleaves them."
        )
    only = [side.title for key, side in candidate.items() if key not in base]
    return [*notes, *([f"Only the candidate has {_listed(only)}."] if only else [])]


def _listed(titles: Sequence[str]) -> str:
    more = len(titles) - _MOST_TITLES
    return "; ".join([*titles[:_MOST_TITLES], *([f"{more} more"] if more > 0 else [])])
