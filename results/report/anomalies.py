"""What looks odd when rows are compared, in sentences: what was seen, why it matters, what to try."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence

from results.record import Record
from results.siblings import DATA, PRECISION, Siblings
from results.summary import Row, manager_of

POOR_EFFICIENCY = 0.6
# Not worth a word where they are so.
USUAL = {"data_name": "synthetic", "precision": "fp32"}
SLOW_INPUT = 0.9
FAR_OFF = 0.2


def title(row: Row) -> str:
    """Returns what a row is, in few words."""
    config = row.config
    inference = " inference" if config.get("forward_only") else ""
    kind = {"cpu": "CPU device", "gpu": "GPU"}.get(str(config.get("device")), "device")
    devices = f"{row.devices} {kind}{'s' * (row.devices > 1)}"
    words = [
        f"{config.get('model')}{inference}",
        manager_of(config),
        devices,
        f"batch {config.get('batch_per_device')}",
    ]
    words += [str(config[name]) for name, usual in USUAL.items() if config.get(name) not in (None, usual)]
    return ", ".join([*words, *([row.also] if row.also else [])])


def anomalies(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence for everything that a reader should look at first."""
    siblings = Siblings(rows)
    found = []
    for row in rows:
        if row.images_per_sec is None:
            found.append(f"{title(row)}: no valid result ({row.status}). {row.reason}".strip())
            continue
        found += [f"{title(row)}: {sentence}" for sentence in _scaling(row) + _repeats(row) + _against(row, siblings)]
    return found


def warnings_of(records: Sequence[Record]) -> list[str]:
    """Returns what runs have warned of, each sentence once, with how many runs did; numbers in it are of the first."""
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    for record in records:
        for sentence in record.warnings:
            kind = re.sub(r"[\d.,]+", "#", sentence)
            first.setdefault(kind, sentence)
            count[kind] += 1
    return [f"{count[kind]} of {len(records)} runs warned: {sentence}" for kind, sentence in first.items()]


def _scaling(row: Row) -> list[str]:
    # Logical CPU devices share the cores, and virtual GPUs a GPU, so their number is not expected to help.
    shared = row.config.get("device") == "cpu" or (row.config.get("virtual_gpus") or 1) > 1
    if row.efficiency is None or row.devices == 1 or shared:
        return []
    if row.speed_up is not None and row.speed_up < 1:
        return [
            f"slower than one device ({row.speed_up:.2f} x): what is exchanged costs more than the devices bring. Try "
            "another --variable_update or --all_reduce_spec, or a larger --batch_size."
        ]
    if row.efficiency < POOR_EFFICIENCY:
        return [
            f"scales to {row.efficiency:.0%} of {row.devices} devices. Compare with --variable_update=independent: "
            "if that scales, gradients are the bottleneck; if not, input or the host is."
        ]
    return []


def _repeats(row: Row) -> list[str]:
    rates = [record.derived.images_per_sec for record in row.valid if record.derived.images_per_sec]
    if len(rates) < 3:
        return []
    middle = statistics.median(rates)
    off = max(rates, key=lambda rate: abs(rate - middle))
    if abs(off / middle - 1) <= FAR_OFF:
        return []
    return [
        f"one of {len(rates)} repeats is {off / middle - 1:+.0%} off their median ({off:.2f} images/sec): something "
        "else ran on the machine, or a device throttled. Repeat it."
    ]


def _against(row: Row, siblings: Siblings) -> list[str]:
    found = []
    rate = row.rate
    if row.config.get("data_name") != "synthetic":
        synthetic = siblings.of(row, DATA, {"data_name": "synthetic"})
        ratio = rate / synthetic.rate if synthetic else 1.0
        if ratio < SLOW_INPUT:
            found.append(f"real data reach {ratio:.0%} of synthetic: the input is the bottleneck.")
    if row.config.get("precision") in ("fp16", "bf16"):
        single = siblings.of(row, PRECISION, {"precision": "fp32"})
        if single and rate < single.rate:
            found.append(
                f"{row.config['precision']} is slower than fp32 ({rate / single.rate:.2f} x): this hardware "
                "has no fast path for it, or the model is bound elsewhere."
            )
    return found
