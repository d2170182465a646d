"""Rows of records: all repeats of a configuration have one rate, and rows that differ in one respect are compared."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from results import intervals
from results.environment import Utilisation, data_sheet, machine_names, of_data_sheet, software_names, used_gpus
from results.intervals import Interval
from results.record import Kind, Record, Status, key_of
from results.text import counted

# The fields in which a run may differ from the one-device run for its speed-up.
SCALED = ("num_devices", "virtual_gpus", "visible_gpus", "num_workers", "num_ps", "num_hosts")
MANAGER = ("variable_update", "shared_on", "modifiers", "pipeline")
# What is read, and what GPUs do by default where images are read.
DATA = (
    *("data_name", "pipelined_input", "input", "pauses", "data_set"),
    *("gpu_thread_mode", "force_gpu_compatible", "num_warmup_batches"),
)
# The precision, and what follows from it by default.
PRECISION = ("precision", "loss_scaling", "data_format")
# What reports call reference loops, by `variable_update`: they are not compared as variable managers.
LOOP_NAMES = {
    "keras_fit": "Keras' fit",
    "mirrored_strategy": "MirroredStrategy",
    "pytorch": "PyTorch",
    "pytorch_ddp": "PyTorch",
}
_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
# The fields that every label names, and fields that follow from these.
_IN_EVERY_LABEL = (
    *("model", *MANAGER, "device", "num_devices", "num_workers", "num_ps", "batch_per_device"),
    *("data_name", "precision", "forward_only"),
)
# By default these follow from a field that every label names, so only rows with one value of it are compared.
_FOLLOWING = {"loss_scaling": "precision", "batchnorm_persistent": "device", "num_warmup_batches": "device"}
# A label names only other values of these.
_USUAL = {"data_name": "synthetic", "precision": "fp32"}
# Beside the options of the input, what only matters to runs that read images.
_OF_IMAGES = {"data_set", "pipelined_input"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """All records of one configuration on equal hardware, and in a summary on equal software.

    Attributes:
        records: in the order of their runs; at least one.
        images_per_sec: of the valid repeats, each all its images over all its measured time, of several the geometric
            mean; None if none is valid. The interval of a single repeat is its own, that of several comes from the
            spread between them.
        among_processes: the same, of a single repeat widened by what equal processes differ by: what the repeats of
            the rows show together, or an assumption (see `results.intervals`).
        speed_up: over a one-device row, from `among_processes` of both; None if there is none.
        distinct: the machine, the software and the fields of the configuration in which the row differs from others,
            by their names, in words; may be empty, as may be the words: the value is None.
    """

    records: Sequence[Record]
    images_per_sec: Interval | None = None
    among_processes: Interval = Interval(math.nan)
    speed_up: Interval | None = None
    distinct: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        """Returns the configuration."""
        return self.records[0].config

    @functools.cached_property
    def title(self) -> str:
        """A short label."""
        return ", ".join([self.what, f"batch {self.config.get('batch_per_device')}", *self.differences()])

    @property
    def what(self) -> str:
        """Returns the model, the variable manager, the processes and the devices."""
        kind = {"cpu": "CPU device", "gpu": "GPU"}.get(str(self.config.get("device")), "device")
        processes = processes_of(self.config)
        words = [self.model, manager_of(self.config), *([processes] if processes else []), counted(self.devices, kind)]
        return ", ".join(words)

    def setting(self, ignored: Collection[str] = ()) -> str:
        """Returns model, batch, and in what else the row differs from others, but for some fields: a panel's title."""
        batch = f"batch {self.config.get('batch_per_device')} per device"
        return ", ".join([self.model, batch, *self.differences(ignored)])

    def differences(self, ignored: Collection[str] = ()) -> list[str]:
        """Returns in what it differs from the usual data and precision, and from other rows, but for some fields."""
        given = {name: self.config.get(name) for name in _USUAL}
        unusual = [str(value) for name, value in given.items() if value not in (None, _USUAL[name])]
        return [
            *unusual,
            *(f"{name} {value}" for name, value in self.distinct.items() if value and name not in ignored),
        ]

    @property
    def model(self) -> str:
        """Returns the model in words."""
        return f"{self.config.get('model')}{' inference' if self.config.get('forward_only') else ''}"

    @property
    def loop(self) -> str:
        """Returns what takes the steps if it is a reference loop; empty for a variable manager."""
        return LOOP_NAMES.get(str(self.config.get("variable_update")), "")

    @property
    def devices(self) -> int:
        """Returns the number of devices of all workers."""
        return self.count("num_devices") * self.count("num_workers")

    def count(self, name: str, otherwise: int = 1) -> int:
        """Returns a number of the configuration, or `otherwise` if it is unknown."""
        return count(self.config, name, otherwise)

    @property
    def measured(self) -> Interval:
        """Returns images per second; raises a `ValueError` if no repeat is valid."""
        if self.images_per_sec is None:
            raise ValueError("A row without a valid repeat has no rate.")
        return self.images_per_sec

    @property
    def rate(self) -> float:
        """Returns images per second without the interval; raises a `ValueError` if no repeat is valid."""
        return self.measured.value

    @property
    def tflops(self) -> float | None:
        """Returns the model's operations (training: 3 x forward) in 1e12 per second."""
        per_image = self.records[0].model.get("gflop_per_image")
        if self.images_per_sec is None or not per_image:
            return None
        passes = 1 if self.config.get("forward_only") else 3
        return passes * float(per_image) * self.rate / 1000

    @property
    def data_sheet(self) -> Utilisation | str:
        """Returns `tflops` beside the GPUs' data-sheet peak in the run's precision, or why there is none; see `mfu`."""
        if self.tflops is None:
            return ""
        per_gpu = self.count("virtual_gpus")
        return of_data_sheet(self.records[0], tflops=self.tflops, devices=self.devices, per_gpu=per_gpu)

    @property
    def mfu(self) -> float | None:
        """Returns `tflops` over that peak; None if the peak is unknown, or exceeded, which is impossible."""
        found = self.data_sheet
        return None if isinstance(found, str) else found.share

    @property
    def gpu(self) -> str:
        """Returns the name of the GPUs in the table of peaks; empty if it has none, or they are of several kinds."""
        names = {data_sheet(gpu).get("gpu", "") for gpu in used_gpus(self.records[0]) or [""]}
        return names.pop() if len(names) == 1 and self.config.get("device") == "gpu" else ""

    @property
    def is_interleaved(self) -> bool:
        """Whether its steps were interleaved with those of other runs; the record of a killed run does not say so."""
        return any(record.is_interleaved for record in self.records)

    @property
    def valid(self) -> list[Record]:
        """Returns the records with status `ok`."""
        return [record for record in self.records if record.status is Status.OK]

    @property
    def rates(self) -> list[float]:
        """Returns images per second of each valid repeat."""
        return [rate for record in self.records if (rate := record.rate) is not None]

    @property
    def placement(self) -> Mapping[str, Any]:
        """Returns what is where, and what is sent in a step; a run that was killed does not know it."""
        return next((record.placement for record in self.records if record.placement), {})

    @property
    def step_seconds(self) -> Interval:
        """Returns the time of a step at the row's rate; raises a `ValueError` if no repeat is valid."""
        return self.measured.inverse(self.valid[0].measurement.images_per_step or 0)

    @property
    def status(self) -> str:
        """Returns the status of the repeats; if they differ, each with its count."""
        counts = Counter(record.status for record in self.records)
        return ", ".join(f"{count} {status}" if len(counts) > 1 else status for status, count in counts.items())

    @property
    def reason(self) -> str:
        """Returns the reasons of the repeats that are not valid."""
        return " ".join(dict.fromkeys(record.reason for record in self.records if record.reason))


def count(config: Mapping[str, Any], name: str, otherwise: int = 1) -> int:
    """Returns a number of a configuration, or `otherwise` if it is unknown."""
    number = config.get(name)
    return number if isinstance(number, int) and number > 0 else otherwise


def manager_of(config: Mapping[str, Any]) -> str:
    """Returns a variable manager and its modifiers, by the names of their flags."""
    pipeline, modifiers = (
        part if isinstance(part := config.get(name), Mapping) else {} for name in ("pipeline", "modifiers")
    )
    if pipeline:
        return f"pipeline of {pipeline.get('stages')}, {pipeline.get('micro_batches')} micro-batches"
    name = str(config.get("variable_update") or "")
    words = [name]
    if name == "parameter_server" and config.get("shared_on") and not config.get("cluster"):
        words.append(f"on {config['shared_on']}")
    if name != "parameter_server" and modifiers.get("all_reduce_spec"):
        words.append(str(modifiers["all_reduce_spec"]))
    plain = {"asynchronous": "async", "staged_vars": "staged", "relaxed_consistency": "relaxed"}
    compact = "compact bfloat16" if modifiers.get("compact_gradient_dtype") == "bfloat16" else "compact"
    plain |= {"compact_gradient_transfer": compact, "fc_model_parallel": "fc parallel"}
    words += [word for field, word in plain.items() if modifiers.get(field)]
    numbers = {"gradient_repacking": "repacked", "agg_small_grads_max_bytes": "small", "local_sgd_steps": "every"}
    words += [f"{word} {modifiers[field]}" for field, word in numbers.items() if modifiers.get(field)]
    return " ".join(filter(None, words))


def processes_of(config: Mapping[str, Any]) -> str:
    """Returns the numbers of processes of a cluster; empty for a single process."""
    if not config.get("cluster"):
        return ""
    servers = config.get("num_ps") or 0
    return (f"{servers} ps, " if servers else "") + counted(config.get("num_workers") or 1, "worker")


def summarize(records: Iterable[Record]) -> list[Row]:
    """Returns one row per configuration, hardware and software, with interleaved runs apart, in order of appearance."""
    runs = [record for record in records if record.kind is Kind.RUN]
    keys = operator.attrgetter("identity.config_key", "identity.hardware_key", "identity.software_key")
    # The record of a run that was killed does not say whether it was interleaved; others of its session do.
    interleaved = {record.identity.session_id for record in runs if record.is_interleaved}

    def is_interleaved(record: Record) -> bool:
        return record.is_interleaved or record.status is not Status.OK and record.identity.session_id in interleaved

    groups = grouped(runs, lambda record: (*keys(record), is_interleaved(record)))
    # Of a sorted file, too, the repeats of rows are compared in the order of time.
    repeats = [sorted(group, key=operator.attrgetter("ended")) for group in groups.values()]
    machines = grouped(repeats, lambda group: group[0].identity.hardware_key)
    between = {machine: intervals.between_runs(map(_rates, mine)) for machine, mine in machines.items()}
    rows = [_row(group, between[group[0].identity.hardware_key]) for group in repeats]
    rows = [dataclasses.replace(row, distinct=words) for row, words in zip(rows, _distinctions(rows), strict=True)]
    on_one_device = Siblings([row for row in rows if row.devices == 1])
    return [_with_speed_up(row, on_one_device) for row in rows]


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Returns items by their key, in order of appearance."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _row(records: Sequence[Record], between: tuple[float, int]) -> Row:
    """Returns the row of repeats; equal processes differ by the share `between`, of so many degrees of freedom."""
    row, rates = Row(records=records), _rates(records)
    if not rates:
        return row
    if len(rates) > 1:
        rate = intervals.of_repeats(rates)
        return Row(records=records, images_per_sec=rate, among_processes=rate)
    derived = row.valid[0].derived
    rate = Interval.of(rates[0], derived.images_per_sec_low, derived.images_per_sec_high)
    return Row(records=records, images_per_sec=rate, among_processes=rate.widened(*between))


def _rates(records: Sequence[Record]) -> list[float]:
    """Returns the rates of the valid repeats; none if one of them has none."""
    rates = [record.derived.images_per_sec for record in records if record.status is Status.OK]
    known = [rate for rate in rates if rate is not None]
    return known if len(known) == len(rates) else []


def between_runs(rows: Iterable[Row]) -> tuple[float, int]:
    """Returns by which share equal processes differ, and its degrees of freedom, by all repeats of rows with a rate."""
    return intervals.between_runs(_rates(row.records) for row in rows)


def _distinctions(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Returns for each row its values of the fields that vary among the rows of its model and that no label names."""
    firsts = [row.records[0] for row in rows]
    machines = machine_names(firsts)
    software = software_names(firsts)
    varying = {m: _varying_fields(group) for m, group in grouped(rows, lambda row: row.config.get("model")).items()}
    are_mixed = len({row.is_interleaved for row in rows}) > 1
    distinctions = []
    for row in rows:
        first, names = row.records[0], varying[row.config.get("model")]
        shown = names if row.config.get("input") else names - _OF_IMAGES
        words = {name: _in_words(value) for name, value in _flat(row.config).items() if name in shown}
        if len(machines) > 1:
            words["machine"] = machines[first.identity.hardware_key]
        if len(software) > 1:
            words["TensorFlow"] = software[first.identity.software_key]
        if are_mixed:
            words["steps"] = "interleaved" if row.is_interleaved else "alone"
        distinctions.append(words)
    return distinctions


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_in_words(part)}" for name, part in value.items() if part)
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _varying_fields(rows: Sequence[Row]) -> set[str]:
    hidden = set(_IN_EVERY_LABEL).union(*(row.records[0].config_not_in_key for row in rows))
    names = {name for row in rows for name in _flat(row.config)} - hidden
    # These are compared only among runs that read images, since every label shows whether a run does.
    of_input = _OF_IMAGES.union(*(row.config.get("input") or () for row in rows))
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        if row.records[0].config_not_in_key:
            fields = _flat(row.config)
            for name in names if row.config.get("input") else names - of_input:
                kind = str(fields.get(_FOLLOWING.get(name, "")))
                # A suite that had no such option yet did what its absence does now.
                values.setdefault((name, kind), set()).add(repr(fields.get(name) or None))
    return {name for (name, _), texts in values.items() if len(texts) > 1}


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "input"} | (config.get("input") or {})


class Siblings:
    """Finds, among `rows`, those that differ from a row only in given fields of the configuration.

    Interleaved steps meet cold caches, so rows of such steps are not compared with others.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = [row for row in rows if row.images_per_sec is not None]
        self._by_fields: dict[tuple[str, ...], dict[str, list[Row]]] = {}

    def groups(self, differing_in: tuple[str, ...]) -> list[list[Row]]:
        """Returns all valid rows, those together that differ at most in these fields; in order of appearance."""
        return [*self._index(differing_in).values()]

    def all_of(self, row: Row, differing_in: tuple[str, ...]) -> list[Row]:
        """Returns all valid rows, which may include `row`, that differ from it at most in these fields."""
        return self._index(differing_in).get(_key_without(row, differing_in), [])

    def _index(self, differing_in: tuple[str, ...]) -> dict[str, list[Row]]:
        if differing_in not in self._by_fields:
            self._by_fields[differing_in] = grouped(self._rows, lambda row: _key_without(row, differing_in))
        return self._by_fields[differing_in]

    def of(self, row: Row, differing_in: tuple[str, ...], wanted: Mapping[str, Any]) -> Row | None:
        """Returns the first of them whose configuration has the wanted values."""
        others = self.all_of(row, differing_in)
        return next((o for o in others if all(o.config.get(name) == wanted[name] for name in wanted)), None)


def _key_without(row: Row, fields: tuple[str, ...]) -> str:
    """Returns a key that is equal for rows that differ only in these fields of the configuration."""
    first = row.records[0]
    left_out = {*fields, *first.config_not_in_key}
    config = {name: value for name, value in first.config.items() if name not in left_out}
    machine = {"hardware": first.identity.hardware_key, "software": first.identity.software_key}
    return key_of({**config, **machine, "interleaved": row.is_interleaved})


def _with_speed_up(row: Row, on_one_device: Siblings) -> Row:
    """Returns the row with its speed-up over one device.

    The base is the one-device row that is equal otherwise: of several, one with as many parameter servers, else in as
    many processes, else the fastest. If there is none, it is the fastest one-device row that differs only in the
    variable manager, which exchanges nothing on one device; a reference loop is no manager.
    """

    def likeness(other: Row) -> tuple[bool, bool, float]:
        mine, theirs = row.config, other.config
        servers = (mine.get("num_ps") or 0) == (theirs.get("num_ps") or 0)
        return servers, bool(mine.get("cluster")) == bool(theirs.get("cluster")), other.rate

    same = on_one_device.all_of(row, SCALED)
    any_manager = [other for other in on_one_device.all_of(row, SCALED + MANAGER) if other.loop == row.loop]
    base = row if row in same else max(same or any_manager, key=likeness, default=None)
    if base is None or row.images_per_sec is None:
        return row
    speed_up = Interval(1.0) if base.records is row.records else row.among_processes.over(base.among_processes)
    return dataclasses.replace(row, speed_up=speed_up)
