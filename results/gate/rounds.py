"""Records as rounds: which runs of a configuration on some hardware count, which failed, and their sessions."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from results.record import Kind, Record, Status, key_of
from results.summary import Row, grouped, summarize

# config_key and hardware_key.
Key = tuple[str, str]


def failures(row: Row) -> list[Record]:
    """Returns the records of runs that crashed, hung, ran out of memory or had invalid numbers."""
    return [record for record in row.records if record.rate is None and is_evidence(record)]


def is_evidence(record: Record) -> bool:
    """Returns whether a run says something about its build: it was neither refused nor stopped by the user."""
    return record.status not in (Status.SKIPPED, Status.INTERRUPTED)


def why_failed(record: Record) -> str:
    """Returns how a failed run ended, with its reason."""
    if record.status is Status.OK:
        return f"invalid: its rate is {record.derived.images_per_sec}."
    return f"{record.status}: {record.reason}" if record.reason else str(record.status)


def notes_on_interleaving(records: Iterable[Record]) -> list[str]:
    """Returns a warning if some of the valid runs interleaved their steps with another run, and some ran alone."""
    if len({record.is_interleaved for record in records if record.rate is not None}) < 2:
        return []
    return [
        "Some runs interleaved their steps with another run, and some ran alone. Interleaved runs begin each time "
        "slice with cold caches, so the difference would look like a change."
    ]


def completed(*sides: Sequence[Record]) -> list[list[Record]]:
    """Returns the records of each side; a run that was killed has the key of the data set that it read.

    Only the run itself knows the data set, and another process stores the record of one that was killed.
    """
    stated = [record for record in itertools.chain(*sides) if record.config.get("data_set")]
    keys = {record.identity.config_key for record in stated}
    data_sets = {str(record.config["data_set"]) for record in stated}
    return [[_completed(record, data_sets, keys) for record in side] for side in sides]


def _completed(record: Record, data_sets: Collection[str], keys: Collection[str]) -> Record:
    if record.status is Status.OK or record.config.get("data_set") or not record.config.get("input"):
        return record
    fields = {name: value for name, value in record.config.items() if name not in record.config_not_in_key}
    own = next((key for data_set in data_sets if (key := key_of({**fields, "data_set": data_set})) in keys), None)
    return record if own is None else replace(record, identity=replace(record.identity, config_key=own))


def group(records: Iterable[Record]) -> dict[Key, Row]:
    """Returns the runs of each configuration and hardware, in the order of their first records.

    A row has its runs in the order in which they ended, of whatever software, and its title; nothing is summed up.
    """
    runs = (record for record in records if record.kind is Kind.RUN)
    groups = grouped(runs, lambda record: (record.identity.config_key, record.identity.hardware_key))
    # One record of each is enough to tell them apart, so that each becomes a row of its own. The software of one is not
    # that of all.
    firsts = (members[0] for members in groups.values())
    rows = summarize(replace(first, identity=replace(first.identity, software_key="")) for first in firsts)
    return {
        key: Row(records=sorted(members, key=lambda record: record.ended), distinct=row.distinct)
        for (key, members), row in zip(groups.items(), rows, strict=True)
    }


def pairs(base: Sequence[Record], candidate: Sequence[Record]) -> list[tuple[float, float]] | None:
    """Returns the rates of interleaved rounds, base and candidate of each pair; None if they were not interleaved.

    Both sides are in the order in which they ended. Rounds are interleaved if time cuts the runs into blocks of one run
    of each side, in either order; the last run may lack its partner. A pair with an invalid run is left out. Times are
    those of ends, in seconds: runs of different blocks that end in the same second count as ordered only if both sides
    name a common session.
    """
    if abs(len(base) - len(candidate)) > 1:
        return None
    first_ids, second_ids = ({record.identity.session_id for record in side} for side in (base, candidate))
    may_tie = bool(first_ids & second_ids - {""})
    blocks = list(itertools.zip_longest(base, candidate))
    times = [[record.ended for record in block if record is not None] for block in blocks]
    for earlier, later in itertools.pairwise(times):
        if max(earlier) > min(later) or (max(earlier) == min(later) and not may_tie):
            return None
    rates = [(first.rate, second.rate) for first, second in blocks if first is not None and second is not None]
    return [(first, second) for first, second in rates if first is not None and second is not None]


@dataclasses.dataclass(frozen=True)
class Session:
    """Valid rounds of one configuration on equal hardware, in the order in which they ended; at least one."""

    records: Sequence[Record]

    @property
    def images_per_sec(self) -> float:
        """Returns the median over the rounds."""
        return statistics.median(rate for record in self.records if (rate := record.rate) is not None)

    @property
    def date(self) -> str:
        """Returns when the first round ended, in UTC, to the minute."""
        return self.records[0].minute

    @property
    def commit(self) -> str:
        """Returns the suite's short commit; empty if unknown."""
        commit = self.records[0].identity.suite_commit or ""
        return commit.rstrip("+")[:7] + "+" * commit.endswith("+")

    @property
    def tensorflow_version(self) -> str:
        """Returns TensorFlow's version; empty if unknown."""
        return str(self.records[0].environment.get("tensorflow_version") or "")


def session_of(record: Record) -> str:
    """Returns the session id of a run; without one, its run id."""
    return record.identity.session_id or record.identity.run_id


def sessions(records: Iterable[Record]) -> list[Session]:
    """Returns the sessions of one configuration in the order of time, without records that `why_not` rejects."""
    valid = [record for record in records if why_not(record) is None]
    in_order = sorted(valid, key=lambda record: record.ended)
    return [Session(members) for members in grouped(in_order, session_of).values()]


def why_not(record: Record) -> str | None:
    """Returns why a record cannot be a round of a session, or None if it can."""
    if record.kind is not Kind.RUN:
        return f"it is of kind {record.kind}, and only runs have a rate to compare"
    if record.status is not Status.OK:
        return f"its status is {record.status}, and only ok runs have a valid rate"
    return None if record.rate is not None else f"its rate is {record.derived.images_per_sec}"
