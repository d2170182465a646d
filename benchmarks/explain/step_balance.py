"""Does computing or exchanging take longer in a training step? From measured or published rates. No TensorFlow.

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
from benchmarks.errors import UsageError
from benchmarks.explain import known_gpus
from benchmarks.explain.known_gpus import LINKS, KnownGpu, Rate
from benchmarks.microbench import device_peak
from benchmarks.option import Flag
from benchmarks.process.tensorflow_setup import Devices
from models import specs
from results.environment import data_sheet, data_sheet_peak, used_gpus
from results.record import Kind, Record, Status
from results.text import amount, first_few
from variable_mgr.catalog import REFERENCE_LOOPS
from variable_mgr.reductions.algorithm_catalog import ALGORITHMS
from variable_mgr.transfers import total_bytes

_MFU_OF_CPUS = 0.5
# What TensorFlow takes for a step on a GPU, however few operations it has; assumed, within a factor.
_LEAST_STEP_SECONDS, _FACTOR_OF_LEAST = 1e-3, 3.0
_MOST_GIVEN = 10**6
RATE_FLAGS = (
    Flag(
        "gpu",
        str,
        "GPU to assume, which need not exist, by a part of its name such as H100, a100 pcie or 4090",
        default="the GPUs here",
    ),
    Flag("link", str, "link between GPUs to assume", tuple(LINKS), default="that of the GPU's data sheet"),
    Flag("results", str, "records of runs on one device, and of allreduce", default="out/results.jsonl", path="file"),
    Flag(
        "link_gbytes_per_second",
        float,
        "1e9 bytes/s that each device, or process of a cluster, sends",
        default="from records of allreduce; else the data sheet",
        above=0,
        at_most=_MOST_GIVEN,
    ),
    Flag(
        "peak_tflops",
        float,
        "peak of one GPU, or of a host's cores together, in 1e12 FLOP/s",
        default="from records of runs; else the data sheet, or the peak that doctor measured here",
        above=0,
        at_most=_MOST_GIVEN,
    ),
    Flag(
        "assumed_mfu",
        float,
        "share of that peak that a step reaches",
        default=f"of GPUs as published, of CPUs {_MFU_OF_CPUS}",
        above=0,
        at_most=1,
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balance:
    """A training step's time to compute and to exchange.

    Attributes:
        batch_per_device: images.
        sent_bytes: what a device sends, by the manager's formula; in a cluster, the busiest process. None: unknown.
        images_per_sec: of one device while all compute and exchange nothing. None: unknown.
        link_bytes_per_sec: at which a device, or process, sends. None: unknown.
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
    def expected_images_per_sec(self) -> tuple[float, float] | None:
        """Returns a device's least and highest rate: exchanging overlaps computing not at all, or fully."""
        if not self.images_per_sec or self.compute_seconds is None or self.exchange_seconds is None:
            return None
        compute, factor, exchange = self.compute_seconds, self.images_per_sec.factor, self.exchange_seconds
        slow, fast = compute * factor + exchange, max(compute / factor, exchange)
        return self.batch_per_device / slow, self.batch_per_device / fast

    @property
    def bound_by(self) -> Literal["communication", "compute", "unknown"]:
        """Returns what takes longer."""
        if self.ratio is None:
            return "unknown"
        return "communication" if self.ratio > 1 else "compute"

    @property
    def compute_bound_batch(self) -> int | None:
        """Returns the smallest batch per device that is compute-bound, if bytes and images/s do not depend on it.

        None if it is unknown: a step of the least time takes it with any batch.
        """
        if self.ratio is None or (self.images_per_sec and self.images_per_sec.of_this_batch):
            return None
        return max(1, math.ceil(self.ratio * self.batch_per_device))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What is known of the hardware.

    Attributes:
        records: of which rates are taken, oldest first; those of GPUs that are only like `gpu` before its own.
        gpu: of which rates are published; None: none, or an unknown one.
        peak_flops_per_sec: of one GPU, or of a host's cores together; None without one.
        hardware_is_given: the user names a GPU or a peak, which replaces the rates of records.
        assumed_mfu: share of the peak that a step reaches; None: of GPUs as published.
        link: given by the user, or that of the GPU's data sheet.
        link_is_given: the user gives the link, which replaces that of records.
    """

    records: Sequence[Record] = ()
    gpu: KnownGpu | None = None
    peak_flops_per_sec: float | None = None
    hardware_is_given: bool = False
    assumed_mfu: float | None = None
    link: Rate | None = None
    link_is_given: bool = False

    def balance(
        self, config: Config, *, flops_per_image: float, gradient_bytes: int, sent_bytes: float | None
    ) -> Balance:
        """Returns the balance of a configuration, as far as rates are known; arguments are as of `Balance`.

        Of records, those of one machine are used: that of the newest run of the model on one device of this kind, or
        without one that of the newest run or all-reduce. None has the rate of the network of a cluster.
        """
        records = [
            record
            for record in reversed(self.records)
            if record.status is Status.OK
            and record.kind in (Kind.RUN, Kind.ALL_REDUCE)
            and record.config.get("device") == config.devices.device
        ]
        runs = [run for run in records if _is_alone(run, config.workload, config.computing.precision)]
        newest = (runs or records)[:1]
        records = [record for record in records if record.identity.hardware_key == newest[0].identity.hardware_key]
        devices, processes = config.devices, config.processes
        alone = self._computing(records, config, flops_per_image)
        at_once = devices_with_a_peak(devices, processes.cluster)
        link = self.link if self.link_is_given else None
        if not link and not processes.cluster:
            spec = config.variables.modifiers.all_reduce_spec
            measured = None if self.hardware_is_given else _sending(records, spec, devices.num_devices, gradient_bytes)
            link = measured or self.link
        return Balance(
            batch_per_device=config.workload.batch_per_device,
            sent_bytes=sent_bytes,
            images_per_sec=alone and dataclasses.replace(alone, value=alone.value * at_once / config.towers_in_total),
            link_bytes_per_sec=link,
        )

    def _computing(self, newest_first: Sequence[Record], config: Config, flops_per_image: float) -> Rate | None:
        """Returns images/s of one device: of the model's fastest run, first of equal XLA, then batch; or expected."""
        workload, precision = config.workload, config.computing.precision
        runs = [run for run in newest_first if not self.hardware_is_given and _is_alone(run, workload, precision)]
        if runs:
            for name, value in (("xla", config.computing.xla), ("batch_per_device", workload.batch_per_device)):
                runs = [run for run in runs if run.config.get(name) == value] or runs
            best = max(runs, key=lambda run: run.derived.images_per_sec or 0.0)
            rate, batch = best.derived.images_per_sec, best.config.get("batch_per_device")
            assert rate
            others = sorted(_gpus(best) - {self.gpu.name}) if self.gpu else []
            return Rate(rate, ", ".join([f"run {best.identity.run_id}", *others, f"batch {batch}"]))
        peak = self.peak_flops_per_sec
        if not peak:
            return None
        if config.devices.on_gpu and not self.assumed_mfu:
            published = known_gpus.expected_rate(
                self.gpu, workload.model, precision, peak_flops_per_sec=peak, flops_per_image=flops_per_image
            )
            most = workload.batch_per_device / _LEAST_STEP_SECONDS
            if not published or published.value <= most:
                return published
            why = f"assumed: a step takes {1e3 * _LEAST_STEP_SECONDS:g} ms at least, and its operations less"
            return Rate(most, why, _FACTOR_OF_LEAST, of_this_batch=True)
        mfu, of = self.assumed_mfu or _MFU_OF_CPUS, f" of {self.gpu.name}" if self.gpu else ""
        return Rate(mfu * peak / flops_per_image, f"{mfu:.0%} of {amount(peak, 'FLOP/s')}{of}")


UNKNOWN = Rates()


def known_rates(values: Mapping[str, Any], devices: Devices, precision: str) -> Rates:
    """Returns what flags give; else records, and the data sheets or the stored peak of what is here.

    Raises:
        UsageError: flags contradict each other, or the GPU does not compute in this precision.
        DataError: the file that `--results` names cannot be read.
    """
    given_link, given_peak = values["link_gbytes_per_second"], values["peak_tflops"]
    for one, other in (("gpu", "peak_tflops"), ("link", "link_gbytes_per_second")):
        if values[one] and values[other]:
            raise UsageError(f"--{one} and --{other} are two ways to say the same: pass one of them.")
    # A step on unlike GPUs takes as long as on the slowest, and records of this machine may be of any of them.
    is_mixed = len({each.name for each in options.chosen_gpus(devices).gpus}) > 1 and not (values["gpu"] or given_peak)
    gpu, peak, link = None, None, None
    if values["gpu"]:
        gpu = known_gpus.find_gpu(values["gpu"])
    elif not given_peak:
        gpu = _gpu_here(devices, precision)
    if given_peak:
        peak = 1e12 * given_peak
    elif gpu:
        peak = gpu.peak_flops_per_sec(precision)
    elif not is_mixed:
        peak = _stored_peak(devices, precision)
    if given_link:
        link = Rate(1e9 * given_link, "--link_gbytes_per_second")
    elif name := values["link"] or (gpu.link if gpu else ""):
        share = known_gpus.share_reached(name)
        link = Rate(share * known_gpus.link_bytes_per_sec(name), f"{share:.0%} of {LINKS[name]['source']}")
    return Rates(
        records=_records(values["results"], None if values["results"] and not values["gpu"] else gpu, is_mixed),
        gpu=gpu,
        peak_flops_per_sec=peak,
        hardware_is_given=bool(given_peak or (values["gpu"] and not values["results"])),
        assumed_mfu=values["assumed_mfu"],
        link=link,
        link_is_given=bool(given_link or values["link"]),
    )


def _records(results: str | None, gpu: KnownGpu | None, is_mixed: bool) -> Sequence[Record]:
    """Returns the records that a flag names, or those of this machine; only of GPUs like this one, if one is given."""
    files = record_files.paths([results] if results else [])
    if not results and (is_mixed or not files[0].exists()):
        return ()
    return _of(record_files.load(files), gpu) if gpu else record_files.load(files)


def _gpu_here(devices: Devices, precision: str) -> KnownGpu | None:
    """Returns the kind of the GPUs here, if its data sheet has a peak in this precision."""
    gpus = options.chosen_gpus(devices).gpus
    peaks = {gpu.name: data_sheet_peak(gpu.name, precision) for gpu in gpus if not gpu.is_divided}
    return known_gpus.gpu_of(gpus[0].name) if len(peaks) == 1 and all(peaks.values()) else None


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
        verb = "sweep " if len(unmeasured) > 1 else ""
        models = "all" if unmeasured == specs.names() else ",".join(unmeasured)
        sentences.append(
            f"No rate of computing is known of {first_few(unmeasured, ', ')}: 'run_bench.py {verb}{on}--num_gpus=1 "
            f"--model={models}' measures it, or pass --gpu, or --peak_tflops and --assumed_mfu."
        )
    if any(balance.sent_bytes is None for balance in balances.values()):
        sentences.append("How much this setting sends is unknown: it has no formula.")
    elif any(balance.exchange_seconds is None for balance in balances.values()):
        sentences.append(
            "No rate of the network is known: 'run_bench.py doctor' with the same cluster measures it; pass it as "
            "--link_gbytes_per_second."
            if in_cluster
            else f"No rate of the links is known: 'run_bench.py allreduce {on}--num_gpus={max(2, count)}' "
            "measures it, or pass --link or --link_gbytes_per_second."
        )
    return sentences


def _stored_peak(devices: Devices, precision: str) -> float | None:
    inventory = options.chosen_gpus(devices)
    if devices.on_gpu and not inventory.gpus:
        return None
    peak = device_peak.stored_peak(device_peak.peak_key_here(inventory, precision))
    return peak.flops_per_sec if peak else None


def _of(records: Sequence[Record], gpu: KnownGpu) -> Sequence[Record]:
    """Returns the valid records of runs on GPUs that are like this one, and then those on this one."""
    alike = {name for name in known_gpus.NAMES if known_gpus.gpu_of(name).is_like(gpu)}
    valid = [record for record in records if record.status is Status.OK and record.config.get("device") == "gpu"]
    return sorted((r for r in valid if set() < _gpus(r) <= alike), key=lambda record: _gpus(record) == {gpu.name})


def _gpus(record: Record) -> set[str]:
    return {data_sheet(name).get("gpu", name) for name in used_gpus(record)}


def _is_alone(record: Record, workload: Workload, precision: str) -> bool:
    expected = {"model": workload.model, "precision": precision, "forward_only": workload.forward_only}
    same = all(record.config.get(name) == value for name, value in expected.items())
    towers = (record.config.get("num_devices"), record.config.get("num_workers", 1))
    is_own = record.config.get("variable_update") not in REFERENCE_LOOPS
    return record.kind is Kind.RUN and same and is_own and towers == (1, 1) and bool(record.derived.images_per_sec)


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
