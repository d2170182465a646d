"""What was observed in a run, and the numbers that follow from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from results import statistics

_STEPS_FOR_P999 = 1000
_LAST_STEPS = 10

# What holds a GPU's clock down under full load: the one reason that is the rule.
POWER_LIMIT = "power limit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was observed, one entry per step, all times in seconds.

    Attributes:
        images_per_step: images that one global step consumes, over all devices; None where a step has none.
        startup_seconds: from the start of the process to the start of the first step.
        startup_phases_seconds: what that is made of, in order: `Python` (interpreter, own modules, a look at the
            machine), `TensorFlow` (its import), `cluster` (until all tasks agree), `graph` (building it), `variables`
            (the session, initialising, filling the input). In a cluster, of the worker that took longest.
        first_step_seconds: the first step alone, which pays for graph optimisation and memory growth.
        warmup_step_seconds: the other steps before measuring.
        step_seconds: the measured steps.
        losses: mean loss over all devices, per measured step; None stands for a value that is not finite.
        warmup_losses: likewise, of the first step and the warm-up steps.
        peak_host_memory_bytes: largest resident set of the process.
        replica_drift: largest absolute difference between copies of a variable that must be equal;
            None where copies may differ or there is only one.
        tower_step_seconds: where towers go their own way, the measured steps of each tower; empty elsewhere. There, a
            global step is as many completed tower steps as there are towers.
            Where the workers of a cluster do, it is those of each worker.
        staleness_counts: likewise, how many tower steps applied a gradient of weights that were 0, 1, 2 ... updates
            old.
        worker_step_seconds: in a cluster, the measured steps of each worker, as it saw them.
        worker_compute_seconds: likewise, from the begin of a step until the worker had its gradients.
        message_bytes: where a step all-reduces a message, the size of that, of one tower.
        largest_error: likewise, the largest relative difference (absolute below 1) to the mean in NumPy.
        top_1_accuracies: share of a step's images that it classified rightly before its update; empty if not asked for.
        top_5_accuracies: likewise, where the right class is among the five likeliest.
        loss_scales: what the loss was multiplied by, per measured step; empty unless it follows the gradients.
        skipped_updates: per measured step 1 if its update was left out, since gradients overflowed; likewise.
        fp32_losses: losses of the same steps, trained again in fp32; empty if not asked for.
        input_wait_seconds: of each measured step, how long it did nothing but wait for images; empty if none are read.
        skipped_records: bad records that were left out; None where none may be.
        input_stages: images per second of the input alone, ended after each of its stages; empty if not measured.
        bare_decode_images_per_sec: what decoding alone would reach with the same files; None if not measured.
        telemetry: for each process that measured, what it saw of its host and its physical GPUs from the begin of the
            measured steps to their end, as docs/performance.md lists it; what could not be seen is None.
    """

    images_per_step: int | None
    startup_seconds: float | None = None
    startup_phases_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    first_step_seconds: float | None = None
    warmup_step_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    step_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    losses: Sequence[float | None] = dataclasses.field(default_factory=list)
    warmup_losses: Sequence[float | None] = dataclasses.field(default_factory=list)
    peak_host_memory_bytes: int | None = None
    replica_drift: float | None = None
    tower_step_seconds: Sequence[Sequence[float]] = dataclasses.field(default_factory=list)
    staleness_counts: Sequence[int] = dataclasses.field(default_factory=list)
    worker_step_seconds: Sequence[Sequence[float]] = dataclasses.field(default_factory=list)
    worker_compute_seconds: Sequence[Sequence[float]] = dataclasses.field(default_factory=list)
    message_bytes: int | None = None
    largest_error: float | None = None
    top_1_accuracies: Sequence[float] = dataclasses.field(default_factory=list)
    top_5_accuracies: Sequence[float] = dataclasses.field(default_factory=list)
    loss_scales: Sequence[float] = dataclasses.field(default_factory=list)
    skipped_updates: Sequence[float] = dataclasses.field(default_factory=list)
    fp32_losses: Sequence[float | None] = dataclasses.field(default_factory=list)
    input_wait_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    skipped_records: int | None = None
    input_stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bare_decode_images_per_sec: float | None = None
    telemetry: Sequence[Mapping[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """Numbers computed from the measurement; None where it does not support one.

    `step_ms_p999` wants 1,000 steps. `compile_seconds` is what the first step took longer than the median one, where
    XLA compiled in it: also the little that every first step does besides. `loss_difference_to_fp32` is the mean loss
    of the last ten steps less that in fp32.
    `synthetic_ratio` is the rate over that of the same run with synthetic images, where the results hold one.
    `slowest_worker` is the one that takes longest to its gradients (to the end of its step, where workers go their own
    way), by median; `straggler_ratio` is its time over the median of the others.
    `power_watts` is the mean power of the GPUs that computed (GPU only: without their host), or in a run on CPUs that
    of their hosts' CPU packages, whoever else used them (CPU package: without memory and the rest); `images_per_joule`
    is the rate over it; `telemetry[...]["energy_of"]` says which. `cpu_cores_used` is the CPU time of the processes
    that measured over time. `peak_gpu_memory_bytes` is the most that was taken of one GPU's memory, needed or not.
    `measured_peak_tflops` is what matrix products were measured to reach on the devices together (of logical CPU
    devices: on their host), and `mfu_of_measured_peak` is the step's arithmetic over that.
    """

    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    images_per_sec_per_device: float | None = None
    images_per_sec_jitter: float | None = None
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    step_ms_p99: float | None = None
    step_ms_p999: float | None = None
    compile_seconds: float | None = None
    loss_difference_to_fp32: float | None = None
    staleness_mean: float | None = None
    algorithm_bandwidth_gb_per_sec: float | None = None
    bus_bandwidth_gb_per_sec: float | None = None
    input_wait_share: float | None = None
    synthetic_ratio: float | None = None
    slowest_worker: int | None = None
    straggler_ratio: float | None = None
    power_watts: float | None = None
    images_per_joule: float | None = None
    cpu_cores_used: float | None = None
    peak_gpu_memory_bytes: int | None = None
    measured_peak_tflops: float | None = None
    mfu_of_measured_peak: float | None = None


def named_gpus(measurement: Measurement) -> dict[str, Mapping[str, Any]]:
    """Returns what was seen of each physical GPU, once, by a name that says whose it is."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for worker, process in enumerate(measurement.telemetry):
        of_worker = f" of worker {worker}" if len(measurement.telemetry) > 1 else ""
        for gpu in process.get("gpus", ()):
            found.setdefault(gpu["uuid"], (f"GPU {gpu['index']}{of_worker}", gpu))
    return dict(found.values())


def derive(measurement: Measurement, num_devices: int, *, compiled: bool = False) -> Derived:
    """Computes the derived numbers from the measured steps of `num_devices` devices; `compiled` says if XLA did so."""
    seconds = measurement.step_seconds
    if not seconds:
        return Derived()
    p50, p90, p99, p999 = (1000 * p for p in statistics.percentiles(seconds, (50, 90, 99, 99.9)))
    first = measurement.first_step_seconds
    return Derived(
        step_ms_p50=p50,
        step_ms_p90=p90,
        step_ms_p99=p99,
        step_ms_p999=p999 if len(seconds) >= _STEPS_FOR_P999 else None,
        compile_seconds=max(0.0, first - p50 / 1000) if compiled and first else None,
        loss_difference_to_fp32=_loss_difference(measurement),
        staleness_mean=_staleness_mean(measurement.staleness_counts),
        input_wait_share=_input_wait_share(measurement),
        **_straggler(measurement),
        **_resources(measurement),
        **_rates(seconds, measurement.images_per_step, num_devices),
        **_bandwidths(seconds, measurement.message_bytes, num_devices),
    )


def _loss_difference(measurement: Measurement) -> float | None:
    """Returns how far the losses at the end are from those in fp32; None if one of them is not finite."""
    pairs = list(zip(measurement.losses, measurement.fp32_losses, strict=False))[-_LAST_STEPS:]
    differences = [loss - in_fp32 for loss, in_fp32 in pairs if loss is not None and in_fp32 is not None]
    whole = pairs and len(differences) == len(pairs) and math.isfinite(sum(differences))
    return fmean(differences) if whole else None


def _rates(seconds: Sequence[float], images: int | None, num_devices: int) -> dict[str, Any]:
    if images is None:
        return {}
    images_per_sec = statistics.rate(seconds, images)
    low, high = statistics.rate_interval(seconds, images)
    return {
        "images_per_sec": images_per_sec,
        "images_per_sec_low": low,
        "images_per_sec_high": high,
        "images_per_sec_per_device": images_per_sec / num_devices,
        "images_per_sec_jitter": statistics.rate_jitter(seconds, images),
    }


def _bandwidths(seconds: Sequence[float], message_bytes: int | None, num_devices: int) -> dict[str, Any]:
    """Returns what nccl-tests calls so: bytes of the message over the mean time, and that times 2 (n-1)/n.

    The second is what each device's link must at least have carried, so it can be compared with the hardware's,
    whatever the number of devices. Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if message_bytes is None:
        return {}
    gb_per_sec = len(seconds) * message_bytes / sum(seconds) / 1e9
    return {
        "algorithm_bandwidth_gb_per_sec": gb_per_sec,
        "bus_bandwidth_gb_per_sec": gb_per_sec * 2 * (num_devices - 1) / num_devices,
    }


def _input_wait_share(measurement: Measurement) -> float | None:
    """Returns the share of the measured time in which there was nothing to compute on."""
    waits, seconds = measurement.input_wait_seconds, measurement.step_seconds
    if measurement.tower_step_seconds:  # there, a wait is a mean over towers, and so must be the time
        seconds = [s for tower in measurement.tower_step_seconds for s in tower]
        waits = [len(measurement.tower_step_seconds) * wait for wait in waits]
    return sum(waits) / sum(seconds) if waits else None


def _staleness_mean(counts: Sequence[int]) -> float | None:
    if not counts:
        return None
    return sum(staleness * count for staleness, count in enumerate(counts)) / sum(counts)


def _straggler(measurement: Measurement) -> dict[str, Any]:
    """Returns which worker is slowest, and how much slower than the others."""
    alone = measurement.tower_step_seconds if measurement.worker_step_seconds else ()
    steps = enumerate(alone or measurement.worker_compute_seconds)
    medians = {worker: median(seconds) for worker, seconds in steps if seconds}
    if len(medians) < 2:
        return {}
    slowest = max(medians, key=medians.__getitem__)
    others = median(value for worker, value in medians.items() if worker != slowest)
    return {"slowest_worker": slowest, "straggler_ratio": medians[slowest] / others if others > 0 else None}


def _resources(measurement: Measurement) -> dict[str, Any]:
    """Returns power, CPU time and memory of all processes together; a sum is known only if all its parts are."""
    seen = [process for process in measurement.telemetry if "gpus" in process]
    if not seen or len(seen) < len(measurement.telemetry):
        return {}
    # Processes may share a GPU or a host: each is named, so it counts once.
    watts = {name: value for process in seen for name, value in process["mean_watts"].items()}
    used = [gpu["peak_memory_bytes"] for process in seen for gpu in process["gpus"]]
    total = sum(watts.values()) if watts and None not in watts.values() else None
    images, seconds = measurement.images_per_step, measurement.step_seconds
    return {
        "power_watts": total,
        "images_per_joule": statistics.rate(seconds, images) / total if total and images else None,
        "cpu_cores_used": sum(process["cpu_cores_used"] for process in seen),
        "peak_gpu_memory_bytes": max((one for one in used if one is not None), default=None),
    }
