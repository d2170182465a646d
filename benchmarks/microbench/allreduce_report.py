"""What a person sees of all-reducing messages, and the records of it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from benchmarks.config.config import Config
from benchmarks.console import say, warn
from benchmarks.errors import ExitStatus
from benchmarks.record_files import keep
from benchmarks.system import hardware
from benchmarks.system.provenance import Provenance
from results.measurement import Derived, Measurement, derive
from results.quality import Conditions, doubts
from results.record import Kind, Record, Status
from results.store import Store
from variable_mgr import expected
from variable_mgr.reductions.all_reduce_spec import describe_size, fastest_spec
from variable_mgr.traffic import FLOAT32_BYTES

_ROW = "{:>8}  {:>13}  {:<16} {:>10}  {:>8}  {:>8}  {:>8}  {}"


class Report:
    """Prints a row and keeps a record of each reduction of each message, and says in the end which is the fastest.

    Args:
        config: devices and what is put around the reductions.
        store: where records go.
        provenance: of the records.
        devices: in words.
    """

    def __init__(self, config: Config, store: Store, provenance: Provenance, devices: str) -> None:
        self._config = config
        self._store = store
        self._provenance = provenance
        self._devices = devices
        self._text = config.output_format == "text"
        self._tolerance = expected.tolerance(config.modifiers)
        self._seconds: dict[int, dict[str, float]] = {}  # of messages that are one tensor, by elements
        self._wrong = 0
        self._kept = True

    def open(self, cannot: Mapping[str, str]) -> None:
        """Says what is measured, and which reductions cannot run here."""
        for spec, reason in cannot.items():
            self._keep(self._record(spec, "", Measurement(images_per_step=None), Status.SKIPPED, reason))
        if not self._text:
            return
        towers = self._config.num_devices
        say(f"All-reduce of float32 on {self._devices}: every device gets the mean over all.")
        say("algbw is the message's bytes over the mean time, busbw that times 2 (n-1)/n, in GB/s (1e9 bytes); a time")
        say(f"includes TensorFlow's own for a step. The error is against NumPy and may be {self._tolerance:g}.\n")
        for spec, reason in cannot.items():
            say(f"{spec} cannot run here: {reason}")
        say(_ROW.format("message", "bytes", f"reduction (n={towers})", "time ms", "algbw", "busbw", "error", ""))

    def enter(self, message: Message, timings: Mapping[str, Timing]) -> None:
        """Takes what came of all reductions of a message."""
        records = {spec: self._measured(message, spec, timing) for spec, timing in timings.items()}
        means = {
            spec: sum(record.measurement.step_seconds) / len(record.measurement.step_seconds)
            for spec, record in records.items()
            if record.status is Status.OK
        }
        if len(message.shapes) == 1 and means:
            self._seconds[message.size_bytes // FLOAT32_BYTES] = means
        fastest = min(means, key=lambda spec: means[spec], default=None)
        for spec, record in records.items():
            self._wrong += record.status is not Status.OK
            if self._text:
                say(_row(message, spec, record, fastest=spec == fastest))
        self._keep(*records.values())

    def close(self) -> ExitStatus:
        """Says which reduction is the fastest, and whether all were right."""
        packed = self._config.modifiers.gradient_repacking or self._config.modifiers.agg_small_grads_max_bytes
        # What is packed is reduced in other sizes than it has: sizes in a spec would mean something else.
        spec = fastest_spec(self._seconds, by_size=not packed)
        if spec and self._text:
            say(f"\nFastest over these sizes (* marks the fastest of each message): --all_reduce_spec={spec}")
        if self._text:
            say(f"records: {self._store.jsonl_path} and {self._store.csv_path}")
        for doubt in self._doubts():
            warn(doubt)
        if self._wrong or not self._kept:
            warn(f"{self._wrong} reductions failed or are wrong on these devices: see their rows.")
            return ExitStatus.RUN_FAILED
        return ExitStatus.OK

    def _measured(self, message: Message, spec: str, timing: Timing) -> Record:
        measurement = Measurement(
            images_per_step=None,
            step_seconds=list(timing.seconds),
            message_bytes=message.size_bytes,
            largest_error=timing.error,
        )
        status, reason = Status.OK, ""
        if timing.failure:
            status, reason = (Status.OUT_OF_MEMORY if timing.out_of_memory else Status.CRASH), timing.failure
        elif timing.error is None or not timing.error <= self._tolerance:
            status, reason = Status.INVALID, f"The means are wrong: error {timing.error}, at most {self._tolerance:g}."
        return self._record(spec, message.name, measurement, status, reason)

    def _record(self, spec: str, message: str, measurement: Measurement, status: Status, reason: str) -> Record:
        config = self._config
        fields: dict[str, Any] = {
            "message": message,
            "modifiers": dataclasses.asdict(dataclasses.replace(config.modifiers, all_reduce_spec=spec)),
            **{name: getattr(config, name) for name in ("device", "num_devices", "virtual_gpus", "precision")},
        }
        return Record(
            kind=Kind.ALL_REDUCE,
            identity=self._provenance.identity({"kind": Kind.ALL_REDUCE, **fields}),
            config=fields,
            environment=self._provenance.environment,
            model={},
            placement={"devices": self._devices},
            measurement=measurement,
            derived=derive(measurement, config.num_devices) if status is Status.OK else Derived(),
            status=status,
            reason=reason,
            warnings=self._doubts(),
        )

    def _doubts(self) -> list[str]:
        conditions = Conditions(
            load_per_core=self._provenance.load_per_core,
            cpu_devices=self._config.num_devices if self._config.device == "cpu" else 0,
            cores=hardware.usable_cores(),
            training=False,
        )
        return doubts(Measurement(images_per_step=None), Derived(), conditions)

    def _keep(self, *records: Record) -> None:
        if not self._text:
            for record in records:
                say(record.to_json())
        self._kept = keep(self._store, *records) and self._kept


def _row(message: Message, spec: str, record: Record, *, fastest: bool) -> str:
    derived, error = record.derived, record.measurement.largest_error
    numbers = ["", "", ""]
    if record.status is Status.OK:
        seconds = record.measurement.step_seconds
        bandwidths = (derived.algorithm_bandwidth_gb_per_sec, derived.bus_bandwidth_gb_per_sec)
        numbers = [f"{1000 * sum(seconds) / len(seconds):.3f}", *(f"{value:.2f}" for value in bandwidths)]
    verdict = "ok" if record.status is Status.OK else f"{record.status.upper()}: {record.reason}"
    name = f"{spec} *" if fastest else spec
    return _ROW.format(
        message.name, message.size_bytes, name, *numbers, "" if error is None else f"{error:.0e}", verdict
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


@dataclasses.dataclass(frozen=True)
class Patience:
    """How often a message is reduced: rounds in which every reduction has its turn.

    Attributes:
        warmup_rounds: not measured; the first pays for graph optimisation.
        rounds: measured, at most.
        enough_seconds: once a message has taken so long, three measured rounds suffice.
    """

    warmup_rounds: int
    rounds: int
    enough_seconds: float


@dataclasses.dataclass
class Timing:
    """What came of one reduction of one message: seconds of each round and the error, or why it failed."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    error: float | None = None
    failure: str = ""
    out_of_memory: bool = False


def of_size(size_bytes: int) -> Message:
    """Returns one tensor of that size."""
    return Message(describe_size(size_bytes), ((size_bytes // FLOAT32_BYTES,),))
