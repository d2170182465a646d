"""Anomalies among rows, as sentences: what was seen, why it matters, what to try."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence

from results.environment import Utilisation, unlike_variables
from results.intervals import ASSUMED_SPREAD, is_faster
from results.record import Record
from results.summary import DATA, PRECISION, Row, Siblings, between_runs, grouped
from results.text import rounded

_POOR_EFFICIENCY = 0.6
_SLOW_INPUT = 0.9
_FAR_OFF = 0.2
_UNLIKE_STEPS = 10
# Not a part of a name, a version or the value of a flag.
_NUMBER = re.compile(r"(?<![\w=.:#/-])(\d+(?:\.\d+)?)(?!\w|\.\d)")
_SELECT = "select runs with --where (session_id, time_utc), or name their files alone."


def anomalies(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence for every kind of anomaly, with the first row that has it, and the number of rows."""
    siblings = Siblings(rows)
    found: list[tuple[str, str]] = []
    for row in rows:
        if row.images_per_sec is None:
            sentences = [f"no valid result ({row.status}). {row.reason}".strip()]
        else:
            sentences = [*([f"{row.status}. {row.reason}"] if row.reason else []), *_anomalies(row, siblings)]
        found += [(sentence, row.title) for sentence in sentences]
    return [
        f"{kind[0][1]}{f' and {len(kind) - 1} more' if len(kind) > 1 else ''}: {_merged([one for one, _ in kind])}"
        for kind in _kinds(found)
    ]


def _anomalies(row: Row, siblings: Siblings) -> Iterator[str]:
    config, data_sheet = row.config, row.data_sheet
    if isinstance(data_sheet, Utilisation) and data_sheet.share is None:
        yield f"MFU {data_sheet.text}."
    builds = {(record.identity.suite_version, record.identity.suite_commit) for record in row.valid}
    if len(builds) > 1:
        yield (
            f"its repeats are of {len(builds)} commits of the suite, and a difference between these counts as noise: "
            f"{_SELECT}"
        )
    steps = [len(record.measurement.step_seconds) for record in row.valid]
    if max(steps) >= _UNLIKE_STEPS * min(steps):
        yield f"its repeats have {min(steps)} to {max(steps)} measured steps and count alike: {_SELECT}"
    if unlike := unlike_variables([record.environment for record in row.valid]):
        yield f"its repeats have unlike environment variables ({', '.join(unlike)}): {_SELECT}"
    yield from _of_scaling(row)
    rates = row.rates
    if len(rates) >= 3:
        middle = statistics.median(rates)
        off = max(rates, key=lambda rate: abs(rate - middle))
        if abs(off / middle - 1) > _FAR_OFF:
            yield (
                f"one of {len(rates)} repeats is {abs(off / middle - 1):.0%} {'above' if off > middle else 'below'} "
                f"their median ({rounded(off)} images/s): other work ran on the machine, or a device throttled. "
                "Repeat it."
            )
    if config.get("data_name") != "synthetic":
        synthetic = siblings.of(row, DATA, {"data_name": "synthetic"})
        if synthetic and row.rate / synthetic.rate < _SLOW_INPUT:
            yield f"real data reach {row.rate / synthetic.rate:.0%} of synthetic: the input is the bottleneck."
    wider = ("fp32", "tf32") if config.get("precision") in ("fp16", "bf16") else ()
    for usual in filter(None, (siblings.of(row, PRECISION, {"precision": name}) for name in wider)):
        if is_faster(usual.among_processes, row.among_processes):
            yield (
                f"{config['precision']} is slower than {usual.config['precision']} ({rounded(row.rate / usual.rate)} "
                "x): this hardware has no fast path for it, or something else limits the model."
            )


def _of_scaling(row: Row) -> Iterator[str]:
    # Logical CPU devices share the cores, and virtual GPUs share a GPU: more of them are not faster.
    is_shared = row.config.get("device") == "cpu" or row.count("virtual_gpus") > 1
    if row.speed_up is None or row.devices == 1 or is_shared:
        return
    efficiency, exchanges = row.speed_up.value / row.devices, row.config.get("variable_update") != "independent"
    if exchanges and row.speed_up.bounded.high < 1:
        yield (
            f"slower than one device ({row.speed_up.rounded()} x): the exchange costs more than the devices gain. "
            "Try another --variable_update or --all_reduce_spec, or a larger --batch_size."
        )
    elif efficiency < _POOR_EFFICIENCY:
        why = "It exchanges nothing, so the input or the host is the bottleneck."
        if exchanges:
            why = "Compare with --variable_update=independent: if that scales, the exchange of gradients is the "
            why += "bottleneck; if not, the input or the host is."
        yield f"scales to {efficiency:.0%} of {row.devices} devices. {why}"


def warnings_of(records: Sequence[Record]) -> list[str]:
    """Returns each kind of warning once, with the number of runs, and the range of each number in it."""
    kinds = _kinds([(sentence, "") for record in records for sentence in record.warnings])
    return [f"{len(kind)} of {len(records)} runs warned: {_merged([one for one, _ in kind])}" for kind in kinds]


def _kinds(sentences: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Returns sentences, each with what it is about, by what they say besides numbers."""
    return list(grouped(sentences, lambda pair: _NUMBER.sub("#", pair[0])).values())


def _merged(sentences: Sequence[str]) -> str:
    """Returns sentences that differ only in numbers as one, with the range of each number."""
    # Words and numbers alternate: the numbers are the parts that the pattern captures.
    parts = zip(*map(_NUMBER.split, sentences), strict=True)
    ranges = (sorted(set(same), key=lambda text: float(text) if place % 2 else 0) for place, same in enumerate(parts))
    return "".join(" to ".join(dict.fromkeys((values[0], values[-1]))) for values in ranges)


def note_on_repeats(rows: Collection[Row]) -> str:
    """Returns a sentence if repeats on a machine do not show by which share equal processes differ; else nothing."""
    machines = grouped(rows, lambda row: row.records[0].identity.hardware_key).values()
    unknown = [of_one for of_one in machines if not between_runs(of_one)[1]]
    what = "Too little" if any(len(row.valid) > 1 for of_one in unknown for row in of_one) else "Nothing"
    where = " on some machines" if len(unknown) < len(machines) else ""
    assumed = f"{what} was repeated{where}: equal runs are assumed to differ by {ASSUMED_SPREAD:.0%}."
    return assumed if unknown else ""
