"""One configuration of an A/B comparison: takes pairs of rounds until they decide. No TensorFlow."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.regression.rounds import Pair
from benchmarks.sweep.grid import Cell
from benchmarks.sweep.progress import in_few_words, what_is_run
from results.gate.decision import Decision
from results.gate.findings import Finding, Verdict
from results.gate.rounds import rate, why_failed
from results.gate.trial import Trial
from results.record import Record, Status
from results.report.anomalies import title
from results.summary import summarize


class Configuration:
    """What is known of one configuration.

    Args:
        cell: what is run.
        threshold_of: returns the share that matters for a record's configuration and machine.
        make_trial: makes a trial with that threshold.
    """

    def __init__(
        self, cell: Cell, threshold_of: Callable[[Record], float], make_trial: Callable[[float], Trial]
    ) -> None:
        self.cell = cell
        self.pairs: list[Pair] = []
        self._threshold_of = threshold_of
        self._make_trial = make_trial
        self._trial: Trial | None = None
        self._failure: tuple[Verdict, str] | None = None

    @property
    def is_over(self) -> bool:
        """Returns whether no further round is needed."""
        return self._failure is not None or (self._trial is not None and self._trial.is_over)

    @property
    def refusal(self) -> str:
        """Returns why this suite and both sides refuse to run this at all; empty if one of them does not."""
        if self.cell.config is not None or not self.pairs:
            return ""
        first = self.pairs[0]
        return first.base.reason if first.base.status is first.candidate.status is Status.SKIPPED else ""

    @property
    def what(self) -> str:
        """Returns what is run, in few words: as the sides understand it, whose words may have flags of their own."""
        last = (self.pairs[-1].base, self.pairs[-1].candidate) if self.pairs and self.pairs[-1].rates else ()
        return " against ".join(dict.fromkeys(in_few_words(record.config) for record in last)) or what_is_run(self.cell)

    def take(self, pair: Pair) -> str:
        """Takes a pair of rounds, and returns where the configuration stands, in words."""
        self.pairs.append(pair)
        number, rates = len(self.pairs), pair.rates
        if rates is None:
            verdict, who, record = (
                (Verdict.FAILED, "candidate", pair.candidate)
                if rate(pair.base) is not None
                else (Verdict.INCONCLUSIVE, "base", pair.base)
            )
            self._failure = verdict, f"The {who} did not run in round {number}: {why_failed(record)}"
            return self._failure[1]
        if self._trial is None:
            self._trial = self._make_trial(self._threshold_of(pair.base))
        self._trial.add(*rates)
        return f"base {rates[0]:.1f}, candidate {rates[1]:.1f} images/s; {self._trial.says}"

    def finding(self, words: str) -> Finding:
        """Returns what came of it, under that title."""
        rates = [pair.rates for pair in self.pairs if pair.rates]
        first = self.pairs[0].base
        decision = (
            self._trial.decision() if self._trial else Decision(verdict=Verdict.INCONCLUSIVE, reason="", rounds=0)
        )
        verdict, reason = self._failure or (decision.verdict, decision.reason)
        base, candidate = zip(*rates, strict=True) if rates else ((), ())
        return Finding(
            title=words,
            config_key=first.identity.config_key,
            verdict=verdict,
            reason=reason,
            threshold=self._threshold_of(first),
            change=decision.change,
            change_low=decision.change_low,
            change_high=decision.change_high,
            smallest_drop=decision.smallest_drop,
            base_images_per_sec=statistics.geometric_mean(base) if base else None,
            candidate_images_per_sec=statistics.geometric_mean(candidate) if candidate else None,
            base_rounds=len(base),
            candidate_rounds=len(candidate),
        )


def titles(configurations: Sequence[Configuration]) -> list[str]:
    """Returns what each configuration is, in few words that tell it from the others."""
    firsts = [configuration.pairs[0].base for configuration in configurations]
    found = titles_by_run(firsts)
    return [
        found[first.identity.run_id] if first.config_aside else what_is_run(configuration.cell)
        for first, configuration in zip(firsts, configurations, strict=True)
    ]


def titles_by_run(records: Sequence[Record]) -> dict[str, str]:
    """Returns what each record is of, in few words that tell it from the others, by run id."""
    return {record.identity.run_id: title(row) for row in summarize(records) for record in row.records}
