"""Measured peaks of the hardware, kept in a cache, and a run's share of them. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from benchmarks.config.workload import Workload
from benchmarks.devices.roofline import Peak, Roofline
from benchmarks.errors import BenchError
from benchmarks.machine import hardware, provenance
from benchmarks.machine.cache import CacheFile
from benchmarks.process import apart, tensorflow_setup
from benchmarks.process.tensorflow_setup import Devices, Runtime
from models import specs
from models.model_spec import ModelSpec
from results.measurement import Derived
from results.record import key_of

FILE = CacheFile("peaks.json", "measured peaks")
_SECONDS = 300.0  # limit of a measurement in a process of its own


def peak_key(facts: Mapping[str, Any], tensorflow_version: str | None, precision: str) -> str:
    """Returns the key of a peak in the cache.

    `facts` are at least those of `hardware.describe_hardware`. Of its GPUs only the first counts, whose peak it is.
    """
    one_device = {name: facts[name] for name in ("cpu_model", "cpu_cores_usable", "memory_gib")}
    return f"{key_of({**one_device, 'gpus': facts['gpus'][:1]})} {tensorflow_version} {precision}"


def stored_peak(key: str) -> Peak | None:
    """Returns the peak in the cache; None without one. A damaged entry is ignored with a warning."""
    return FILE.saved(key, Peak)


def peak(device: Literal["cpu", "gpu"], precision: str) -> Peak:
    """Measures the peak of one GPU, or of this host's cores together; returns and stores the best one so far.

    A busy machine makes a peak too low; nothing makes it too high. The measurement takes some seconds, and afterwards
    this process holds memory of the GPU. `tensorflow_setup.prepare` must have been called before.

    Raises:
        UsageError: the device is missing, or does not support the precision.
    """
    inventory = hardware.gpu_inventory() if device == "gpu" else hardware.Inventory()
    version = provenance.describe_software()["tensorflow_version"]
    key = peak_key(hardware.describe_hardware(inventory), version, precision)
    tensorflow_setup.import_tensorflow()
    from benchmarks.devices import device_plan
    from benchmarks.microbench import matmul_peak

    device_plan.require_gpus(Devices(device=device))
    measured = matmul_peak.measure(device, precision)

    def best(entry: Mapping[str, Any] | None) -> dict[str, float]:
        known = FILE.converted(entry, Peak) or measured
        return {name: max(value, getattr(known, name)) for name, value in dataclasses.asdict(measured).items()}

    FILE.update(key, best)  # under its lock, as another process may have measured meanwhile
    return Peak(**best(FILE.saved(key, dict)))


def beside_peak(
    derived: Derived,
    flops_per_image: float | None,
    environment: Mapping[str, Any],
    *,
    device: str,
    precision: str,
    count: int,
) -> Derived:
    """Adds a run's share of the measured peak, if the cache holds one; measures nothing.

    `flops_per_image` is None if the operations were not counted. `environment` is that of the run's record. The run
    could use the peak `count` times; see `roofline.devices_with_a_peak`.
    """
    without_gpus = device == "gpu" and not environment["gpus"]  # a client without GPUs: its cached peak is its CPU's
    if derived.images_per_sec is None or not flops_per_image or without_gpus:
        return derived
    found = stored_peak(peak_key(environment, environment["tensorflow_version"], precision))
    if found is None:
        return derived
    reachable = count * found.flops_per_sec
    return replace(
        derived,
        measured_peak_tflops=reachable / 1e12,
        mfu_of_measured_peak=flops_per_image * derived.images_per_sec / reachable,
    )


def measure(
    spec: ModelSpec, workload: Workload, device: Literal["cpu", "gpu"], precision: str, images_per_sec: float
) -> Roofline:
    """Measures the peak of one device and counts the work of a model's step; runs no step. Raises as `peak` does.

    The device is all cores of this host, or one GPU; `images_per_sec` is the rate that a run reached on it.
    """
    found = peak(device, precision)
    from benchmarks.training import flop_count

    batch = workload.batch_per_device
    work = flop_count.of_model(
        spec,
        batch=batch,
        data_format=workload.data_format,
        num_classes=workload.num_classes,
        precision=precision,
        forward_only=workload.forward_only,
    )
    assert not work.uncounted, "the models' operations can be counted"
    return Roofline(
        flops_per_image=work.flops / batch,
        bytes_per_image=work.moved_bytes / batch,
        peak=found,
        images_per_sec=images_per_sec,
    )


def measure_apart(
    workload: Workload, device: Literal["cpu", "gpu"], precision: str, images_per_sec: float
) -> tuple[Roofline | None, str]:
    """Measures the roofline of one device in a process of its own, so that this process holds no GPU memory.

    `images_per_sec` is the rate that a run reached on it. Returns the roofline, or None and the reason.
    """
    runtime = Runtime(devices=Devices(device=device))  # what is visible has been inherited
    spec = specs.find_model(workload.model)
    try:
        return apart.call(runtime, _SECONDS, measure, spec, workload, device, precision, images_per_sec), ""
    except BenchError as error:
        return None, str(error)


def to_dict(found: Roofline) -> dict[str, Any]:
    """Returns it as JSON can hold it."""
    derived = {name: getattr(found, name) for name in ("limit", "most_images_per_sec", "mfu", "share_of_bound")}
    return {**dataclasses.asdict(found), **derived, "sentences": found.sentences()}
