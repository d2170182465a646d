"""What a report says about records, and how it says it in Markdown."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from results.record import Record, Status
from results.report import headline, published
from results.report.anomalies import anomalies, title, warnings_of
from results.report.side_tables import SideTable, side_tables
from results.summary import Row, summarize
from results.text import counted, markdown

TITLE = "CNN training benchmark"


@dataclasses.dataclass(frozen=True)
class Report:
    """The contents of a report on records; `against` are tables of figures, of which those of others are compared."""

    records: Sequence[Record]
    against: Sequence[published.FigureTable] = ()

    @functools.cached_property
    def rows(self) -> list[Row]:
        """A row per configuration."""
        return summarize(self.records)

    @functools.cached_property
    def others(self) -> list[published.FigureTable]:
        """The tables of figures, without those of the machines that are reported."""
        return [published.of_others(table, self.records) for table in self.against]

    @property
    def problems(self) -> list[str]:
        """Sentences on what could not be read of the figures."""
        return [problem for table in self.others for problem in table.problems]

    @functools.cached_property
    def notes(self) -> list[str]:
        """Sentences on what could not be compared or read, on anomalies and on warnings."""
        unmatched = [why for table in self.others if (why := published.why_none(self.rows, table))]
        return [*unmatched, *self.problems, *anomalies(self.rows), *warnings_of(self.records)]

    @functools.cached_property
    def tables(self) -> list[SideTable]:
        """The tables below the headline that are not empty."""
        return side_tables(self.records, self.rows, self.others)

    @property
    def lines(self) -> list[str]:
        """The headline table for a terminal, and where rows stand among other people's figures."""
        standings = [f"{name}: {standing}" for name, standing in published.standings(self.rows, self.others)]
        return [*headline.lines(self.rows), "", *standings]

    @property
    def summary(self) -> str:
        """The numbers of records and the fastest row, in words."""
        valid = sum(record.status is Status.OK for record in self.records)
        machines = len({record.identity.hardware_key for record in self.records})
        text = (
            f"{len(self.records)} records of {len(self.rows)} configurations on {counted(machines, 'machine')}; "
            f"{valid} valid, {len(self.records) - valid} not."
        )
        rated = [row for row in self.rows if row.images_per_sec is not None]
        best = max(rated, key=lambda row: row.rate, default=None)
        return text if best is None else f"{text} Fastest: {title(best)} with {best.rate:.2f} images/s."

    def markdown(self, pictures: Sequence[tuple[str, str, str]] = ()) -> str:
        """Returns a page; a picture is a title, the address of a file, and a sentence on how to read it."""
        lines = [f"# {TITLE}", "", self.summary, "", "## Results", "", *headline.table(self.rows).markdown(), ""]
        if self.notes:
            lines += ["## Anomalies and warnings", "", *(f"- {markdown(note)}" for note in self.notes), ""]
        for name, address, reading in pictures:
            lines += [f"## {name}", "", f"![{name}]({address})", "", reading, ""]
        for table in self.tables:
            lines += table.markdown()
        return "\n".join(lines) + "\n"
