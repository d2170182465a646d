"""The other tables of a report: published figures, the fastest settings, reductions, input stages, placements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results import placement_tables
from results.exchange.public_table import Figure
from results.input_bottleneck import costs
from results.intervals import ASSUMED_SPREAD
from results.record import Kind, Record
from results.report import published, ranking, scalability
from results.report.anomalies import title
from results.report.headline import markdown_table
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.summary import Row
from results.text import first_few, table

_MOST_LINES = 500
_SENTENCE = "what was measured"
_LONG = 30  # lines; a longer table is folded


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideTable:
    """A table: `name` is the target of links, `note` a sentence below the title, `numbers` the columns of numbers."""

    name: str
    title: str
    note: str = ""
    columns: tuple[str, ...]
    numbers: frozenset[str]
    lines: Sequence[Sequence[str]]

    @property
    def is_long(self) -> bool:
        """Returns whether the table is folded until a reader opens it."""
        return len(self.lines) > _LONG

    def markdown(self) -> list[str]:
        """Returns the table with its heading."""
        note = [self.note, ""] if self.note else []
        rows = markdown_table(self.columns, [column in self.numbers for column in self.columns], self.lines)
        if self.is_long:
            rows = ["<details>", f"<summary>{len(self.lines)} lines</summary>", "", *rows, "", "</details>"]
        return [f"## {self.title}", "", *note, *rows, ""]

    def text(self) -> list[str]:
        """Returns the table with its title for a terminal; a table of sentences as sentences."""
        if self.columns[-1] == _SENTENCE:
            return ["", f"{self.title}:", *(": ".join(line) for line in self.lines)]
        return ["", f"{self.title}. {self.note}".strip(), *table([self.columns, *self.lines], rule=True)]


def side_tables(
    records: Sequence[Record], rows: Sequence[Row], against: Sequence[published.Table] = ()
) -> list[SideTable]:
    """Returns the tables that are not empty; `against` are those of other people's figures."""
    published_figures = _published(rows, against)
    measured = [*comparisons(rows), _scaling(rows), _reductions(records), _input_stages(records), *_placements(rows)]
    tables = [*published_figures, *measured]
    return [
        dataclasses.replace(one, lines=[list(map(str, line)) for line in one.lines[:_MOST_LINES]])
        for one in tables
        if one.lines
    ]


def comparisons(rows: Sequence[Row]) -> list[SideTable]:
    """Returns the tables of what rows show together, if they show something."""
    standings = ranking.standings(rows)
    found = [
        _winners(standings),
        _sentences("crossings", "Where one variable manager overtakes another", ranking.crossings(standings)),
        _sentences("saturation", "Where more parameter servers gain nothing", ranking.saturation(standings)),
    ]
    return [one for one in found if one.lines]


def _winners(standings: Sequence[Row]) -> SideTable:
    is_repeated = any(len(row.valid) > 1 for row in standings)
    once = "" if is_repeated else f" Nothing was repeated, so equal runs are assumed to differ by {ASSUMED_SPREAD:.0%}."
    return SideTable(
        name="fastest",
        title="Fastest settings",
        note=f"Settings within the noise cannot be told apart from the fastest.{once}",
        columns=("model", "devices", "fastest", "images/s", "95 % interval", "within the noise of"),
        numbers=frozenset({"images/s"}),
        lines=[
            [
                one.model,
                "any" if one.devices is None else str(one.devices),
                one.flags,
                f"{one.best.rate:.2f}",
                one.best.among_processes.range() or f"fewer than {MIN_STEPS_FOR_INTERVAL} steps",
                first_few(one.within_noise),
            ]
            for one in ranking.winners(standings)
        ],
    )


def _sentences(name: str, title: str, found: Sequence[tuple[str, str]]) -> SideTable:
    return SideTable(
        name=name, title=title, columns=("model", _SENTENCE), numbers=frozenset(), lines=[list(pair) for pair in found]
    )


def _scaling(rows: Sequence[Row]) -> SideTable:
    """Returns the law that fits each curve of at least three numbers of devices or workers, and what it predicts."""
    columns = ("runs", "measured", "sigma %", "kappa %", "predicted", "efficiency %", "50 % at", "falls beyond")
    return SideTable(
        name="scalability",
        title="How far it scales",
        note="Universal Scalability Law with 95 % intervals: sigma is contention, kappa coherence.",
        columns=columns,
        numbers=frozenset(),
        lines=[scalability.summary(curve) for curve in scalability.to_report(rows)],
    )


def _published(rows: Sequence[Row], tables: Sequence[published.Table]) -> list[SideTable]:
    """Returns where rows stand among comparable figures, in words and as a table of all of them."""
    pairs = [(row, figure) for row in rows for one in tables for figure in published.beside(row, one)]
    standings = SideTable(
        name="standing",
        title="Where yours stand",
        note="Each row of yours beside the next slower and the next faster figure.",
        columns=("yours", _SENTENCE),
        numbers=frozenset(),
        lines=published.standings(rows, tables),
    )
    figures = SideTable(
        name="published",
        title="Published figures for the same settings",
        note="; ".join(one.source for one in tables),
        columns=(
            *("yours", "your images/s", "your interval", "published for", "setting", "images/s", "interval"),
            *("yours / published", "from", "to", "difference", "not stated"),
        ),
        numbers=frozenset({"your images/s", "images/s", "yours / published", "from", "to"}),
        lines=[_published_line(row, figure) for row, figure in pairs],
    )
    return [standings, figures]


def _published_line(row: Row, figure: Figure) -> list[str]:
    ratio = published.ratio(row, figure)
    return [
        title(row),
        f"{row.rate:.2f}",
        row.measured.range(),
        figure.where,
        f"{figure.setting}, {figure.devices} devices",
        f"{figure.images_per_sec:g}",
        figure.measured.range(),
        f"{ratio.value:.3f}",
        f"{ratio.low:.3f}",
        f"{ratio.high:.3f}",
        published.in_words(row, figure),
        ", ".join(published.unknown(row, figure)),
    ]


def _placements(rows: Sequence[Row]) -> list[SideTable]:
    """Returns where variables are and gradients are summed, and what crosses between devices, of runs with towers."""

    def table(
        name: str, heading: str, columns: tuple[str, ...], rows_of: Callable[[Mapping[str, Any]], list[list[str]]]
    ) -> SideTable:
        lines: list[list[str]] = []
        for row in rows:
            if len(lines) >= _MOST_LINES:
                break
            lines += [[title(row), *line] for line in rows_of(row.records[0].placement)]
        numbers = {column for column in columns if column.split()[0] in ("bytes", "copies", "variables", "transfers")}
        return SideTable(name=name, title=heading, columns=("run", *columns), numbers=frozenset(numbers), lines=lines)

    transfers = table(
        "transfers", "Transfers per step", placement_tables.TRANSFER_COLUMNS, placement_tables.transfer_rows
    )
    note = "Between devices and processes: by formula, and in a step traced after the measured ones. The formula is "
    note += "that of devices apart from the host; on logical CPU devices the first one is the host's."
    return [
        table("placement", "Placement of variables", placement_tables.GROUP_COLUMNS, placement_tables.group_rows),
        table(
            "sums",
            "Sums of gradients over towers",
            placement_tables.AGGREGATION_COLUMNS,
            placement_tables.aggregation_rows,
        ),
        dataclasses.replace(transfers, note=note),
        table("variables", "Variables by name", placement_tables.VARIABLE_COLUMNS, placement_tables.variable_rows),
    ]


def _reductions(records: Sequence[Record]) -> SideTable:
    """Returns the results of `allreduce`."""

    def line(record: Record) -> list[str]:
        seconds, bandwidth = record.measurement.step_seconds, record.derived.bus_bandwidth_gb_per_sec
        return [
            str(record.config.get("message", "")),
            str(record.measurement.message_bytes or ""),
            str((record.config.get("modifiers") or {}).get("all_reduce_spec", "")),
            str(record.config.get("num_devices", "")),
            f"{1000 * sum(seconds) / len(seconds):.3f}" if seconds else "",
            "" if bandwidth is None else f"{bandwidth:.2f}",
            f"{record.status}{': ' + record.reason if record.reason else ''}",
        ]

    return SideTable(
        name="reductions",
        title="Reductions",
        columns=("message", "bytes", "reduction", "devices", "ms", "busbw GB/s", "status"),
        numbers=frozenset({"bytes", "devices", "ms", "busbw GB/s"}),
        lines=[line(record) for record in records if record.kind is Kind.ALL_REDUCE],
    )


def _input_stages(records: Sequence[Record]) -> SideTable:
    """Returns the stages of the input, as measured by `input` and by runs that waited for their input."""

    def stages(record: Record) -> list[list[str]]:
        bare = record.measurement.bare_decode_images_per_sec
        return [
            [
                str(record.config.get("data_set") or record.config.get("data_name", "")),
                str(record.kind),
                cost.name,
                f"{cost.images_per_sec.value:.0f}",
                f"{1e6 * cost.seconds_per_image:.0f}",
                f"{100 * cost.share:.0f}",
                f"{cost.images_per_sec.value / bare:.2f}" if bare is not None else "",
            ]
            for cost in costs(record.measurement.input_stages)
        ]

    return SideTable(
        name="input",
        title="Stages of the input",
        note="Images per second of the input alone, up to each stage, and the time that the stage adds per image.",
        columns=("data", "measured by", "up to", "images/s", "adds us", "share %", "of bare decode"),
        numbers=frozenset({"images/s", "adds us", "share %", "of bare decode"}),
        lines=[line for record in records for line in stages(record)],
    )
