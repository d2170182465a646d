"""The generated tables of records, results, published rates and models; `docs.generate` puts them into the pages."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.config import usual_batch
from benchmarks.explain.known_gpus import PublishedRate, published_rates
from benchmarks.predict import judge
from models import specs
from results import columns, loading, summary
from results.environment import Utilisation, gpu_name, published_table
from results.exchange import public_table
from results.gate.views import Document
from results.record import Record
from results.record_parts import PARTS
from results.report import headline

ROOT = Path(__file__).resolve().parent.parent
# The records of the sweep that README shows.
RESULTS = ROOT / "docs" / "images" / "results.jsonl"
# The records of sweeps on GPUs: results/baselines/gpu.toml.
BASELINES = ROOT / "results" / "baselines"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table in Markdown."""
    cells = [[str(cell).replace("\n", " ").replace("|", r"\|") for cell in row] for row in rows]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(words: Iterable[str]) -> str:
    """Returns words as code, with commas between them."""
    return ", ".join(f"`{word}`" for word in words)


def columns_of_csv() -> str:
    """Returns the columns of results.csv."""
    sources = ("" if callable(c.source) else f"`{c.source}`" for c in columns.COLUMNS)
    rows = ((f"`{c.name}`", s, _type_and_unit(c), c.meaning) for c, s in zip(columns.COLUMNS, sources, strict=True))
    return table(("column", "in the record", "type and unit", "meaning"), rows)


def public_columns() -> str:
    """Returns the columns of a public table."""
    rows = ((f"`{c.name}`", c.meaning, _type_and_unit(c), "yes" if c.required else "") for c in public_table.COLUMNS)
    return table(("column", "meaning", "type and unit", "required"), rows)


def _type_and_unit(column: columns.Column | public_table.PublicColumn) -> str:
    return ", ".join(filter(None, (column.kind.__name__, column.unit)))


def fields(part: type[msgspec.Struct]) -> str:
    """Returns the fields of a part of the record; the schema has their types."""
    meanings = attributes(part)
    return table(("field", "meaning"), ((f"`{name}`", meanings[name]) for name in part.__struct_fields__))


def record_schema() -> str:
    """Returns the JSON schema of a record."""
    fields = [(field.name, PARTS.get(field.name, field.type)) for field in msgspec.structs.fields(Record)]
    return _schema(msgspec.defstruct("Record", fields, forbid_unknown_fields=True))


def findings_schema() -> str:
    """Returns the JSON schema of the gate's findings."""
    return _schema(Document)


def _schema(of: type[msgspec.Struct]) -> str:
    """Returns a JSON schema as every version of Python and msgspec gives it."""

    def same(part: Any) -> Any:
        if isinstance(part, list):
            return [same(each) for each in part]
        if not isinstance(part, dict):
            return part
        # Python 3.13 takes the indent from docstrings, and newer versions of msgspec say that keys are strings.
        return {
            name: inspect.cleandoc(each) if name == "description" and isinstance(each, str) else same(each)
            for name, each in part.items()
            if name != "propertyNames"
        }

    return json.dumps(same(msgspec.json.schema(of)), indent=1) + "\n"


def attributes(of: type) -> dict[str, str]:
    """Returns the section `Attributes:` of a docstring, by name, as phrases."""
    section = inspect.cleandoc(of.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()).removesuffix(".").replace("None", "null") for name, text in entries}


def models() -> str:
    """Returns the models with their sizes, batches and learning rates."""
    rows = (
        (
            f"`{spec.name}`",
            spec.data_name,
            spec.image_size,
            f"{spec.parameters / 1e6:.3g}",
            f"{spec.gflop_per_image:.2g}" if spec.gflop_per_image < 1 else f"{spec.gflop_per_image:.3g}",
            usual_batch.usual_batch(spec, "tf32", 80e9, on_gpu=True)[0],
            spec.batch_on_cpu,
            f"{spec.learning_rate:g}",
        )
        for spec in specs.MODELS
    )
    header = (
        "model",
        "data set",
        "pixels",
        "parameters, M",
        "GFLOP",
        "batch, GPU of 80 GB",
        "batch, CPU",
        "learning rate",
    )
    return table(header, rows)


def _machine(record: Record) -> str:
    environment = record.environment
    return (
        f"{environment['cpu_cores_usable']} cores of an {environment['cpu_model']}, no GPU, "
        f"TensorFlow {environment['tensorflow_version']}, {record.minute[:10]}."
    )


def results() -> str:
    """Returns the rates of the example sweep, and what it ran on."""
    rows = summary.summarize(loading.load(RESULTS).records)
    first = rows[0].records[0]
    one, two = ([row for row in rows if row.count("num_workers") == workers] for workers in (1, 2))
    cells = [
        (
            single.config["model"],
            f"`{summary.manager_of(single.config)}`",
            single.measured.text(),
            double.measured.text(),
            headline.speed_up(double),
        )
        for single, double in zip(one, two, strict=True)
    ]
    machine = f"{_machine(first)} Each worker is a process with one thread; a parameter server is one more process."
    header = ("model", "manager", "1 worker, images/s (95 %)", "2 workers, images/s (95 %)", "speed-up")
    return f"{table(header, cells)}\n\n{machine}"


def published_on_8() -> str:
    """Returns the published rates of ResNet-50 on eight H100 or A100 and on one; MFU is that of one."""
    pairs: dict[tuple[str, ...], dict[int, PublishedRate]] = {}
    for rate in published_rates():
        figure = rate.figure
        xla, batch = ", XLA" * bool(figure.xla), str(figure.batch_per_device or "")
        key = (figure.machine, figure.software + xla, figure.precision, batch, figure.data, figure.source)
        if figure.model == "ResNet-50" and figure.devices in (1, 8):
            pairs.setdefault(key, {})[figure.devices] = rate
    rows = []
    for gpu in ("H100", "A100"):
        for key, by_devices in pairs.items():
            if key[0].startswith(gpu) and (eight := by_devices.get(8)):
                one = by_devices.get(1)
                efficiency = f"{eight.figure.images_per_sec / (8 * one.figure.images_per_sec):.0%}" if one else ""
                rates = [f"{rate.figure.images_per_sec:,.0f}" if rate else "" for rate in (one, eight)]
                rows.append([*key[:5], *rates, f"{(one or eight).mfu:.1%}", efficiency, key[5]])
    names = ("GPU", "software", "precision", "batch", "data", "1 GPU", "8 GPUs", "MFU", "efficiency of 8", "source")
    return table(names, rows)


def measured() -> str:
    """Returns the rates of the baselines on GPUs, and which of their settings gave no result."""
    rows = summary.summarize(loading.load(BASELINES / "h200.jsonl").records)
    cells = []
    for row in rows:
        config, measured, utilisation = row.config, row.records[0].measurement, row.data_sheet
        rejected = f"rejected: {row.records[0].reason.partition(':')[0]}" if row.records[0].reason else ""
        cells.append(
            (
                gpu_name(str(row.records[0].environment["gpus"][0])),
                config["model"],
                config["precision"],
                config["data_format"],
                config["xla"],
                config["batch_per_device"],
                row.measured.text() if row.valid else rejected,
                utilisation.text.partition(" of ")[0] if row.valid and isinstance(utilisation, Utilisation) else "",
                f"{measured.peak_gpu_memory_bytes / 1e9:.0f} GB" if measured.peak_gpu_memory_bytes else "",
                f"{len(row.valid)} of {len(row.records)}",
            )
        )
    header = ("GPU", "model", "precision", "layout", "XLA", "batch", "images/s (95 %)", "MFU", "memory", "valid runs")
    return table(header, cells)


def reached() -> str:
    """Returns the shares of peaks that runs reach, as `predict` uses them."""
    header = ("number", "slow end", "usual", "fast end", *(f"without {bed}" for bed in _BEDS), "meaning")
    rows = (
        (
            f"`{row['name']}`",
            *(row[column] for column in ("low", "usual", "high", *(f"without_{bed}" for bed in _BEDS))),
            row["meaning"],
        )
        for row in published_table("reached")
    )
    return table(header, rows)


def judged() -> str:
    """Returns how far predictions are from published rates. Imports TensorFlow."""
    tables = judge.tables(judge.judge()).items()
    return "\n\n".join(
        "\n".join([f"### {title}", "", *table.markdown()]) for title, table in tables if title != judge.MISSES
    )


_BEDS = ("dgx-1-p100", "gce-k80", "ec2-p2.8xlarge")
