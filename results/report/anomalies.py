"""Anomalies among rows, as sentences: what was seen, why it matters, what to try."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from results.record import Record
from results.summary import DATA, PRECISION, Row, Siblings, manager_of
from results.text import counted
from results.utilisation import Utilisation, of_measured_peak

_POOR_EFFICIENCY = 0.6
_SLOW_INPUT = 0.9
_FAR_OFF = 0.2
# A label names only other values.
_USUAL = {"data_name": "synthetic", "precision": "fp32"}


def title(row: Row) -> str:
    """Returns a short label of a row."""
    config = row.config
    model = f"{config.get('model')}{' inference' if config.get('forward_only') else ''}"
    kind = {"cpu": "CPU device", "gpu": "GPU"}.get(str(config.get("device")), "device")
    words = [model, manager_of(config), counted(row.devices, kind), f"batch {config.get('batch_per_device')}"]
    return ", ".join([*words, *differences(row)])


def differences(row: Row) -> list[str]:
    """Returns in what a row differs from the usual data and precision, and from the other rows."""
    unusual = [str(row.config[name]) for name, usual in _USUAL.items() if row.config.get(name) not in (None, usual)]
    return [*unusual, *([row.also] if row.also else [])]


def anomalies(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence for every row that a reader should look at first."""
    siblings = Siblings(rows)
    sentences = []
    for row in rows:
        if row.images_per_sec is None:
            sentences.append(f"{title(row)}: no valid result ({row.status}). {row.reason}".strip())
        else:
            sentences += [f"{title(row)}: {sentence}" for sentence in _anomalies(row, siblings)]
    above = sum(any(map(_exceeds_measured_peak, row.valid)) for row in rows)
    if above:
        sentences.append(
            f"MFU of measured peak unknown for {counted(above, 'row')} of {len(rows)}: above 100 %, so the peak was "
            "measured too low ('run_bench.py doctor' measures it on a quiet machine)."
        )
    return sentences


def _exceeds_measured_peak(record: Record) -> bool:
    return record.derived.mfu_of_measured_peak is not None and of_measured_peak(record) is None


def _anomalies(row: Row, siblings: Siblings) -> Iterator[str]:
    config, data_sheet = row.config, row.data_sheet
    if isinstance(data_sheet, Utilisation) and data_sheet.share is None:
        yield f"MFU {data_sheet.text}."
    # Logical CPU devices share the cores, and virtual GPUs share a GPU: more of them are not faster.
    is_shared = config.get("device") == "cpu" or row.count("virtual_gpus") > 1
    if row.speed_up is not None and row.efficiency is not None and row.devices > 1 and not is_shared:
        if row.speed_up.bounded.high < 1:
            yield (
                f"slower than one device ({row.speed_up.value:.2f} x): the exchange costs more than the devices gain. "
                "Try another --variable_update or --all_reduce_spec, or a larger --batch_size."
            )
        elif row.efficiency < _POOR_EFFICIENCY:
            yield (
                f"scales to {row.efficiency:.0%} of {row.devices} devices. Compare with --variable_update=independent: "
                "if that scales, the exchange of gradients is the bottleneck; if not, the input or the host is."
            )
    rates = [record.derived.images_per_sec for record in row.valid if record.derived.images_per_sec]
    if len(rates) >= 3:
        middle = statistics.median(rates)
        off = max(rates, key=lambda rate: abs(rate - middle))
        if abs(off / middle - 1) > _FAR_OFF:
            yield (
                f"one of {len(rates)} repeats is {off / middle - 1:+.0%} off their median ({off:.2f} images/sec): "
                "other work ran on the machine, or a device throttled. Repeat it."
            )
    if config.get("data_name") != "synthetic":
        synthetic = siblings.of(row, DATA, {"data_name": "synthetic"})
        if synthetic and row.rate / synthetic.rate < _SLOW_INPUT:
            yield f"real data reach {row.rate / synthetic.rate:.0%} of synthetic: the input is the bottleneck."
    if config.get("precision") in ("fp16", "bf16"):
        single = siblings.of(row, PRECISION, {"precision": "fp32"})
        if single and row.rate < single.rate:
            yield (
                f"{config['precision']} is slower than fp32 ({row.rate / single.rate:.2f} x): this hardware has no "
                "fast path for it, or something else limits the model."
            )


def warnings_of(records: Sequence[Record]) -> list[str]:
    """Returns each kind of warning once, with the number of runs; the numbers in it are those of the first run."""
    kinds: dict[str, list[str]] = {}
    for sentence in (sentence for record in records for sentence in record.warnings):
        kinds.setdefault(re.sub(r"[\d.,]+", "#", sentence), []).append(sentence)
    return [f"{len(same)} of {len(records)} runs warned: {same[0]}" for same in kinds.values()]
