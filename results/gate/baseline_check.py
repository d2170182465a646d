"""Checks today's records against the stored baselines, configuration by configuration.

Is today's session slower than the stored ones? Medians decide, so that a few odd sessions have little influence.
docs/background/gate-statistics.md has the rule with its formulas and error rates;
tests/results/gate/test_baseline_check.py checks the rates. The factor n / (n - 0.8) of the noise corrects that the MAD
of few values is too small (Croux and Rousseeuw 1992, for n > 9). The MAD alone does not see tails: without the largest
distance, 4 % instead of 1.7 % of unchanged sessions with heavy tails are called regressed. 0.83 and 4 were chosen by
simulation, for error rates below 1 % in normal noise.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from results.environment import hardware_in_words, software_in_words
from results.gate import rounds
from results.gate.comparison import UnlikeError, differing_in, notes_on_differences, refuse_new_hardware
from results.gate.decision import (
    BOUND_CONFIDENCE,
    CONFIDENCE,
    POWER,
    QUIET_THRESHOLD,
    Evidence,
    Reasons,
    decide,
    halves,
    in_words,
    log_threshold,
    supported_threshold,
)
from results.gate.findings import Decision, Finding, Findings, Side, Verdict
from results.gate.rounds import Key, Session, failures, session_of, sessions
from results.gate.session_history import change_points
from results.intervals import Interval, t_quantile
from results.record import Record, Status
from results.step_statistics import MAD_TO_SIGMA
from results.summary import Row
from results.text import counted, first_few

MOST_SESSIONS = 20
FEWEST_SESSIONS = 5
# Equal sessions on a quiet machine differ by so much, and a few of them may agree by chance.
LEAST_NOISE = 0.005
_STUDENT_SHARE = 0.83
_STRAY = 4.0
_REPEATED_SHARE = 0.5


def check(
    today: Sequence[Record], stored: Sequence[Record], names: tuple[str, str], threshold: float | None
) -> Findings:
    """Judges today's runs by the stored sessions of the same configuration and hardware.

    Of today's records, sessions that are stored, or older than the stored ones, are not judged. If there are no others,
    the latest sessions are judged by the earlier ones. A configuration that the compared sessions ran, and today's did
    not, is missing. `names` are today's records and the baselines in messages. The default threshold is
    5 %, or twice the noise of the stored sessions.

    Raises:
        UnlikeError: there are no runs, or no baselines of their hardware.
    """
    today_name, stored_name = names
    mine, theirs = map(rounds.group, rounds.completed(today, stored))
    if not mine:
        raise UnlikeError(f"There is no record of a run in {today_name}. Name a file that `run` or `sweep` wrote.")
    findings: list[Finding] = []
    bases: list[Session] = []
    candidates: dict[Key, list[Record]] = {}
    with_last: list[tuple[Sequence[Record], Sequence[Record]]] = []
    notes: list[str] = []
    new = _new_sessions(mine, theirs) or _latest_sessions(mine)
    for key, of_file in mine.items():
        judged = [record for record in of_file.records if session_of(record) in new]
        if judged:
            history = _history(theirs.get(key), new)
            findings.append(_finding(key, of_file.title, judged, history, threshold))
            bases += history
            candidates[key] = judged
            with_last += [(session.records, judged) for session in history[-1:]]
            notes += _note_on_levels(findings[-1], history)
    hardware = {key[1]: hardware_in_words(group.records[0]) for key, group in mine.items()}
    of_today = [*itertools.chain.from_iterable(candidates.values())]
    refuse_new_hardware(of_today, stored, stored_name)
    notes += notes_on_differences(with_last, ("the last stored session", "today's runs"))
    notes += rounds.notes_on_interleaving([*of_today, *stored])
    ids, earlier = {record.identity.run_id for record in today}, [theirs[key].records for key in mine if key in theirs]
    judged_ids = set(map(session_of, of_today))
    again = [
        run for run in itertools.chain(*earlier) if session_of(run) in judged_ids and run.identity.run_id not in ids
    ]
    if again:
        shared = first_few(sorted({str(session_of(run)) for run in again}), ", ")
        what = f"{counted(len(again), 'stored run')} with a session_id of today's runs ({shared})"
        notes.append(f"Not compared, as a part of today's session: {what}. Give each session its own id, or none.")
    compared = {session_of(session.records[0]) for session in bases}
    without_runs, with_old_runs = list[str](), list[str]()
    for key, group in theirs.items():
        if key in candidates or key[1] not in hardware:
            continue
        history = _history(group, new)
        title = group.title + ("" if key in mine else differing_in(group, mine.values(), names))
        if compared & {session_of(session.records[0]) for session in history}:
            findings.append(_finding(key, title, [], history, threshold))
        else:
            (with_old_runs if key in mine else without_runs).append(title)
    if without_runs:
        notes.append(f"Stored configurations without a run in {today_name}: {'; '.join(without_runs)}.")
    if with_old_runs:
        notes.append(f"Not judged, since their runs in {today_name} are stored or older: {'; '.join(with_old_runs)}.")
    return Findings(
        base=_side(stored_name, bases),
        candidate=Side(name=today_name, software=software_in_words(of_today)),
        hardware="; ".join(hardware.values()),
        findings=findings,
        notes=notes,
    )


def _new_sessions(today: Mapping[Key, Row], stored: Mapping[Key, Row]) -> set[str]:
    """Returns the sessions of today's records of which nothing was stored or judged before."""
    newest: dict[str, float] = {}
    for (_, hardware_key), of_store in stored.items():
        newest[hardware_key] = max(of_store.records[-1].ended, newest.get(hardware_key, -math.inf))
    new: set[str] = set()
    for key, of_file in today.items():
        # Failures are never stored: they were judged when they were new. Valid runs before the first one were pruned.
        last = newest.get(key[1], -math.inf)
        first = stored[key].records[0].ended if key in stored else last
        limits = ((record, first if record.status is Status.OK else last) for record in of_file.records)
        new |= {session_of(record) for record, limit in limits if record.ended > limit}
    return new - {session_of(record) for of_store in stored.values() for record in of_store.records}


def _latest_sessions(of_file: Mapping[Key, Row]) -> set[str]:
    """Returns the last sessions of the configurations, without those after which one of their configurations ran."""
    last = {key: session_of(group.records[-1]) for key, group in of_file.items()}
    earlier = {
        of_run for key, group in of_file.items() for run in group.records if (of_run := session_of(run)) != last[key]
    }
    return {*last.values()} - earlier or {*last.values()}  # of two sweeps at once, each may have run after the other


def _history(of_store: Row | None, of_today: Collection[str]) -> list[Session]:
    """Returns the stored sessions to judge by."""
    stored = sessions(of_store.records if of_store else [])
    return [session for session in stored if session_of(session.records[0]) not in of_today][-MOST_SESSIONS:]


def _finding(
    key: Key, title: str, records: Sequence[Record], history: Sequence[Session], threshold: float | None
) -> Finding:
    today = Row(records=records)
    limits = SessionLimits([session.images_per_sec for session in history])
    limit = limits.threshold if threshold is None else threshold
    if today.rates:
        decision = limits.judge(today.rates, threshold=limit)
    else:
        why = "To check only a part of what is stored, use --where; if this configuration is no longer wanted, remove "
        why += f"{key[1]}/{key[0]}.jsonl."
        reason = f"Today has no valid run of it. {rounds.why_failed(records[0]) if records else why}"
        decision = Decision(verdict=Verdict.MISSING, reason=reason)
    if history and (failed := failures(today)):
        reason = f"{len(failed)} of today's {len(today.records)} runs failed where {len(history)} stored sessions "
        reason += f"ran. {rounds.why_failed(failed[0])}"
        decision = dataclasses.replace(decision, verdict=Verdict.FAILED, reason=reason)
    stored_rounds = sum(len(session.records) for session in history)
    base = (math.exp(limits.centre) if history else None, stored_rounds)
    candidate = (median(today.rates) if today.rates else None, len(today.rates))
    return decision.finding(title, records or history[0].records, limit, base, candidate)


def _note_on_levels(finding: Finding, history: Sequence[Session]) -> Iterable[str]:
    """Yields a note if the stored sessions had several levels, and that may be why no drop was found."""
    if finding.candidate_images_per_sec is None or finding.verdict is Verdict.REGRESSED:
        return
    rates = [session.images_per_sec for session in history]
    begin = max(change_points(rates), default=0)
    since = finding.candidate_images_per_sec / median(rates[begin:]) - 1 if begin else 0
    if begin and (finding.verdict is Verdict.INCONCLUSIVE or since <= -finding.threshold):
        keep = max(len(rates) - begin, FEWEST_SESSIONS)
        lacking = keep - (len(rates) - begin)
        first = f"store {counted(lacking, 'more session')} of it; then " if lacking else ""
        yield (
            f"{finding.title}: its rate changed with the session of {history[begin].date}, which counts as noise. "
            f"Today's runs are {in_words(since)} than the sessions since. If the new rate is expected, {first}`track "
            f"prune --keep={keep}` keeps only those, of every configuration."
        )


def _side(name: str, history: Sequence[Session]) -> Side:
    if not history:
        return Side(name=name, software="")
    first, last = (choose(history, key=lambda session: session.date) for choose in (min, max))
    return Side(
        name=f"{name}, {first.date[:10]} to {last.date[:10]}", software=f"last {software_in_words(last.records[-1:])}"
    )


class SessionLimits:
    """The limits that the stored sessions of one configuration on one machine set for a new one.

    Args:
        rates: images per second of each session, in the order of time.

    Attributes:
        sessions: how many there are.
        is_enough: whether there are enough sessions to separate noise from change.
        centre: median of the log rates; NaN without sessions.
        noise: standard deviation of a session's log rate; only if `is_enough`.
        bound: distance from the centre that a new session must exceed to have changed; only if `is_enough`.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        logs = [math.log(rate) for rate in rates]
        self.sessions = len(logs)
        self.is_enough = self.sessions >= FEWEST_SESSIONS
        self.centre = median(logs) if logs else math.nan
        if self.is_enough:
            distances = [abs(log - self.centre) for log in logs]
            sigma = MAD_TO_SIGMA * median(distances) * self.sessions / (self.sessions - 0.8)
            self.noise = max(LEAST_NOISE, sigma)
            self.bound = max(
                _STUDENT_SHARE * t_quantile(BOUND_CONFIDENCE, self.sessions - 1) * self.noise,
                (1 + _STRAY / (self.sessions - 1)) * max(distances),
            )

    @property
    def threshold(self) -> float:
        """Returns the default threshold, as a share."""
        return supported_threshold(self.noise) if self.is_enough else QUIET_THRESHOLD

    def judge(self, today: Sequence[float], *, threshold: float) -> Decision:
        """Judges today's rounds, at least one, by their images per second in the order in which they ran.

        The threshold is a share, such as 0.05.
        """
        limit = log_threshold(threshold)
        logs = [math.log(rate) - self.centre for rate in today]
        if not self.is_enough:
            return self._too_few(logs)
        change = median(logs)
        repeats = [median(half) for half in halves(logs)] if len(logs) > 1 else []
        error = self.noise * math.sqrt(1 + math.pi / (2 * self.sessions))  # of a session, and of a median of n
        # Student's quantile for a noise from the MAD, which is worth about half as many values (simulated).
        degrees = (self.sessions - 1) / 2
        half_width = t_quantile((1 + CONFIDENCE) / 2, degrees) * error
        smallest = -math.expm1(-(max(limit, self.bound) + t_quantile(POWER, degrees) * error))
        evidence = Evidence(
            change=change,
            half_width=half_width,
            bound=self.bound,
            margin=half_width,
            repeats=repeats,
            least_repeat=_REPEATED_SHARE * limit,
            smallest_drop=smallest,
        )
        subject = f"Today's {counted(len(logs), 'run')} {'are' if len(logs) > 1 else 'is'}"
        seen = f"{subject} {in_words(math.expm1(change))} than the median of {self.sessions} stored sessions"
        bound, share = in_words(math.expm1(math.copysign(self.bound, change))), f"{100 * threshold:.3g} %"
        medians = " and ".join(in_words(math.expm1(half)) for half in repeats)
        reasons = Reasons(
            repeated=f"{seen}, which is beyond their 99 % bound ({bound}), and the earlier and the later half of the "
            f"runs show it: {medians}. The threshold is {share}.",
            unchanged=f"{seen}; with 95 % confidence it has not changed by the threshold of {share}.",
            unclear=f"{seen}, which neither shows nor excludes a change by the threshold of {share}: sessions differ "
            f"by {100 * self.noise:.1f} % here. A drop of {100 * smallest:.1f} % or more would be seen.",
            not_repeated=f"{seen}, but the earlier and the later half of the runs do not agree on it: {medians}. The "
            f"threshold is {share}."
            if repeats
            else f"{seen}, but a single run is not repeated. Run it again with 3 repeats or more. The threshold is "
            f"{share}.",
        )
        return decide(evidence, threshold, reasons)

    def _too_few(self, logs: Sequence[float]) -> Decision:
        reason = (
            f"There {'is' if self.sessions == 1 else 'are'} {counted(self.sessions, 'other stored session')} of this "
            f"configuration on this hardware, and {FEWEST_SESSIONS} are needed to separate a change from noise: "
            f"store {FEWEST_SESSIONS - self.sessions} more."
        )
        change = Interval(math.expm1(median(logs))) if self.sessions else None
        return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason, change=change)
