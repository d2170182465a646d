"""The table and the records of the verb `allreduce`. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.console import say, warn
from benchmarks.errors import BenchError, ExitStatus
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.record_files import keep
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance
from results.measurement import Derived, Measurement, derive
from results.quality import Conditions, quality_warnings
from results.record import Kind, Record, Status
from results.store import Store
from variable_mgr import expected
from variable_mgr.modifiers import Modifiers
from variable_mgr.reductions.all_reduce_spec import describe_size, fastest_spec
from variable_mgr.traffic import FLOAT32_BYTES

_ROW = "{:>8}  {:>13}  {:<16} {:>10}  {:>8}  {:>8}  {:>8}  {}"


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
    """The result of one reduction of one message: seconds of each round and the error, or the failure and its kind."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None
    failure: str = ""
    failed_as: Status = Status.CRASH


class Report:
    """Saves a record and prints a row for each reduction of each message; names the fastest at the end.

    `devices` describes the devices for people; `modifiers` are the wrappers around the reductions. With `as_text`, the
    table is printed, otherwise the records.
    """

    def __init__(
        self,
        store: Store,
        provenance: Provenance,
        devices: str,
        *,
        runtime: Runtime,
        precision: str,
        modifiers: Modifiers,
        as_text: bool,
    ) -> None:
        self._store, self._provenance, self._devices = store, provenance, devices
        self._num_devices, self._modifiers, self._as_text = runtime.num_devices, modifiers, as_text
        self._tolerance = expected.tolerance(modifiers)
        self._facts = {name: getattr(runtime, name) for name in ("device", "num_devices", "virtual_gpus")}
        self._facts["precision"] = precision
        conditions = Conditions(
            load_per_core=provenance.load_per_core,
            cpu_devices=runtime.num_devices if runtime.device == "cpu" else 0,
            cores=hardware.usable_cores(),
            training=False,
        )
        self._warnings = quality_warnings(Measurement(images_per_step=None), Derived(), conditions)
        self._seconds: dict[int, dict[str, float]] = {}  # of messages of one tensor, by number of elements
        self._begun: Message | None = None
        self._failed = 0
        self._all_saved = True

    def open(self, cannot: Mapping[str, str]) -> None:
        """Prints the header, and the reductions that cannot run here with the reason."""
        for spec, reason in cannot.items():
            self._save(self._record(spec, "", Measurement(images_per_step=None), Status.SKIPPED, reason))
        if not self._as_text:
            return
        say(f"All-reduce of float32 on {self._devices}: every device gets the mean over all.")
        say("algbw is the message's bytes over the mean time, busbw that times 2 (n-1)/n, in GB/s (1e9 bytes); a time")
        say(f"includes TensorFlow's overhead per step. The error is against NumPy; the limit is {self._tolerance:g}.\n")
        for spec, reason in cannot.items():
            say(f"{spec} cannot run here: {reason}")
        header = f"reduction (n={self._num_devices})"
        say(_ROW.format("message", "bytes", header, "time ms", "algbw", "busbw", "error", ""))

    def begin(self, message: Message) -> None:
        """Notes that a message is being measured."""
        self._begun = message

    def give_up(self, specs: Sequence[str], error: BenchError) -> None:
        """Saves and prints that the measurement has ended before the results of the message that was begun."""
        if self._begun:
            self.add(self._begun, dict.fromkeys(specs, Timing(failure=str(error), failed_as=error.record_status)))

    def add(self, message: Message, timings: Mapping[str, Timing]) -> None:
        """Saves and prints the results of all reductions of a message."""
        self._begun = None
        records = {spec: self._measured(message, spec, timing) for spec, timing in timings.items()}
        self._save(*records.values())
        means = {
            spec: sum(timings[spec].seconds) / len(timings[spec].seconds)
            for spec, record in records.items()
            if record.status is Status.OK
        }
        if len(message.shapes) == 1 and means:
            self._seconds[message.size_bytes // FLOAT32_BYTES] = means
        fastest = min(means, key=lambda spec: means[spec], default=None)
        for spec, record in records.items():
            numbers, verdict = ["", "", ""], f"{record.status.upper()}: {record.reason}"
            if spec in means:
                bandwidths = (record.derived.algorithm_bandwidth_gb_per_sec, record.derived.bus_bandwidth_gb_per_sec)
                numbers, verdict = [f"{1000 * means[spec]:.3f}", *(f"{value:.2f}" for value in bandwidths)], "ok"
            self._failed += spec not in means
            error = "" if timings[spec].error is None else f"{timings[spec].error:.0e}"
            name = f"{spec} *" if spec == fastest else spec
            if self._as_text:
                say(_ROW.format(message.name, message.size_bytes, name, *numbers, error, verdict))

    def close(self) -> ExitStatus:
        """Prints the fastest reduction and warnings; returns whether all reductions were right and saved."""
        if self._as_text:
            # Packed gradients are reduced in other sizes than their own, so sizes in a spec would be wrong.
            packed = self._modifiers.gradient_repacking or self._modifiers.agg_small_grads_max_bytes
            spec = fastest_spec(self._seconds, by_size=not packed)
            if spec:
                say(f"\nFastest over these sizes (* marks the fastest of each message): --all_reduce_spec={spec}")
            if self._all_saved:
                say(f"records: {self._store.jsonl_path} and {self._store.csv_path}")
        for sentence in self._warnings:
            warn(sentence)
        if self._failed:
            warn(f"{self._failed} reductions failed or are wrong on these devices: see their rows.")
        return ExitStatus.RUN_FAILED if self._failed or not self._all_saved else ExitStatus.OK

    def _measured(self, message: Message, spec: str, timing: Timing) -> Record:
        measurement = Measurement(
            images_per_step=None,
            step_seconds=timing.seconds,
            message_bytes=message.size_bytes,
            largest_error=timing.error,
        )
        status, reason = Status.OK, ""
        if timing.failure:
            status, reason = timing.failed_as, timing.failure
        elif timing.error is None or not timing.error <= self._tolerance:
            status, reason = Status.INVALID, f"The means are wrong: error {timing.error}, at most {self._tolerance:g}."
        return self._record(spec, message.name, measurement, status, reason)

    def _record(self, spec: str, message: str, measurement: Measurement, status: Status, reason: str) -> Record:
        modifiers = dataclasses.replace(self._modifiers, all_reduce_spec=spec)
        fields: dict[str, Any] = {"message": message, "modifiers": dataclasses.asdict(modifiers), **self._facts}
        return Record(
            kind=Kind.ALL_REDUCE,
            identity=self._provenance.identity({"kind": Kind.ALL_REDUCE, **fields}),
            config=fields,
            environment=self._provenance.environment,
            model={},
            placement={"devices": self._devices},
            measurement=measurement,
            derived=derive(measurement, self._num_devices) if status is Status.OK else Derived(),
            status=status,
            reason=reason,
            warnings=self._warnings,
        )

    def _save(self, *records: Record) -> None:
        self._all_saved = keep(self._store, *records) and self._all_saved
        if not self._as_text:
            for record in records:
                say(record.to_json())
