"""Records as rounds: which runs of a configuration on some hardware count, which failed, and what to call them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence

from results.record import Kind, Record, Status
from results.report.anomalies import title
from results.summary import summarize

# A run that was refused, or that somebody stopped, says nothing of the build.
_SAYS_NOTHING = (Status.SKIPPED, Status.INTERRUPTED)

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds:
    """The runs of one configuration on equal hardware.

    Attributes:
        title: what was run, in few words, and what tells it from the others.
        records: in the order in which they ended; at least one.
    """

    title: str
    records: Sequence[Record]

    @property
    def config_key(self) -> str:
        """Returns the key that all records have."""
        return self.records[0].identity.config_key

    @property
    def valid(self) -> list[Record]:
        """Returns the records whose rate counts."""
        return [record for record in self.records if rate(record) is not None]

    @property
    def images_per_sec(self) -> list[float]:
        """Returns the rates that count."""
        return [found for record in self.records if (found := rate(record)) is not None]

    @property
    def failures(self) -> list[Record]:
        """Returns the records of runs that failed: they crashed, hung, lacked memory, or their numbers were wrong."""
        return [record for record in self.records if rate(record) is None and record.status not in _SAYS_NOTHING]

    @property
    def software_keys(self) -> list[str]:
        """Returns the keys of the software of all records, each once."""
        return list(dict.fromkeys(record.identity.software_key for record in self.records))

    @property
    def session_ids(self) -> list[str]:
        """Returns the sessions of which the records are, each once; runs on their own have none."""
        return list(dict.fromkeys(r.identity.session_id for r in self.records if r.identity.session_id))


def rate(record: Record) -> float | None:
    """Returns a run's images per second, if they count: it ended well, and they are a number above zero."""
    found = record.derived.images_per_sec
    if record.status is not Status.OK or found is None or not math.isfinite(found) or found <= 0:
        return None
    return found


def why_failed(record: Record) -> str:
    """Returns how a failed run ended, with its reason."""
    if record.status is Status.OK:
        return f"invalid: its rate is {record.derived.images_per_sec}, which is none."
    return f"{record.status}: {record.reason}" if record.reason else str(record.status)


def notes_on_turns(records: Iterable[Record]) -> list[str]:
    """Returns what must be said if some runs measured in turn with another, and some on their own."""
    if len({record.in_turn for record in records if rate(record) is not None}) < 2:
        return []
    return [
        "Some runs measured in turn with another one, and began each turn with cold caches, and some on their own: "
        "what these differ by would look like a change."
    ]


def group(records: Iterable[Record]) -> dict[Key, Rounds]:
    """Returns the rounds of each configuration and hardware, under both keys, in the order of their first records."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        if record.kind is Kind.RUN:
            groups.setdefault((record.identity.config_key, record.identity.hardware_key), []).append(record)
    # One record of each is enough to tell them apart, so that each becomes a row of its own.
    rows = summarize(members[0] for members in groups.values())
    return {
        key: Rounds(title=title(row), records=sorted(members, key=lambda record: record.identity.time_utc))
        for (key, members), row in zip(groups.items(), rows, strict=True)
    }


def pairs(base: Rounds, candidate: Rounds) -> list[tuple[float, float]] | None:
    """Returns the rates of interleaved rounds, base and candidate of each pair; None if they were not interleaved.

    They were if time cuts the runs into blocks of one run of each side, whichever comes first in it; the last run may
    be without its partner. A pair with a run that does not count is left out. Times are those of ends, in seconds: runs
    of unlike blocks that end in the same second are taken to be in order only if both sides name a common session.
    """
    if abs(len(base.records) - len(candidate.records)) > 1:
        return None
    may_tie = bool(set(base.session_ids) & set(candidate.session_ids))
    blocks = list(itertools.zip_longest(base.records, candidate.records))
    times = [[record.identity.time_utc for record in block if record is not None] for block in blocks]
    for earlier, later in itertools.pairwise(times):
        if max(earlier) > min(later) or (max(earlier) == min(later) and not may_tie):
            return None
    rates = [(rate(first), rate(second)) for first, second in blocks if first is not None and second is not None]
    return [(first, second) for first, second in rates if first is not None and second is not None]


@dataclasses.dataclass(frozen=True)
class Session:
    """Valid rounds of one configuration on equal hardware, in the order in which they ended; at least one."""

    records: Sequence[Record]

    @property
    def images_per_sec(self) -> float:
        """Returns the median over the rounds."""
        return statistics.median(found for record in self.records if (found := rate(record)) is not None)

    @property
    def date(self) -> str:
        """Returns when the first round ended, in UTC, to the minute."""
        return self.records[0].identity.time_utc[:16].replace("T", " ")

    @property
    def commit(self) -> str:
        """Returns the suite's commit, short; empty if it is not known."""
        commit = self.records[0].identity.suite_commit or ""
        return commit.rstrip("+")[:7] + "+" * commit.endswith("+")

    @property
    def tensorflow_version(self) -> str:
        """Returns TensorFlow's version; empty if it is not known."""
        return str(self.records[0].environment.get("tensorflow_version") or "")

    @property
    def name(self) -> str:
        """Returns what the rounds have in common, see `session_of`."""
        return session_of(self.records[0])


def session_of(record: Record) -> str:
    """Returns the session of a run: its session id, or of a run on its own the run id."""
    return record.identity.session_id or record.identity.run_id


def sessions(records: Iterable[Record]) -> list[Session]:
    """Returns the sessions of one configuration in the order of time; what cannot be a round is left out."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.identity.time_utc):
        if why_not(record) is None:
            groups.setdefault(session_of(record), []).append(record)
    return [Session(group) for group in groups.values()]


def why_not(record: Record) -> str | None:
    """Returns why a record cannot be a round of a session, or None if it can."""
    if record.kind is not Kind.RUN:
        return f"it is of kind {record.kind}, and only runs have a rate to compare"
    if record.status is not Status.OK:
        return f"its status is {record.status}, and only ok runs have a rate to trust"
    return None if rate(record) is not None else f"its rate is {record.derived.images_per_sec}, which is none"
