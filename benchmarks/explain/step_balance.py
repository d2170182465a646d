"""Does computing or exchanging take longer in a training step? From measured rates. Imports no TensorFlow.

A step takes at least the longer of the two times, and at most their sum: managers overlap them in part.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchmarks import record_files
from benchmarks.config.config import Config
from benchmarks.config.workload import Workload
from benchmarks.devices import options
from benchmarks.devices.roofline import devices_with_a_peak
from benchmarks.microbench import device_peak
from benchmarks.option import Flag
from benchmarks.process.tensorflow_setup import Devices
from models import specs
from results.record import Kind, Record, Status
from results.text import amount
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS
from variable_mgr.transfers import total_bytes

ASSUMED_MFU = 0.5
_MOST_NAMED = 5
RATE_FLAGS = (
    Flag("results", str, "records of runs on one device, and of allreduce", default="out/results.jsonl", path="file"),
    Flag(
        "link_gbytes_per_second",
        float,
        "1e9 bytes/s that each device, or process of a cluster, sends",
        default="from records of allreduce",
        above=0,
    ),
    Flag(
        "peak_tflops",
        float,
        "peak of one GPU, or of a host's cores together, in 1e12 FLOP/s",
        default="from records of runs; else the peak that doctor measured here",
        above=0,
    ),
    Flag("assumed_mfu", float, "share of that peak that a step reaches", default=ASSUMED_MFU, above=0, at_most=1),
)


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate and, in words, where it comes from."""

    value: float
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balance:
    """A training step's time to compute and to exchange.

    Attributes:
        batch_per_device: images.
        sent_bytes: what a device sends, by the manager's formula; in a cluster, the busiest process. None: unknown.
        images_per_sec: of one device while all compute and exchange nothing. None: not measured.
        link_bytes_per_sec: at which a device, or process, sends. None: not measured.
    """

    batch_per_device: int
    sent_bytes: float | None
    images_per_sec: Rate | None
    link_bytes_per_sec: Rate | None

    @property
    def compute_seconds(self) -> float | None:
        """Returns the time to compute, if it is known."""
        return self.batch_per_device / self.images_per_sec.value if self.images_per_sec else None

    @property
    def exchange_seconds(self) -> float | None:
        """Returns the time to exchange, if it is known."""
        if self.sent_bytes is None or not (self.sent_bytes == 0 or self.link_bytes_per_sec):
            return None
        return self.sent_bytes / self.link_bytes_per_sec.value if self.link_bytes_per_sec else 0.0

    @property
    def ratio(self) -> float | None:
        """Returns the time to exchange over the time to compute, if both are known."""
        if self.compute_seconds is None or self.exchange_seconds is None:
            return None
        return self.exchange_seconds / self.compute_seconds

    @property
    def bound_by(self) -> Literal["communication", "compute", "unknown"]:
        """Returns what takes longer."""
        if self.ratio is None:
            return "unknown"
        return "communication" if self.ratio > 1 else "compute"

    @property
    def compute_bound_batch(self) -> int | None:
        """Returns the smallest batch per device that is compute-bound, if bytes and images/s do not depend on it."""
        return None if self.ratio is None else max(1, math.ceil(self.ratio * self.batch_per_device))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What is known of the hardware.

    Attributes:
        records: of which rates are taken, oldest first.
        peak_flops_per_sec: of one GPU, or of a host's cores together; None without one.
        peak_is_given: the user gives the peak, which replaces the rates of records.
        assumed_mfu: share of the peak that a step reaches.
        link_bytes_per_sec: given by the user; None: from records.
    """

    records: Sequence[Record] = ()
    peak_flops_per_sec: float | None = None
    peak_is_given: bool = False
    assumed_mfu: float = ASSUMED_MFU
    link_bytes_per_sec: float | None = None

    def balance(
        self, config: Config, *, flops_per_image: float, gradient_bytes: int, sent_bytes: float | None
    ) -> Balance:
        """Returns the balance of a configuration, as far as rates are known; arguments are as of `Balance`.

        Of records, those of one machine are used: that of the newest run or all-reduce on this kind of device. None
        has the rate of the network of a cluster.
        """
        records = [
            record
            for record in reversed(self.records)
            if record.status is Status.OK
            and record.kind in (Kind.RUN, Kind.ALL_REDUCE)
            and record.config.get("device") == config.devices.device
        ]
        records = [record for record in records if record.identity.hardware_key == records[0].identity.hardware_key]
        devices, processes = config.devices, config.processes
        alone = self._computing(records, config.workload, config.computing.precision, flops_per_image)
        at_once = devices_with_a_peak(devices, num_workers=processes.num_workers, num_hosts=processes.num_hosts)
        link: Rate | None = None
        if self.link_bytes_per_sec:
            link = Rate(self.link_bytes_per_sec, "--link_gbytes_per_second")
        elif not processes.cluster:
            spec = config.variables.modifiers.all_reduce_spec
            link = _sending(records, spec, devices.num_devices, gradient_bytes)
        return Balance(
            batch_per_device=config.workload.batch_per_device,
            sent_bytes=sent_bytes,
            images_per_sec=alone and Rate(alone.value * at_once / config.towers_in_total, alone.source),
            link_bytes_per_sec=link,
        )

    def _computing(
        self, newest_first: Sequence[Record], workload: Workload, precision: str, flops_per_image: float
    ) -> Rate | None:
        """Returns images/s of a run on one device: the fastest of the model, if possible with the same batch."""
        runs = [] if self.peak_is_given else [run for run in newest_first if _is_alone(run, workload, precision)]
        if runs:
            batch = workload.batch_per_device
            best = max(runs, key=lambda run: (_batch(run) == batch, run.derived.images_per_sec))
            assert best.derived.images_per_sec
            return Rate(best.derived.images_per_sec, f"run {best.identity.run_id}, batch {_batch(best)}")
        if not self.peak_flops_per_sec:
            return None
        of_peak = f"{self.assumed_mfu:.0%} of {amount(self.peak_flops_per_sec, 'FLOP/s')}"
        return Rate(self.assumed_mfu * self.peak_flops_per_sec / flops_per_image, of_peak)


UNKNOWN = Rates()


def known_rates(values: Mapping[str, Any], devices: Devices, precision: str) -> Rates:
    """Reads records and the stored peak of this machine for a device and precision, unless flags give the rates.

    Raises:
        DataError: the file that `--results` names cannot be read.
    """
    files = record_files.paths([values["results"]] if values["results"] else [])
    link, peak = values["link_gbytes_per_second"], values["peak_tflops"]
    return Rates(
        records=record_files.load(files) if values["results"] or files[0].exists() else (),
        peak_flops_per_sec=1e12 * peak if peak else _stored_peak(devices, precision),
        peak_is_given=bool(peak),
        assumed_mfu=values["assumed_mfu"] or ASSUMED_MFU,
        link_bytes_per_sec=1e9 * link if link else None,
    )


def how_to_measure(devices: Devices, balances: Mapping[str, Balance], *, in_cluster: bool) -> list[str]:
    """Returns sentences on which commands measure what is unknown.

    Args:
        devices: of each process.
        balances: by model.
        in_cluster: there are several processes.
    """
    sentences = []
    on, count = "" if devices.on_gpu else "--device=cpu ", devices.num_devices
    if unmeasured := [model for model, balance in balances.items() if balance.images_per_sec is None]:
        verb, more = "sweep " if len(unmeasured) > 1 else "", len(unmeasured) - _MOST_NAMED
        named = f"{', '.join(unmeasured[:_MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
        models = "all" if unmeasured == specs.names() else ",".join(unmeasured)
        sentences.append(
            f"No rate of computing is known of {named}: 'run_bench.py {verb}{on}--num_gpus=1 "
            f"--model={models}' measures it, or pass --peak_tflops and --assumed_mfu."
        )
    if any(balance.sent_bytes is None for balance in balances.values()):
        sentences.append("How much this setting sends is unknown: it has no formula.")
    elif any(balance.exchange_seconds is None for balance in balances.values()):
        sentences.append(
            "No rate of the network is known: 'run_bench.py doctor' with the same cluster measures it; pass it as "
            "--link_gbytes_per_second."
            if in_cluster
            else f"No rate of the links is known: 'run_bench.py allreduce {on}--num_gpus={max(2, count)}' "
            "measures it, or pass --link_gbytes_per_second."
        )
    return sentences


def _stored_peak(devices: Devices, precision: str) -> float | None:
    inventory = options.chosen_gpus(devices)
    if devices.on_gpu and not inventory.gpus:
        return None
    peak = device_peak.stored_peak(device_peak.peak_key_here(inventory, precision))
    return peak.flops_per_sec if peak else None


def _is_alone(record: Record, workload: Workload, precision: str) -> bool:
    expected = {"model": workload.model, "precision": precision, "forward_only": workload.forward_only}
    same = all(record.config.get(name) == value for name, value in expected.items())
    towers = (record.config.get("num_devices"), record.config.get("num_workers", 1))
    return record.kind is Kind.RUN and same and towers == (1, 1) and bool(record.derived.images_per_sec)


def _batch(record: Record) -> Any:
    return record.config.get("batch_per_device")


def _sending(
    newest_first: Sequence[Record], wanted_spec: str | None, num_devices: int, gradient_bytes: int
) -> Rate | None:
    """Returns the bytes/s that each device sent in an all-reduce.

    It is, if possible, of the same reduction and number of devices, and of the message that is nearest in size.
    """

    def nearness(item: tuple[Record, float]) -> tuple[bool, bool, float]:
        record, _ = item
        spec = record.config["modifiers"]["all_reduce_spec"]
        away = abs(math.log(record.measurement.message_bytes / gradient_bytes))  # type: ignore[operator]
        return spec == wanted_spec, record.config["num_devices"] == num_devices, -away

    measured = [(record, rate) for record in newest_first if (rate := _sent_per_sec(record))]
    if not measured:
        return None
    record, rate = max(measured, key=nearness)
    spec, count = record.config["modifiers"]["all_reduce_spec"], record.config["num_devices"]
    return Rate(rate, f"allreduce {record.identity.run_id}, {spec}, {count} devices, {record.config['message']}")


def _sent_per_sec(record: Record) -> float | None:
    """Returns the bytes/s that each device sends in a recorded all-reduce, by its formula; None if it has none."""
    modifiers, towers = record.config.get("modifiers") or {}, record.config.get("num_devices")
    size, seconds = record.measurement.message_bytes, record.measurement.step_seconds
    algorithm = ALGORITHMS.get(str(modifiers.get("all_reduce_spec")).partition("#")[0])
    if not (size and isinstance(towers, int) and towers > 1 and algorithm):
        return None
    per_byte = total_bytes(algorithm.transfers(towers, 1))
    if per_byte is None or modifiers.get("compact_gradient_transfer"):
        return None
    return per_byte / towers * size * len(seconds) / sum(seconds)
