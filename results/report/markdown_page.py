"""The report as one Markdown file, and its first sentence."""

from __future__ import annotations

from collections.abc import Sequence

from results.record import Record, Status
from results.report import headline
from results.report.anomalies import title
from results.report.side_tables import SideTable
from results.summary import Row
from results.text import counted, markdown

TITLE = "CNN training benchmark"


def text(
    rows: Sequence[Row],
    *,
    summary: str,
    notes: Sequence[str],
    tables: Sequence[SideTable],
    pictures: Sequence[tuple[str, str, str]] = (),
) -> str:
    """Returns the page; a picture is a title, the address of a file, and a sentence on how to read it."""
    lines = [f"# {TITLE}", "", summary, "", "## Results", "", *headline.table(rows).markdown(), ""]
    if notes:
        lines += ["## Anomalies and warnings", "", *(f"- {markdown(note)}" for note in notes), ""]
    for name, address, reading in pictures:
        lines += [f"## {name}", "", f"![{name}]({address})", "", reading, ""]
    for table in tables:
        lines += table.markdown()
    return "\n".join(lines) + "\n"


def summary(records: Sequence[Record], rows: Sequence[Row]) -> str:
    """Returns the numbers of records and the fastest row, in words."""
    valid = sum(record.status is Status.OK for record in records)
    machines = len({record.identity.hardware_key for record in records})
    text = (
        f"{len(records)} records of {len(rows)} configurations on {counted(machines, 'machine')}; {valid} valid, "
        f"{len(records) - valid} not."
    )
    best = max((row for row in rows if row.images_per_sec is not None), key=lambda row: row.rate, default=None)
    return text if best is None else f"{text} Fastest: {title(best)} with {best.rate:.2f} images/s."
