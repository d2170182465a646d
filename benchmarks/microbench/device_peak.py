"""What hardware reaches, measured now or before, and how a run compares with it. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.config.config import Config
from benchmarks.errors import BenchError
from benchmarks.microbench.roofline import Peak, Roofline, devices_with_a_peak
from benchmarks.process import tensorflow_setup
from benchmarks.process.tensorflow_setup import Runtime
from benchmarks.system import hardware, provenance
from benchmarks.system.cache import CacheFile
from models import specs
from results.measurement import Derived
from results.record import key_of


def peak(device: str, precision: str) -> Peak:
    """Measures what one GPU, or this host's cores together, reach; returns and keeps the best that was ever seen.

    A figure from a busy machine is too low, and one that is too high cannot be measured. That takes some
    seconds, and on a GPU this process holds memory of it from then on. TensorFlow's version is that which is installed.
    `tensorflow_setup.prepare` must have been called.

    Args:
        device: `cpu` or `gpu`.
        precision: of the arithmetic.

    Raises:
        UsageError: there is no such device, or it has no such precision.
    """
    inventory = hardware.gpu_inventory() if device == "gpu" else hardware.Inventory()
    version = provenance.describe_software()["tensorflow_version"]
    key = peak_key(hardware.describe_hardware(inventory), version, precision)
    tensorflow_setup.import_tensorflow()
    from benchmarks.microbench import matmul_peak
    from benchmarks.topology import devices

    if device == "gpu":
        devices.require_gpus(1, virtual_gpus=1)
    measured = matmul_peak.measure(device, precision)
    best = measured.or_better(stored_peak(key) or measured)
    store_peak(key, best)
    return best


def measure(config: Config, images_per_sec: float | None = None) -> Roofline:
    """Measures the peak, counts a step's work, and sets it beside the peak of the devices; takes no step.

    Args:
        config: of the run.
        images_per_sec: what it reached, over all devices; None if that is not known.

    Raises:
        UsageError: as of `peak`.
    """
    found = peak(config.device, config.precision)
    from benchmarks.training import flop_count

    work = flop_count.of_model(
        specs.find(config.model),
        batch=config.batch_per_device,
        data_format=config.data_format,
        num_classes=config.num_classes,
        precision=config.precision,
        forward_only=config.forward_only,
    )
    assert not work.uncounted, "the models' operations can be counted"
    return Roofline(
        flops_per_image=work.flops / config.batch_per_device,
        bytes_per_image=work.moved_bytes / config.batch_per_device,
        peak=found.times(_count(config)),
        images_per_sec=images_per_sec,
    )


def beside_peak(
    derived: Derived, config: Config, placement: Mapping[str, Any], surroundings: Mapping[str, Any]
) -> Derived:
    """Adds what share of the measured peak a run reached, if the cache holds one; nothing is measured.

    Args:
        derived: of the run.
        config: of the run.
        placement: of its record, with the operations that were counted.
        surroundings: `environment` of its record.
    """
    flops_per_image = placement.get("flops_per_image")
    if derived.images_per_sec is None or not flops_per_image:
        return derived
    if config.device == "gpu" and not surroundings["gpus"]:  # a client without GPUs: its own peak is no GPU's
        return derived
    found = stored_peak(peak_key(surroundings, surroundings["tensorflow_version"], config.precision))
    if found is None:
        return derived
    reachable = found.times(_count(config)).flops_per_sec
    return dataclasses.replace(
        derived,
        measured_peak_tflops=reachable / 1e12,
        mfu_of_measured_peak=flops_per_image * derived.images_per_sec / reachable,
    )


def _count(config: Config) -> int:
    return devices_with_a_peak(
        config.device,
        num_devices=config.num_devices,
        virtual_gpus=config.virtual_gpus,
        num_workers=config.num_workers,
        num_hosts=config.cluster.num_worker_hosts if config.cluster else 1,
    )


FILE = CacheFile("peaks.json", "measured peaks")
_HARDWARE = ("cpu_model", "cpu_cores_usable", "memory_gib")


def peak_key(hardware: Mapping[str, Any], tensorflow_version: str | None, precision: str) -> str:
    """Returns what a peak is kept under.

    Args:
        hardware: as of `benchmarks.system.hardware.describe_hardware`, or more. Of its GPUs the first counts, for
            that is whose peak is measured, however many there are.
        tensorflow_version: of the package.
        precision: of the arithmetic.
    """
    one_device = {**{name: hardware[name] for name in _HARDWARE}, "gpus": hardware["gpus"][:1]}
    return f"{key_of(one_device)} {tensorflow_version} {precision}"


def stored_peak(wanted: str) -> Peak | None:
    """Returns the peak that is kept under a key; None if there is none."""
    entry = FILE.find(wanted)
    if entry is None:
        return None
    try:
        peak = Peak(flops_per_sec=float(entry["flops_per_sec"]), bytes_per_sec=float(entry["bytes_per_sec"]))
        if not all(0 < value < math.inf for value in dataclasses.astuple(peak)):
            raise ValueError("a peak is not a positive number")
    except (KeyError, TypeError, ValueError) as error:
        FILE.ignore(error)
        return None
    return peak


def store_peak(wanted: str, peak: Peak) -> None:
    """Keeps a peak under a key."""
    FILE.keep(wanted, dataclasses.asdict(peak))


_SECONDS = 300.0


def measure_apart(config: Config, images_per_sec: float) -> tuple[Roofline | None, str]:
    """Sets what one device reaches beside what it could. It takes some seconds, and no GPU is held afterwards.

    Args:
        config: of the run on all devices.
        images_per_sec: of one of them.

    Returns:
        The roofline, or None, and why there is none.
    """
    context = multiprocessing.get_context("spawn")
    answers, answer = context.Pipe(duplex=False)
    alone = dataclasses.replace(config, num_devices=1)
    process = context.Process(target=_measure, args=(alone, images_per_sec, answer), daemon=True)
    process.start()
    answer.close()
    try:
        found = answers.recv() if answers.poll(_SECONDS) else f"it took longer than {_SECONDS:g} s"
    except EOFError:
        found = "the process that measures it ended before it could say"
    finally:
        process.kill()
        process.join()
    return (None, found) if isinstance(found, str) else (found, "")


def _measure(config: Config, images_per_sec: float, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has started this process ends it
    tensorflow_setup.prepare(Runtime(device=config.device))  # what is visible has been inherited
    try:
        answer.send(measure(config, images_per_sec))
    except BenchError as error:
        answer.send(str(error))


def to_dict(found: Roofline) -> dict[str, Any]:
    """Returns it as JSON can hold it."""
    return {
        **dataclasses.asdict(found),
        "limit": found.limit,
        "most_images_per_sec": found.most_images_per_sec,
        "mfu": found.mfu,
        "share_of_bound": found.share_of_bound,
        "sentences": found.sentences(),
    }
