"""The table and the records of the verb `allreduce`. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.console import say, warn
from benchmarks.errors import BenchError, ExitStatus
from benchmarks.machine import hardware
from benchmarks.machine.provenance import Provenance
from benchmarks.process.tensorflow_setup import Devices
from benchmarks.record_files import save
from results.intervals import slower_than_best
from results.measurement import Derived, Measurement, derive
from results.quality import warnings_of_others, warnings_of_shared_cores
from results.record import Kind, Record, Status
from results.store import Store
from results.text import Table, counted, first_few
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers
from variable_mgr.reductions.all_reduce_spec import describe_size
from variable_mgr.transfers import FLOAT32_BYTES

_TABLE = Table(
    ("message", "bytes", "devices", "reduction", "time ms", "algbw", "busbw", "error", ""),
    numbers=("message", "bytes", "devices", "time ms", "algbw", "busbw", "error"),
    widths=(8, 13, 7, 16, 9, 8, 8, 8, 0),
)


@dataclasses.dataclass(frozen=True)
class Message:
    """What is reduced: float32 tensors of these shapes on every tower."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size_bytes(self) -> int:
        """Returns the size of one tower's tensors."""
        return FLOAT32_BYTES * sum(math.prod(shape) for shape in self.shapes)


def of_size(size_bytes: int) -> Message:
    """Returns one tensor of that size."""
    return Message(describe_size(size_bytes), ((size_bytes // FLOAT32_BYTES,),))


@dataclasses.dataclass
class Timing:
    """The result of one reduction of one message: seconds of each round and the error, or the failure."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None
    failure: BenchError | None = None


def winner(seconds: Mapping[str, Sequence[float]]) -> tuple[str | None, str]:
    """Returns the reduction that is clearly faster than all others, and a phrase with its lead.

    Each round ran every reduction once, so rounds are compared in pairs, by a t test at 99 %. The fastest must also
    have the shortest mean time, which one long round can change.

    Args:
        seconds: of each reduction, as many as rounds.
    """
    names = list(seconds)
    if len(names) < 2:
        return (names[0], f"{names[0]} (the only one)") if names else (None, "none is valid")
    means = {name: statistics.fmean(times) for name, times in seconds.items()}
    first, second, *_ = by_mean = sorted(names, key=lambda name: means[name])
    slower = {names[index] for index in slower_than_best([[1 / times for times in seconds[name]] for name in names])}
    ties = [name for name in by_mean if name == first or name not in slower]
    if len(ties) > 1:
        return None, f"no clear winner: {first_few(ties, ', ')}"
    return first, f"{first} by {means[second] / means[first] - 1:.0%}"


class ReductionReport:
    """Saves a record and prints a row for each reduction of each message; names the fastest at the end.

    `described` has, by the number of devices that reduce together (ascending), those of `devices` that do in words.
    `modifiers` are the wrappers around the reductions. With `as_text`, the table is printed, otherwise the records.
    """

    def __init__(
        self,
        store: Store,
        provenance: Provenance,
        described: Mapping[int, str],
        *,
        devices: Devices,
        precision: str,
        modifiers: Modifiers,
        as_text: bool,
    ) -> None:
        self._store, self._provenance, self._described = store, provenance, described
        self._modifiers, self._as_text = modifiers, as_text
        self._tolerance = expected.tolerance(modifiers)
        self._facts = {"device": devices.device, "virtual_gpus": devices.virtual_gpus, "precision": precision}
        cores, others = hardware.usable_cores(), provenance.cores_used_by_others_before
        self._warnings = {
            count: [
                *warnings_of_others(others, cores, "directly before the run"),
                *warnings_of_shared_cores(0 if devices.on_gpu else count, cores),
            ]
            for count in described
        }
        self._leads: dict[tuple[str, int], str] = {}  # of the fastest, by message and number of devices
        self._failed = 0
        self._all_saved = True

    def open(self, cannot: Mapping[int, Mapping[str, str]]) -> None:
        """Prints the header, and for each number of devices the reductions that cannot run, with the reason."""
        rows = [(spec, number, reason) for number, reasons in cannot.items() for spec, reason in reasons.items()]
        none = Measurement(images_per_step=None)
        for spec, number, reason in rows:
            self._save([self._record(spec, "", number, none, Status.SKIPPED, reason)])
        if not self._as_text:
            return
        say(f"All-reduce of float32 on {self._described[max(self._described)]}: every device gets the mean over all.")
        say("algbw is the message's bytes over the mean time, busbw that times 2 (n-1)/n, in GB/s (1e9 bytes); a time")
        say(f"includes TensorFlow's overhead per step. The error is against NumPy; the limit is {self._tolerance:g}.\n")
        say(*(f"{spec} cannot run on {number} devices: {reason}" for spec, number, reason in rows))
        say(_TABLE.line())

    def give_up(self, message: Message, num_devices: int, specs: Iterable[str], error: BenchError) -> None:
        """Saves and prints that the measurement has ended before the results of a message."""
        self.add(message, num_devices, dict.fromkeys(specs, Timing(failure=error)))

    def add(self, message: Message, num_devices: int, timings: Mapping[str, Timing]) -> None:
        """Saves and prints the results of all reductions of a message on so many devices."""
        records = {spec: self._measured(message, spec, num_devices, timing) for spec, timing in timings.items()}
        self._save(list(records.values()))
        valid = {spec: timings[spec].seconds for spec, record in records.items() if record.status is Status.OK}
        means = {spec: sum(seconds) / len(seconds) for spec, seconds in valid.items()}
        fastest, lead = winner(valid)
        self._leads[message.name, num_devices] = lead
        for spec, record in records.items():
            numbers, verdict = ["", "", ""], f"{record.status.upper()}: {record.reason}"
            if spec in means:
                bandwidths = (record.derived.algorithm_bandwidth_gb_per_sec, record.derived.bus_bandwidth_gb_per_sec)
                numbers, verdict = [f"{1000 * means[spec]:.3f}", *(f"{value:.2f}" for value in bandwidths)], "ok"
            self._failed += spec not in means
            error = "" if timings[spec].error is None else f"{timings[spec].error:.0e}"
            name = f"{spec} *" if spec == fastest else spec
            if self._as_text:
                start = (message.name, str(message.size_bytes), str(num_devices), name)
                say(_TABLE.line([*start, *numbers, error, verdict]))

    def close(self) -> ExitStatus:
        """Prints the fastest reduction and warnings; returns whether all were measured, right and saved."""
        if self._as_text:
            say(*self._winner_lines())
            if self._all_saved:
                say(f"records: {self._store.jsonl_path} and {self._store.csv_path}")
        warn(*self._warnings[max(self._warnings)])
        if self._failed:
            warn(f"Failed or wrong on these devices: {counted(self._failed, 'reduction')}. See the rows.")
        is_complete = self._leads and self._all_saved and not self._failed
        return ExitStatus.OK if is_complete else ExitStatus.RUN_FAILED

    def _winner_lines(self) -> list[str]:
        """Returns the winner of each message by number of devices, and its lead over the next."""
        if not self._leads:
            return []
        rows = [
            [name, *(self._leads.get((name, number), "") for number in self._described)]
            for name in dict.fromkeys(name for name, _ in self._leads)
        ]
        note = (
            "Fastest reduction (*) and how much longer the next takes; no clear winner: all named are within the noise."
        )
        columns = ["message", *(counted(number, "device") for number in self._described)]
        return ["", note, *Table(columns, rows).text(), ""]

    def _measured(self, message: Message, spec: str, num_devices: int, timing: Timing) -> Record:
        measurement = Measurement(
            images_per_step=None,
            step_seconds=timing.seconds,
            message_bytes=message.size_bytes,
            largest_error=timing.error,
        )
        status, reason = Status.OK, ""
        if timing.failure:
            status, reason = timing.failure.record_status, str(timing.failure)
        elif timing.error is None or not timing.error <= self._tolerance:
            status, reason = Status.INVALID, f"The means are wrong: error {timing.error}, at most {self._tolerance:g}."
        return self._record(spec, message.name, num_devices, measurement, status, reason)

    def _record(
        self, spec: str, message: str, num_devices: int, measurement: Measurement, status: Status, reason: str
    ) -> Record:
        modifiers = dataclasses.asdict(dataclasses.replace(self._modifiers, all_reduce_spec=spec))
        fields: dict[str, Any] = {
            "message": message,
            "modifiers": modifiers,
            "num_devices": num_devices,
            **self._facts,
        }
        return Record(
            kind=Kind.ALL_REDUCE,
            identity=self._provenance.identity({"kind": Kind.ALL_REDUCE, **fields}),
            config=fields,
            environment=self._provenance.environment,
            model={},
            placement={"devices": self._described[num_devices]},
            measurement=measurement,
            derived=derive(measurement, num_devices) if status is Status.OK else Derived(),
            status=status,
            reason=reason,
            warnings=self._warnings[num_devices],
        )

    def _save(self, records: Sequence[Record]) -> None:
        records, saved = save(self._store, *records)
        self._all_saved = saved and self._all_saved
        if not self._as_text:
            for record in records:
                say(record.to_json())
