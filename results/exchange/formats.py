"""Results in the formats of other programs: `report --output_format=NAME`."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results import store
from results.gate.findings import lasting_name
from results.intervals import Interval
from results.record import Record, strict
from results.report.contents import Report
from results.summary import Row, manager_of, summarize
from results.text import csv_cell, one_line
from results.version import SUITE_VERSION

if TYPE_CHECKING:
    import pandas as pd

# The data frames that some formats can hold; but for `to_frame` of runs, methods of `results.exchange.frame.Results`.
TABLES = ("runs", "configuration", "steps", "workers", "telemetry")
_PREFIX = "cnn_train_bench_"
_NANOSECONDS = 1e9


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: what it is, what renders records, and whether it holds any of `TABLES` or only its own view.

    `has_failures`: whether it shows runs without a rate.
    `render` takes the records and the name of a table. Text ends with a line break; bytes go only to a file.
    """

    meaning: str
    render: Callable[[Sequence[Record], str], str | bytes]
    has_tables: bool = False
    is_binary: bool = False
    has_failures: bool = True


def render_csv(records: Sequence[Record], table: str = "runs") -> str:
    """Returns a table as CSV; that of runs is `results.csv`. No spreadsheet takes a cell for a formula."""
    if table == "runs":
        return store.as_csv(records)
    frame = _frame(records, table)
    texts = frame.select_dtypes(include=["string", "object"]).columns
    cells = {name: frame[name].map(lambda value: csv_cell(str(value)), na_action="ignore") for name in texts}
    return str(frame.assign(**cells).rename(columns=csv_cell).to_csv(index=False, lineterminator="\n"))


def render_json(records: Sequence[Record], table: str = "runs") -> str:
    """Returns a table as one JSON object: `table`, `suite_version`, `units` of its columns, and `rows`."""
    frame = _frame(records, table)
    rows = frame.astype("object").where(frame.notna(), None).to_dict("records")
    head = {"suite_version": SUITE_VERSION, "table": table, "units": frame.attrs.get("units", {})}
    return json.dumps(strict({**head, "rows": rows}), allow_nan=False, indent=1, default=_as_text) + "\n"


def render_parquet(records: Sequence[Record], table: str = "runs") -> bytes:
    """Returns a table as Parquet. Types, times and missing values stay; the units are in pandas' metadata.

    Raises:
        ImportError: pyarrow is not installed; `name` is the package.
    """
    import pyarrow  # noqa: F401 - pandas needs it

    file = io.BytesIO()
    frame = _frame(records, table)
    # A column may hold lists, or values of several types.
    mixed = {name: frame[name].map(_as_text, na_action="ignore") for name in frame.select_dtypes(include="object")}
    frame.assign(**mixed).to_parquet(file, engine="pyarrow", index=False)
    return file.getvalue()


def render_bencher(records: Sequence[Record]) -> str:
    """Returns Bencher Metric Format: per configuration, `throughput` in images/s and `latency` of a step in ns.

    Bounds are those of the 95 % interval. Source: bencher.dev/docs/reference/bencher-metric-format.
    """
    rows = summarize(records)
    metrics: dict[str, Any] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        if row.images_per_sec is not None:
            latency = row.step_seconds.scaled(_NANOSECONDS)
            metrics[name] = {"throughput": _metric(row.measured), "latency": _metric(latency)}
    return json.dumps(strict(metrics), allow_nan=False, indent=1) + "\n"


def render_openmetrics(records: Sequence[Record]) -> str:
    """Returns gauges per configuration, for the textfile collector of Prometheus' node_exporter.

    The text is valid both as OpenMetrics 1.0 and as Prometheus' text format. Names end in their unit. A configuration
    has labels for what the report's labels name, and for its keys, which make it unique.
    """
    rows = [(_labels(row), row) for row in summarize(records)]
    lines: list[str] = []
    for name, meaning, value in _GAUGES:
        lines += _family(name, meaning, [(label, value(row)) for label, row in rows if row.images_per_sec is not None])
    ends = [(label, max(record.ended for record in row.records)) for label, row in rows]
    lines += _family(_LAST_RUN, "When the last run ended, in seconds since 1970.", [each for each in ends if each[1]])
    runs = [
        ({**label, "status": str(status)}, float(count))
        for label, row in rows
        for status, count in Counter(record.status for record in row.records).items()
    ]
    return "\n".join([*lines, *_family("runs", "Runs of the configuration, by how they ended.", runs), "# EOF", ""])


def _frame(records: Sequence[Record], table: str) -> pd.DataFrame:
    from results.exchange.frame import Results  # with pandas, which takes its time

    return getattr(Results(records), "to_frame" if table == "runs" else table)()


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


def _names(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a name per row that stays the same next time; only rows of unlike software need the software's key."""
    names = [lasting_name(row.records) for row in rows]
    count = Counter(names)
    for name, row in zip(names, rows, strict=True):
        yield f"{name}, software {row.records[0].identity.software_key}" if count[name] > 1 else name


def _metric(of: Interval) -> dict[str, float]:
    bounds = {"lower_value": of.low, "upper_value": of.high} if of.is_known else {}
    return {"value": of.value, **bounds}


_LAST_RUN = "last_run_timestamp_seconds"
_GAUGES: Sequence[tuple[str, str, Callable[[Row], float]]] = (
    ("images_per_second", "Rate over all devices, of all valid runs.", lambda row: row.measured.value),
    ("lower_images_per_second", "Lower bound of its 95 % interval.", lambda row: row.measured.low),
    ("upper_images_per_second", "Upper bound of its 95 % interval.", lambda row: row.measured.high),
    ("step_seconds", "Time of a step at this rate.", lambda row: row.step_seconds.value),
)


def _labels(row: Row) -> dict[str, str]:
    config, identity = row.config, row.records[0].identity
    return {
        "model": str(config.get("model")),
        "variable_update": manager_of(config),
        "devices": str(row.devices),
        "device": str(config.get("device")),
        "batch_per_device": str(config.get("batch_per_device")),
        "precision": str(config.get("precision")),
        "data": str(config.get("data_name")),
        "forward_only": "true" if config.get("forward_only") else "false",
        **({"interleaved": "true"} if row.is_interleaved else {}),
        "config_key": identity.config_key,
        "hardware_key": identity.hardware_key,
        "software_key": identity.software_key,
    }


def _family(name: str, meaning: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    known = [sample for sample in samples if math.isfinite(sample[1])]
    lines = [f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} gauge"] if known else []
    for labels, value in known:
        quoted = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{_PREFIX}{name}{{{quoted}}} {value!r}")
    return lines


def _escaped(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


FORMATS: Mapping[str, Format] = {
    "csv": Format("a row per run, as results.csv", render_csv, has_tables=True),
    "json": Format("the same with types and units", render_json, has_tables=True),
    "parquet": Format(
        "the same for data frames; needs the extra 'parquet'", render_parquet, has_tables=True, is_binary=True
    ),
    "md": Format("the report without its plots", lambda records, table: Report(records).markdown()),
    "bencher": Format("Bencher Metric Format", lambda records, table: render_bencher(records), has_failures=False),
    "openmetrics": Format("for node_exporter's textfile collector", lambda records, table: render_openmetrics(records)),
}
