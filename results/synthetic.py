"""What real data cost: a run against the same run with synthetic images, where the results hold one."""

from __future__ import annotations

from pathlib import Path

from results.record import Kind, Record, Status
from results.siblings import DATA, Siblings
from results.summary import summarize

_OF_A_SYNTHETIC_RUN = b'"data_name":"synthetic"'


def synthetic_ratio(record: Record, results: Path) -> float | None:
    """Returns the record's rate over that of its synthetic siblings; None if there is none, or no rate.

    Args:
        record: of a run.
        results: a file of records. Only those of synthetic runs are looked at.
    """
    rate = record.derived.images_per_sec
    if rate is None or record.kind is not Kind.RUN or record.status is not Status.OK or not results.exists():
        return None
    if record.config.get("data_name") == "synthetic":
        return None
    others = []
    with results.open("rb") as lines:
        for line in lines:
            if _OF_A_SYNTHETIC_RUN in line:
                try:
                    others.append(Record.from_json(line))
                except ValueError:
                    continue  # `report` warns of such lines
    rows = summarize([record, *others])
    found = Siblings(rows).of(rows[0], DATA, {"data_name": "synthetic"})
    return None if found is None else rate / found.rate
