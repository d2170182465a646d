"""One configuration of an A/B comparison: takes pairs of rounds until they decide. No TensorFlow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.regression.rounds import BASE, CANDIDATE, Pair
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.progress import in_few_words, what_is_run
from results.gate.findings import Finding, Verdict
from results.gate.noise import trial_of
from results.gate.rounds import rate, why_failed
from results.gate.trial import Trial
from results.record import Record, Status
from results.report.anomalies import title
from results.summary import summarize


class ConfigurationTrial:
    """The trial of one configuration.

    Args:
        cell: what is run.
        threshold_of: returns the threshold for a record's configuration and machine.
        max_rounds: pairs after which it ends undecided.
    """

    def __init__(self, cell: Cell, threshold_of: Callable[[Record], float], max_rounds: int) -> None:
        self.cell = cell
        self.pairs: list[Pair] = []
        self._threshold_of = threshold_of
        self._max_rounds = max_rounds
        self._trial: Trial | None = None
        self._failure: tuple[Verdict, str] | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether no further round is needed."""
        return self._failure is not None or (self._trial is not None and self._trial.is_over)

    @property
    def refusal(self) -> str:
        """Returns why this suite and both sides refuse to run this; empty if one of them does not."""
        if self.cell.config is not None or not self.pairs:
            return ""
        first = self.pairs[0]
        return first.base.reason if first.base.status is first.candidate.status is Status.SKIPPED else ""

    @property
    def what(self) -> str:
        """Returns what the sides ran, in few words: their commands may contain flags of their own."""
        last = (self.pairs[-1].base, self.pairs[-1].candidate) if self.pairs and self.pairs[-1].rates else ()
        return " against ".join(dict.fromkeys(in_few_words(record.config) for record in last)) or what_is_run(self.cell)

    def take(self, pair: Pair) -> str:
        """Takes a pair of rounds, and returns the state of the trial in words."""
        self.pairs.append(pair)
        if pair.rates is None:
            base_ran = rate(pair.base) is not None
            side, record = (CANDIDATE, pair.candidate) if base_ran else (BASE, pair.base)
            reason = f"The {side} did not run in round {len(self.pairs)}: {why_failed(record)}"
            self._failure = (Verdict.FAILED if base_ran else Verdict.INCONCLUSIVE), reason
            return reason
        if self._trial is None:
            self._trial = trial_of(self._threshold_of(pair.base), self._max_rounds)
        self._trial.add(*pair.rates)
        return f"base {pair.rates[0]:.1f}, candidate {pair.rates[1]:.1f} images/s; {self._trial.progress}"

    def finding(self, words: str) -> Finding:
        """Returns the result under that title, after at least one pair."""
        first = self.pairs[0].base
        threshold = self._threshold_of(first)
        decision = (self._trial or trial_of(threshold, self._max_rounds)).decision
        verdict, reason = self._failure or (decision.verdict, decision.reason)
        rates = [pair.rates for pair in self.pairs if pair.rates]
        means = [statistics.geometric_mean(side) for side in zip(*rates, strict=True)] or (None, None)
        return Finding(
            title=words,
            config_key=first.identity.config_key,
            verdict=verdict,
            reason=reason,
            threshold=threshold,
            change=decision.change,
            change_low=decision.change_low,
            change_high=decision.change_high,
            smallest_drop=decision.smallest_drop,
            base_images_per_sec=means[0],
            candidate_images_per_sec=means[1],
            base_rounds=len(rates),
            candidate_rounds=len(rates),
        )


def titles(records: Sequence[Record], cells: Sequence[Cell]) -> list[str]:
    """Returns what each record, of one cell each, is of, in few words that differ from the others'."""
    by_run = {record.identity.run_id: title(row) for row in summarize(records) for record in row.records}
    return [
        by_run[record.identity.run_id] if record.config_aside else what_is_run(cell)
        for record, cell in zip(records, cells, strict=True)
    ]
