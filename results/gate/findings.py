"""The gate's result for one configuration, and for all of them together."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec

from results.intervals import Interval
from results.measurement import Count
from results.record import Record
from results.summary import Row

# Images per second, and the number of valid rounds.
Rates = tuple[float | None, int]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class Verdict(enum.StrEnum):
    """How a configuration's rate changed; the worst first."""

    REGRESSED = "regressed"
    FAILED = "failed"
    MISSING = "missing"
    INCONCLUSIVE = "inconclusive"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One configuration, base against candidate.

    Attributes:
        title: model, devices, batch, variable manager, and what else differs from other configurations.
        name: the same without the others, and the keys of machine and configuration: it stays the same next time.
        config_key: of the records; together with the hardware it decides which runs may be compared.
        verdict: how the rate changed.
        reason: why, in a sentence or two, with the numbers that decided.
        threshold: a drop of at least this share matters, such as 0.05.
        change: the candidate's rate over the base's, less 1; -0.07 is 7 % slower. None if a side has no rate.
        change_low: lower end of the 95 % interval of `change`; None from fewer than two rounds.
        change_high: upper end of it.
        smallest_drop: the smallest true drop, as a positive share, that would be called regressed in 95 % of trials
            with this noise and as many rounds; None if the noise is not known.
        base_images_per_sec: geometric mean over the base's rounds; of stored sessions, their median.
        candidate_images_per_sec: geometric mean over the candidate's rounds; against stored sessions, their median.
        base_rounds: valid rounds of the base.
        candidate_rounds: valid rounds of the candidate.
    """

    title: str
    name: str
    config_key: str
    verdict: Verdict
    reason: str
    threshold: Annotated[float, msgspec.Meta(gt=0)]
    change: float | None
    change_low: float | None
    change_high: float | None
    smallest_drop: _Amount | None
    base_images_per_sec: _Amount | None
    candidate_images_per_sec: _Amount | None
    base_rounds: Count
    candidate_rounds: Count


def lasting_name(records: Sequence[Record]) -> str:
    """Returns a name of a configuration's records that depends on no other records, for a history that others keep."""
    identity, is_interleaved = records[0].identity, any(record.is_interleaved for record in records)
    alone = Row(records=records, distinct={"steps": "interleaved"} if is_interleaved else {}).title
    return f"{alone}, machine {identity.hardware_key[:6]} ({identity.config_key})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The result for the rounds of one configuration.

    Attributes:
        verdict: any.
        reason: why, with the numbers that decided.
        is_suspect: a change was seen, and only its repetition by fresh rounds is missing.
        change: the candidate's rate over the base's, less 1; its bounds are unknown from fewer than two rounds, and all
            of it is None without rounds.
        smallest_drop: as in `Finding`.
    """

    verdict: Verdict
    reason: str
    is_suspect: bool = False
    change: Interval | None = None
    smallest_drop: float | None = None

    def finding(self, title: str, runs: Sequence[Record], threshold: float, base: Rates, candidate: Rates) -> Finding:
        """Returns the finding on a configuration with these runs. A side is its mean or median rate and its rounds."""
        low, high = self.change.bounds if self.change else (None, None)
        return Finding(
            title=title,
            name=lasting_name(runs),
            config_key=runs[0].identity.config_key,
            verdict=self.verdict,
            reason=self.reason,
            threshold=threshold,
            change=self.change.value if self.change else None,
            change_low=low,
            change_high=high,
            smallest_drop=self.smallest_drop,
            base_images_per_sec=base[0],
            candidate_images_per_sec=candidate[0],
            base_rounds=base[1],
            candidate_rounds=candidate[1],
        )


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a comparison: the user's name for it (a file, a revision), and its software in words."""

    name: str
    software: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """All configurations of a comparison.

    Attributes:
        base: what is compared with.
        candidate: what is judged.
        hardware: of both, in words.
        findings: one per configuration, in the order of the base's records.
        notes: warnings for the reader, such as that rounds were not interleaved.
    """

    base: Side
    candidate: Side
    hardware: str
    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        """Returns how many configurations have each verdict."""
        number = Counter(finding.verdict for finding in self.findings)
        return {verdict: number[verdict] for verdict in Verdict}

    @property
    def has_regressed(self) -> bool:
        """Returns whether a rate dropped, or a configuration failed that the base could run."""
        return any(finding.verdict in (Verdict.REGRESSED, Verdict.FAILED) for finding in self.findings)

    @property
    def is_undecided(self) -> bool:
        """Returns whether a configuration could not be judged."""
        return any(finding.verdict in (Verdict.INCONCLUSIVE, Verdict.MISSING) for finding in self.findings)

    @property
    def outcome(self) -> str:
        """Returns "regressed", "undecided" (also if nothing was compared) or "passed"."""
        if self.has_regressed:
            return "regressed"
        return "undecided" if self.is_undecided or not self.findings else "passed"
