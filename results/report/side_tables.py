"""The other tables of a report: published figures, the fastest settings, reductions, input stages, placements."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from results import placement_tables
from results.environment import machine_names
from results.input_bottleneck import costs
from results.intervals import ASSUMED_SPREAD, Interval
from results.record import Kind, Record
from results.report import published, ranking, scalability
from results.report.anomalies import note_on_repeats
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.summary import Row, manager_of
from results.text import Table, counted, first_few, in_bytes, markdown_with_code, rounded

_MOST_ROWS = 500
_SENTENCE = "what was measured"
_SENTENCES = ("setting", _SENTENCE)
_LONG = 30  # rows; a longer table is folded


@dataclasses.dataclass(frozen=True)
class SideTable:
    """A table with its title; `name` is the target of links, `note` a sentence below the title.

    `is_detail`: it is for those who look for it.
    """

    name: str
    title: str
    table: Table
    note: str = ""
    is_detail: bool = False

    @property
    def is_folded(self) -> bool:
        """Whether the table is folded until a reader opens it."""
        return self.is_detail or len(self.table.rows) > _LONG

    def markdown(self) -> list[str]:
        """Returns the table with its heading."""
        note, lines = [markdown_with_code(self.note), ""] if self.note else [], self.table.markdown()
        if self.is_folded:
            summary = f"<summary>{counted(len(self.table.rows), 'line')}</summary>"
            lines = ["<details>", summary, "", *lines, "", "</details>"]
        return [f"## {self.title}", "", *note, *lines, ""]

    def text(self) -> list[str]:
        """Returns the table with its title for a terminal; a table of sentences as sentences."""
        if self.table.columns[-1] == _SENTENCE:
            return ["", f"{self.title}:", *(": ".join(row) for row in self.table.rows)]
        return ["", f"{self.title}. {self.note}".strip(), *self.table.text()]


def side_tables(
    records: Sequence[Record], rows: Sequence[Row], against: Sequence[published.FigureTable] = ()
) -> list[SideTable]:
    """Returns the tables that are not empty; `against` are those of other people's figures."""
    tables = [*_published(rows, against), *comparisons(rows), *_scaling(rows, against), _reductions(records)]
    tables += [_input_stages(records), *_placements(rows)]
    return [
        dataclasses.replace(side, table=dataclasses.replace(side.table, rows=side.table.rows[:_MOST_ROWS]))
        for side in tables
        if side.table.rows
    ]


def comparisons(rows: Sequence[Row]) -> list[SideTable]:
    """Returns the tables of what rows show together, if they show something."""
    # Of independent towers, no two train one model.
    together = [row for row in rows if row.devices == 1 or row.config.get("variable_update") != "independent"]
    crossings = [found for group in ranking.ranking_groups(rows) for found in ranking.crossings(group.rows)]
    saturation = ranking.saturation(together)
    tables = [
        *_winners(rows),
        SideTable("crossings", "Variable managers against each other", Table(_SENTENCES, crossings)),
        SideTable("saturation", "Where more parameter servers gain nothing", Table(_SENTENCES, saturation)),
    ]
    return [side for side in tables if side.table.rows]


def _winners(rows: Sequence[Row]) -> list[SideTable]:
    """Returns the fastest of the settings that train the same, and apart from them those that train differently."""
    once = f" {once}" if (once := note_on_repeats(rows)) else ""
    fastest = [
        [
            winner.model,
            "any" if winner.devices is None else str(winner.devices),
            winner.flags,
            winner.best.among_processes.rounded(),
            winner.best.among_processes.range() or f"fewer than {MIN_STEPS_FOR_INTERVAL} steps",
            first_few(winner.within_noise),
            winner.differs,
        ]
        for winner in ranking.winners(rows)
    ]
    columns = ("model", "devices", "fastest", "images/s", "95 % interval", "not clearly slower", "trains differently")
    first = Table(columns[:-1], [cells[:-1] for cells in fastest if not cells[-1]], ("images/s",))
    second = Table(columns, [cells for cells in fastest if cells[-1]], ("images/s",))
    note = f"Only settings that train the same are ranked. Those not clearly slower may be as fast.{once}"
    apart = "Not ranked with the others: each is the fastest of those that train like it."
    return [
        SideTable("fastest", "Fastest settings", first, note),
        SideTable("trains_differently", "Settings that train differently", second, apart),
    ]


def _scaling(rows: Sequence[Row], tables: Sequence[published.FigureTable]) -> list[SideTable]:
    """Returns the law of each curve, and its rates beside figures of the same setting, such as those of `predict`."""
    curves = scalability.to_report(rows)
    columns = ("runs", "measured", "sigma %", "kappa %", "predicted", "efficiency %", "50 % at", "falls beyond")
    note = "Universal Scalability Law with 95 % intervals: sigma is contention, kappa coherence."
    cells = []
    for curve in curves:
        first, row = next(iter(curve.rows.items()))
        for number in (*curve.rows, *curve.predicted):
            measured = curve.rate(number) if number in curve.rows else None
            by_law = curve.fit.rate(number) if curve.fit else None
            known = [curve.title, str(number), *_rate_cells(measured), *_rate_cells(by_law)]
            for figure in (f for t in tables for f in published.with_devices(row, number * row.devices // first, t)):
                cells.append([*known, *_rate_cells(figure.measured), f"{figure.where}, {figure.setting}"])
    laws = [scalability.summary(curve, curve.fit) for curve in curves if curve.fit]
    rates = ("measured", "interval", "by the law", "interval", "figure", "interval")
    beside = Table((*("runs", "devices or workers"), *rates, "of"), cells, ("measured", "by the law", "figure"))
    about = (
        "Where the two differ, more devices meet a limit that the measured ones do not show, or `predict` misses one."
    )
    return [
        SideTable("scalability", "How far it scales", Table(columns, laws), note),
        SideTable("law_and_figures", "The law beside predictions and figures", beside, about),
    ]


def _rate_cells(rate: Interval | None) -> tuple[str, str]:
    return ("", "") if rate is None else (rate.rounded(), rate.range())


def _published(rows: Sequence[Row], tables: Sequence[published.FigureTable]) -> list[SideTable]:
    """Returns where rows stand among comparable figures, in words and as a table of all of them."""
    standings = Table(("yours", _SENTENCE), published.standings(rows, tables))
    pairs = ((row, figure) for row in rows for table in tables for figure in published.beside(row, table))
    cells = [
        [
            row.title,
            row.measured.rounded(),
            row.measured.range(),
            figure.where,
            f"{figure.setting}, {counted(figure.devices, 'device')}",
            f"{figure.images_per_sec:g}",
            figure.measured.range(),
            published.ratio(row, figure).rounded(),
            published.ratio(row, figure).range(),
            published.in_words(row, figure),
            ", ".join(published.differences(row, figure)[1]),
        ]
        for row, figure in pairs
    ]
    figures = Table(
        (
            *("yours", "your images/s", "your interval", "published for", "setting", "images/s", "interval"),
            *("yours / published", "95 % interval", "difference", "not compared"),
        ),
        cells,
        ("your images/s", "images/s", "yours / published"),
    )
    beside = "Each row of yours beside the next slower and the next faster machine, or beside the nearest figures. "
    beside += f"Processes are assumed to differ by {ASSUMED_SPREAD:.0%} where a side was not repeated."
    sources = "; ".join(table.source for table in tables)
    return [
        SideTable("standing", "Where yours stand", standings, beside),
        SideTable("published", "Published figures for the same settings", figures, sources),
    ]


def _placements(rows: Sequence[Row]) -> list[SideTable]:
    """Returns where variables are and gradients are summed, and what crosses between devices, of runs with towers."""

    def of_all(table_of: Callable[[Mapping[str, Any]], Table]) -> Table:
        lines = ([row.title, *line] for row in rows for line in table_of(row.placement).rows)
        return Table(("run", *table_of({}).columns), list(itertools.islice(lines, _MOST_ROWS)), table_of({}).numbers)

    note = "Between devices and processes: by formula, and in a step traced after the measured ones. The formula is "
    note += "that of devices apart from the host; on logical CPU devices the first one is the host's."
    return [
        SideTable("placement", "Bytes per device", of_all(placement_tables.device_table), is_detail=True),
        SideTable("sums", "Sums of gradients over towers", of_all(placement_tables.aggregation_table), is_detail=True),
        SideTable("transfers", "Transfers per step", of_all(placement_tables.transfer_table), note, is_detail=True),
        SideTable("variables", "Variables by name", of_all(placement_tables.variable_table), is_detail=True),
    ]


def _reductions(records: Sequence[Record]) -> SideTable:
    reductions = [record for record in records if record.kind is Kind.ALL_REDUCE]
    machines = machine_names(reductions)

    def cells(record: Record) -> list[str]:
        seconds, bandwidth = record.measurement.step_seconds, record.derived.bus_bandwidth_gb_per_sec
        return [
            str(record.config.get("message", "")),
            in_bytes(record.measurement.message_bytes) if record.measurement.message_bytes else "",
            manager_of(record.config),
            *([machines[record.identity.hardware_key]] if len(machines) > 1 else []),
            str(record.config.get("num_devices", "")),
            rounded(1000 * sum(seconds) / len(seconds)) if seconds else "",
            "" if bandwidth is None else rounded(bandwidth),
            f"{record.status}{': ' + record.reason if record.reason else ''}",
        ]

    where = ("machine",) if len(machines) > 1 else ()
    columns = ("message", "size", "reduction", *where, "devices", "ms", "busbw GB/s", "status")
    table = Table(columns, list(map(cells, reductions)), ("size", "devices", "ms", "busbw GB/s"))
    return SideTable("reductions", "Reductions", table)


def _input_stages(records: Sequence[Record]) -> SideTable:
    """Returns the stages of the input, as measured by `input` and by runs that waited for their input."""
    rows = [
        [
            str(record.config.get("data_set") or record.config.get("data_name", "")),
            str(record.kind),
            cost.name,
            cost.images_per_sec.rounded(),
            rounded(1e6 * cost.seconds_per_image),
            f"{100 * cost.share:.0f}",
            "" if bare is None else rounded(cost.images_per_sec.value / bare),
        ]
        for record in records
        for bare in [record.measurement.bare_decode_images_per_sec]
        for cost in costs(record.measurement.input_stages)
    ]
    numbers = ("images/s", "adds us", "share %", "of bare decode")
    note = "Images per second of the input alone, up to each stage, and the time that the stage adds per image."
    table = Table(("data", "measured by", "up to", *numbers), rows, numbers)
    return SideTable("input", "Stages of the input", table, note)
