"""What hardware reaches, measured now or before, and how a run compares with it. Imports TensorFlow late."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks import peak_cache
from benchmarks.config.config import Config
from benchmarks.process import tensorflow_setup
from benchmarks.roofline import Peak, Roofline, devices_with_a_peak
from benchmarks.system import inventory as hardware
from benchmarks.system import provenance
from models import specs
from results.measurement import Derived


def peak(device: str, precision: str) -> Peak:
    """Measures what one GPU, or this host's cores together, reach; returns and keeps the best that was ever seen.

    A figure from a busy machine is too low, and one that is too high cannot be measured. That takes some
    seconds, and on a GPU this process holds memory of it from then on. TensorFlow's version is that which is installed.
    `process_environment.prepare` must have been called.

    Args:
        device: `cpu` or `gpu`.
        precision: of the arithmetic.

    Raises:
        UsageError: there is no such device, or it has no such precision.
    """
    inventory = hardware.gpu_inventory() if device == "gpu" else hardware.Inventory()
    version = provenance.describe_software()["tensorflow_version"]
    key = peak_cache.key(hardware.describe_hardware(inventory), version, precision)
    tensorflow_setup.import_tensorflow()
    from benchmarks import matmul_peak
    from benchmarks.topology import devices

    if device == "gpu":
        devices.require_gpus(1, virtual_gpus=1)
    measured = matmul_peak.measure(device, precision)
    best = measured.or_better(peak_cache.find(key) or measured)
    peak_cache.keep(key, best)
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
    found = peak_cache.find(peak_cache.key(surroundings, surroundings["tensorflow_version"], config.precision))
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
