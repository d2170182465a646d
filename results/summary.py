"""Records brought together: repeats of a configuration become a row with one rate, and rows are compared."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from results.datasheet_peaks import peak_tflops
from results.record import Kind, Record, Status, key_of

# The fields of a configuration in which a run may differ from the one-device run that it is compared with.
_SCALED = ("num_devices", "virtual_gpus", "visible_gpus", "num_workers", "num_ps", "num_hosts")
# What a label says anyway, and what follows from that.
_IN_EVERY_LABEL = (
    "model",
    "variable_update",
    "shared_on",
    "modifiers",
    "num_devices",
    "num_workers",
    "num_ps",
    "device",
    "batch_per_device",
    "data_name",
    "pipelined_input",
    "precision",
    "forward_only",
)
# Managers whose label names the device of the shared variables.
_KEEP_SHARED_VARIABLES = ("parameter_server",)
MANAGER = ("variable_update", "shared_on", "modifiers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """All records of one configuration on equal hardware and software.

    Attributes:
        records: in the order in which they were made; at least one.
        images_per_sec: all images of the valid repeats over all their measured time; None if none is valid.
        low: 95 % interval of that; of one repeat, its own; of several, from the spread between them.
        high: likewise.
        speed_up: over the one-device row that `base` names; None if there is none.
        base: the run id of the first record of that row.
        also: what else tells the row from others: hardware, software, and fields of the configuration; else empty.
    """

    records: Sequence[Record]
    images_per_sec: float | None
    low: float | None
    high: float | None
    speed_up: float | None = None
    base: str | None = None
    also: str = ""

    @property
    def config(self) -> Mapping[str, Any]:
        """Returns the configuration."""
        return self.records[0].config

    @property
    def devices(self) -> int:
        """Returns how many devices took part."""
        each, workers = self.config.get("num_devices"), self.config.get("num_workers")
        return (each if isinstance(each, int) else 1) * (workers if isinstance(workers, int) else 1)

    @property
    def rate(self) -> float:
        """Returns images per second of a row that has any.

        Raises:
            ValueError: no repeat was valid.
        """
        if self.images_per_sec is None:
            raise ValueError("A row without a valid repeat has no rate.")
        return self.images_per_sec

    @property
    def per_device(self) -> float | None:
        """Returns images per second and device."""
        return None if self.images_per_sec is None else self.images_per_sec / self.devices

    @property
    def efficiency(self) -> float | None:
        """Returns the speed-up over the number of devices."""
        return None if self.speed_up is None else self.speed_up / self.devices

    @property
    def tflops(self) -> float | None:
        """Returns what the model's arithmetic comes to, in 1e12 operations per second: 3 x forward when training."""
        per_image = self.records[0].model.get("gflop_per_image")
        if self.images_per_sec is None or not per_image:
            return None
        passes = 1 if self.config.get("forward_only") else 3
        return passes * float(per_image) * self.images_per_sec / 1000

    @property
    def mfu(self) -> float | None:
        """Returns what that is of the GPUs' peak in the run's precision, by data sheet; None if it is not known."""
        gpus = self.records[0].environment.get("gpus") or []
        peak = peak_tflops(str(gpus[0]), str(self.config.get("precision"))) if gpus else None
        if self.tflops is None or peak is None or self.config.get("device") != "gpu":
            return None
        physical = math.ceil(self.devices / (self.config.get("virtual_gpus") or 1))
        return self.tflops / (physical * peak)

    @property
    def valid(self) -> list[Record]:
        """Returns the records whose numbers count."""
        return [record for record in self.records if record.status is Status.OK]

    @property
    def status(self) -> str:
        """Returns how the repeats ended: one word if all alike, else each with its number."""
        found = Counter(record.status for record in self.records)
        if len(found) == 1:
            return str(self.records[0].status)
        return ", ".join(f"{count} {status}" for status, count in found.items())

    @property
    def reason(self) -> str:
        """Returns why repeats were not valid, in words."""
        return " ".join(dict.fromkeys(record.reason for record in self.records if record.reason))


def manager_of(config: Mapping[str, Any]) -> str:
    """Returns a variable manager with what modifies it, in few words, as flags have it."""
    name = str(config.get("variable_update") or "")
    modifiers = config.get("modifiers") or {}
    words = [name]
    if name in _KEEP_SHARED_VARIABLES and config.get("shared_on") and not config.get("cluster"):
        words.append(f"on {config['shared_on']}")
    if name not in _KEEP_SHARED_VARIABLES and modifiers.get("all_reduce_spec"):
        words.append(str(modifiers["all_reduce_spec"]))
    plain = {"asynchronous": "async", "staged_vars": "staged", "relaxed_consistency": "relaxed"}
    compact = "compact bfloat16" if modifiers.get("compact_gradient_dtype") == "bfloat16" else "compact"
    plain |= {"compact_gradient_transfer": compact, "fc_model_parallel": "fc parallel"}
    words += [word for field, word in plain.items() if modifiers.get(field)]
    if modifiers.get("gradient_repacking"):
        words.append(f"repacked {modifiers['gradient_repacking']}")
    if modifiers.get("agg_small_grads_max_bytes"):
        words.append(f"small {modifiers['agg_small_grads_max_bytes']}")
    if modifiers.get("local_sgd_steps"):
        words.append(f"every {modifiers['local_sgd_steps']}")
    return " ".join(words)


def summarize(records: Iterable[Record]) -> list[Row]:
    """Returns one row per configuration, hardware and software, in the order of their first records."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.kind is Kind.RUN:
            identity = record.identity
            key = (identity.config_key, identity.hardware_key, identity.software_key)
            groups.setdefault(key, []).append(record)
    rows = [_row(group) for group in groups.values()]
    return _compared([dataclasses.replace(row, also=also) for row, also in zip(rows, _distinctions(rows), strict=True)])


def _distinctions(rows: Sequence[Row]) -> list[str]:
    """Returns for each row what tells it from others of its model, beyond what every label says."""
    machines = {(row.records[0].identity.hardware_key, row.records[0].identity.software_key) for row in rows}
    varying: dict[Any, set[str]] = {}
    by_model: dict[Any, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row.config.get("model"), []).append(row)
    for model, group in by_model.items():
        aside = set().union(*(row.records[0].config_aside for row in group))
        names = {name for row in group for name in _flat(row.config)} - aside - set(_IN_EVERY_LABEL)
        of_input = {"data_set"}.union(*(row.config.get("input") or () for row in group))
        values = {
            name: {
                repr(_flat(row.config).get(name))
                for row in group
                # Between a run that reads images and one that reads none, the label's data makes the difference.
                if row.records[0].config_aside and (name not in of_input or row.config.get("input"))
            }
            for name in names
        }
        varying[model] = {name for name, found in values.items() if len(found) > 1}
    return [_distinction(row, varying[row.config.get("model")], len(machines) > 1) for row in rows]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration with the options of its input as fields of their own."""
    return {name: value for name, value in config.items() if name != "input"} | (config.get("input") or {})


def _distinction(row: Row, varying: set[str], several_machines: bool) -> str:
    first = row.records[0]
    words = [f"{name} {value}" for name, value in _flat(row.config).items() if name in varying]
    if several_machines:
        version = first.environment.get("tensorflow_version") or f"software {first.identity.software_key[:4]}"
        words.append(f"hardware {first.identity.hardware_key[:4]}, TensorFlow {version}")
    return ", ".join(words)


def _row(records: Sequence[Record]) -> Row:
    valid = [record for record in records if record.status is Status.OK]
    if not valid:
        return Row(records=records, images_per_sec=None, low=None, high=None)
    images = sum((r.measurement.images_per_step or 0) * len(r.measurement.step_seconds) for r in valid)
    rate = images / sum(math.fsum(record.measurement.step_seconds) for record in valid)
    low, high = valid[0].derived.images_per_sec_low, valid[0].derived.images_per_sec_high
    if len(valid) > 1:
        low, high = repeats_interval([record.derived.images_per_sec or math.nan for record in valid])
    return Row(records=records, images_per_sec=rate, low=low, high=high)


def repeats_interval(rates: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns a t interval of the geometric mean of at least two repeats' rates: processes differ, not only steps."""
    from scipy import stats  # takes longer to import than all else that `--help` needs

    logs = [math.log(rate) for rate in rates]
    spread = statistics.stdev(logs) / math.sqrt(len(logs))
    half = float(stats.t.ppf((1 + confidence) / 2, len(logs) - 1) * spread)
    middle = sum(logs) / len(logs)
    return math.exp(middle - half), math.exp(middle + half)


def _compared(rows: Sequence[Row]) -> list[Row]:
    """Gives rows of several devices their speed-up over one device.

    That is the row of one device that is alike in all else; if there is none, the fastest one-device row that differs
    in the variable manager alone, which has nothing to exchange there.
    """
    same: dict[str, Row] = {}
    any_manager: dict[str, Row] = {}
    for row in rows:
        if row.images_per_sec is None or row.devices != 1:
            continue
        same[likeness(row, _SCALED)] = row
        but_for_manager = likeness(row, _SCALED + MANAGER)
        best = any_manager.get(but_for_manager)
        if best is None or best.rate < row.images_per_sec:
            any_manager[but_for_manager] = row
    compared = []
    for row in rows:
        base = same.get(likeness(row, _SCALED)) or any_manager.get(likeness(row, _SCALED + MANAGER))
        if base is None or row.images_per_sec is None or not base.images_per_sec:
            compared.append(row)
            continue
        speed_up = row.images_per_sec / base.images_per_sec
        compared.append(dataclasses.replace(row, speed_up=speed_up, base=base.records[0].identity.run_id))
    return compared


def likeness(row: Row, ignored: Sequence[str]) -> str:
    """Returns what is equal for rows that differ in nothing but these fields of the configuration."""
    first = row.records[0]
    leave_out = {*ignored, *first.config_aside}
    config = {name: value for name, value in first.config.items() if name not in leave_out}
    return key_of({**config, "hardware": first.identity.hardware_key, "software": first.identity.software_key})
