"""What a report says about records, and how it says it in Markdown."""

from __future__ import annotations

import collections
import dataclasses
import functools
import shlex
from collections.abc import Sequence

from results.environment import differences, hardware_in_words, listed, versions_in_words
from results.record import Kind, Record, flags_of_command
from results.report import headline, published, ranking
from results.report.anomalies import anomalies, warnings_of
from results.report.side_tables import SideTable, side_tables
from results.report.verdict import verdict
from results.summary import Row, grouped, summarize
from results.text import counted, first_few, markdown, markdown_with_code

TITLE = "CNN training benchmark"
# Flags that do not belong to what was measured: where results go, and what a sweep passes to its runs.
_OF_OUTPUT = ("--output_dir", "--output_format", "--session_id")
_KINDS = {Kind.RUN: "run", Kind.ALL_REDUCE: "reduction", Kind.INPUT: "measurement of an input"}


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
        """Sentences on what could not be compared or read, on anomalies and on warnings, each kind once."""
        unmatched = [why for table in self.others if (why := published.why_none(self.rows, table))]
        of_rows = [*_unlike_software(self.rows), *ranking.notes_on_turns(self.rows), *anomalies(self.rows)]
        return [*unmatched, *self.problems, *of_rows, *warnings_of(self.records)]

    @functools.cached_property
    def tables(self) -> list[SideTable]:
        """The tables below the headline that are not empty."""
        return side_tables(self.records, self.rows, self.others)

    @property
    def lines(self) -> list[str]:
        """The verdict and the headline table for a terminal, and where rows stand among other people's figures.

        Without runs, the side tables instead.
        """
        standings = [f"{name}: {standing}" for name, standing in published.standings(self.rows, self.others)]
        if self.rows:
            table = headline.table(self.rows, brief=True).text()
        else:
            table = [line for side in self.tables for line in side.text()]
        return [line for line in (self.status, self.verdict, self.settings) if line] + [*table, "", *standings]

    @functools.cached_property
    def verdict(self) -> str:
        """What the runs show, in a sentence; empty if there are none."""
        return verdict(self.rows) if self.rows else ""

    @property
    def settings(self) -> str:
        """What all runs have in common, in a sentence; empty if there are none."""
        return headline.in_all(self.rows)

    @property
    def status(self) -> str:
        """How many records there are, and how many ended in which way."""
        kinds = collections.Counter(record.kind for record in self.records)
        ends = collections.Counter(record.status for record in self.records)
        counts = [counted(number, _KINDS[kind]) for kind, number in kinds.items()]
        if 1 < len(self.rows) < kinds[Kind.RUN]:
            counts[list(kinds).index(Kind.RUN)] += f" of {len(self.rows)} settings"
        what = " and ".join([", ".join(counts[:-1]), counts[-1]] if len(counts) > 1 else counts)
        warned = sum(bool(record.warnings) for record in self.records)
        said = f", {warned} with warnings" if warned else ""
        return f"{what}: {', '.join(f'{number} {end}' for end, number in ends.items())}{said}."

    @functools.cached_property
    def facts(self) -> list[tuple[str, str]]:
        """The machines, the time, the software and the command of the runs, each by its name."""
        firsts = {record.identity.hardware_key: record for record in self.records}
        times = sorted(record.minute for record in self.records)
        ended = times[-1] if times[-1] == times[0] else times[-1].removeprefix(times[0][:11])
        facts = [
            ("Machine", first_few(list(dict.fromkeys(map(hardware_in_words, firsts.values()))))),
            ("Date", " to ".join(dict.fromkeys((times[0], ended))) + " UTC"),
            ("Software", first_few(list(dict.fromkeys(map(versions_in_words, self.records))))),
            ("Command", command(self.records)),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def head(self) -> list[str]:
        """The beginning of a page of Markdown: the verdict, the facts, the headline table and the notes."""
        lines = [f"# {TITLE}", ""]
        if self.verdict:
            lines += [f"**{markdown(self.verdict)}**", ""]
        lines += [f"- {name}: {markdown(value)}" for name, value in [*self.facts, ("Result", self.status)]]
        if self.rows:
            lines += ["", "## Results", "", *([markdown(self.settings), ""] if self.settings else [])]
            lines += headline.table(self.rows).markdown()
        lines.append("")
        if self.notes:
            lines += ["## Anomalies and warnings", "", *(f"- {markdown(note)}" for note in self.notes), ""]
        return lines

    def markdown(self, pictures: Sequence[tuple[str, str, str]] = (), of_all: str = "") -> str:
        """Returns a page; a picture is a title, the address of a file, and how to read it; `of_all` is on all."""
        lines = [*self.head, *([of_all, ""] if pictures else [])]
        for name, address, reading in pictures:
            title = markdown(name)
            lines += [f"## {title}", "", f"![{title}]({address})", "", markdown_with_code(reading), ""]
        for table in self.tables:
            lines += table.markdown()
        return "\n".join(lines) + "\n"


def _unlike_software(rows: Sequence[Row]) -> list[str]:
    """Returns in which versions the software of rows differs that has the same TensorFlow."""
    versions = {
        f"TensorFlow {name}": {n: value for n, value in row.records[0].environment.items() if n.endswith("_version")}
        for row in rows
        if (name := row.distinct.get("TensorFlow"))
    }
    alike = grouped(versions.items(), lambda pair: str(pair[1].get("tensorflow_version")))
    return [
        f"{listed(unlike)}."
        for (name, mine), *others in alike.values()
        for other, theirs in others
        if (unlike := differences(mine, theirs, (name, other)))
    ]


def command(records: Sequence[Record]) -> str:
    """Returns the command of the records; of several commands, the flags that all have, and `...`."""
    commands = [
        [flag for flag in flags_of_command(words) if flag[0].partition("=")[0] not in _OF_OUTPUT]
        for words in dict.fromkeys(tuple(record.identity.command) for record in records)
    ]
    common = [words for words in commands[0] if all(words in others for others in commands)]
    rest = [] if all(len(words) == len(common) for words in commands) else ["..."]
    return " ".join(["run_bench.py", *(shlex.join(words) for words in common), *rest])
