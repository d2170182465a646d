"""Sessions: rounds of one configuration that were run together, and the one number that they come to."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from gate.rounds import rate
from results.record import Kind, Record, Status


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
