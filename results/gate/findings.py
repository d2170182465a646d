"""What the gate says of one configuration, and of all of them together."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class Verdict(enum.StrEnum):
    """What became of a configuration's rate."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One configuration, base against candidate.

    Attributes:
        title: what was run, in few words: model, devices, batch, variable manager, and what else tells it from others.
        config_key: of the records; with the hardware it says which runs may be compared.
        verdict: what became of it.
        reason: why, in a sentence or two, with the numbers that decided.
        threshold: a drop of at least this share matters, such as 0.05.
        change: the candidate's rate over the base's, less 1; -0.07 is 7 % slower. None if one of them has no rate.
        change_low: lower end of the 95 % interval of `change`; None from fewer than two rounds.
        change_high: upper end of it.
        smallest_drop: the smallest true drop, as a positive share, that would have been called regressed in 95 % of
            trials with this noise and so many rounds; None if the noise is not known.
        base_images_per_sec: geometric mean over the base's rounds; against stored sessions, the median of these.
        candidate_images_per_sec: likewise; the median of today's rounds.
        base_rounds: valid rounds of the base.
        candidate_rounds: likewise.
    """

    title: str
    config_key: str
    verdict: Verdict
    reason: str
    threshold: float
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    smallest_drop: float | None = None
    base_images_per_sec: float | None = None
    candidate_images_per_sec: float | None = None
    base_rounds: int = 0
    candidate_rounds: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """What was compared: a name that the user gave it (a file, a revision), and its software in words."""

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
        notes: sentences that a reader must know, such as that rounds were not interleaved.
    """

    base: Side
    candidate: Side
    hardware: str
    findings: Sequence[Finding]
    notes: Sequence[str] = ()

    @property
    def has_regressed(self) -> bool:
        """Returns whether the gate must be closed: a rate dropped, or what the base could run has failed."""
        return any(finding.verdict in (Verdict.REGRESSED, Verdict.FAILED) for finding in self.findings)

    @property
    def is_undecided(self) -> bool:
        """Returns whether something could not be judged."""
        return any(finding.verdict in (Verdict.INCONCLUSIVE, Verdict.MISSING) for finding in self.findings)
