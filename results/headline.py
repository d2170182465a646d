"""The headline table as text: one line per configuration."""

from __future__ import annotations

from collections.abc import Sequence

from results.summary import Row, manager_of

HEADER = (
    "model",
    "variable manager",
    "devices",
    "batch",
    "images/s",
    "95 % interval",
    "per device",
    "speed-up",
    "status",
)


def cells(row: Row) -> tuple[str, ...]:
    """Returns a row's cells as text, one per name of the header; what is unknown is empty."""
    config = row.config
    repeats = f" ({len(row.valid)} of {len(row.records)})" if len(row.records) > 1 else ""
    return (
        str(config.get("model", "")) + (" inference" if config.get("forward_only") else ""),
        manager_of(config),
        f"{row.devices} {config.get('device', '')}".strip(),
        str(config.get("batch_per_device", "")),
        _number(row.images_per_sec, 2),
        "" if row.low is None or row.high is None else f"{row.low:.2f} to {row.high:.2f}",
        _number(row.per_device, 2),
        _number(row.speed_up, 2),
        f"{row.status}{repeats}",
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """Returns the table as lines, and below it why runs did not count."""
    if not rows:
        return ["There are no runs."]
    table = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    text.insert(1, "  ".join("-" * width for width in widths))
    for row in rows:
        if row.reason:
            what = f"{row.config.get('model')}, {manager_of(row.config)}, {row.devices} devices"
            text.append(f"{what}: {row.status}. {row.reason}")
    return text


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
