"""Published figures, from CSV files in `results/data`, and which of them compare with the user's rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from results.summary import Row, published_table

SOURCES = {
    "guide2017": "TensorFlow benchmarks, tensorflow.org/performance/benchmarks, 2017: DGX-1, Google Compute Engine, "
    "Amazon EC2, with tf_cnn_benchmarks",
    "modern": "ResNet-50 since 2020: NVIDIA DeepLearningExamples, Lambda, MLPerf; each figure names its own source",
}
# The names of our models in the tables. Version 1.5 of a ResNet takes 2 to 6 % more operations, and is compared.
_MODELS = {
    "inception3": "Inception v3",
    "resnet50": "ResNet-50",
    "resnet50_v1.5": "ResNet-50",
    "resnet152": "ResNet-152",
    "resnet152_v1.5": "ResNet-152",
    "alexnet": "AlexNet",
    "vgg16": "VGG16",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One published rate over all devices: `setting` is variable manager, precision and data, as far as published.

    `where` is the machine and its location; `batch_per_device` is None if it is unknown.
    """

    where: str
    model: str
    setting: str
    batch_per_device: int | None
    devices: int
    images_per_sec: float


@functools.cache
def figures(table: str) -> tuple[Figure, ...]:
    """Reads a table, a key of `SOURCES`."""
    settings = ("variable_update", "framework", "precision", "data")
    return tuple(
        Figure(
            where=row.get("platform") or f"{row['hardware']} ({row['source']})",
            model=row.get("model") or "ResNet-50",
            setting=", ".join(row[name] for name in settings if row.get(name)),
            batch_per_device=int(row["batch_per_gpu"]) if row["batch_per_gpu"].isdigit() else None,
            devices=int(row["gpus"]),
            images_per_sec=float(row["images_per_sec"]),
        )
        for row in published_table(table)
    )


def beside(row: Row, table: str) -> list[Figure]:
    """Returns the figures of the same model, batch per device and number of devices; none for inference."""
    if row.config.get("forward_only"):
        return []
    wanted = (_MODELS.get(str(row.config.get("model"))), row.config.get("batch_per_device"), row.devices)
    return [f for f in figures(table) if (f.model, f.batch_per_device, f.devices) == wanted]


def why_none(rows: Sequence[Row], table: str) -> str | None:
    """Returns a sentence if no row with a rate has a figure in the table, with what the table has; else None."""
    if any(row.images_per_sec is not None and beside(row, table) for row in rows):
        return None
    batches: dict[str, list[str]] = {}
    for name, title in _MODELS.items():
        found = sorted({f.batch_per_device for f in figures(table) if f.model == title and f.batch_per_device})
        batches[name] = [str(batch) for batch in found]
    known = ", ".join(f"{name} ({', '.join(found)})" for name, found in batches.items() if found)
    devices = ", ".join(map(str, sorted({figure.devices for figure in figures(table)})))
    return (
        f"No row has a figure in {table}: the model, the batch per device and the number of devices must be the same, "
        f"in training. It has these models (batches per device): {known}; on {devices} devices."
    )


def lines_of(table: str, model: str) -> dict[str, list[Figure]]:
    """Returns, for each machine and setting, the figures of one of our models by number of devices."""
    lines: dict[str, list[Figure]] = {}
    for figure in figures(table):
        if figure.model == _MODELS.get(model):
            batch = figure.batch_per_device or "unknown"
            lines.setdefault(f"{figure.where}, {figure.setting}, batch {batch}", []).append(figure)
    return {name: sorted(line, key=lambda figure: figure.devices) for name, line in lines.items()}
