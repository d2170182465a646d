"""What was observed in a run, and the numbers that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from results import statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was observed, one entry per step, all times in seconds.

    Attributes:
        images_per_step: images that one global step consumes, over all devices; None where a step has none.
        startup_seconds: from the start of the process to the start of the first step.
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
        input_wait_seconds: of each measured step, how long it did nothing but wait for images; empty if none are read.
        skipped_records: bad records that were left out; None where none may be.
        input_stages: images per second of the input alone, ended after each of its stages; empty if not measured.
        bare_decode_images_per_sec: what decoding alone would reach with the same files; None if not measured.
    """

    images_per_step: int | None
    startup_seconds: float | None = None
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
    input_wait_seconds: Sequence[float] = dataclasses.field(default_factory=list)
    skipped_records: int | None = None
    input_stages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    bare_decode_images_per_sec: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived:
    """Numbers computed from the measurement; None where it does not support one.

    `synthetic_ratio` is the rate over that of the same run with synthetic images, where the results hold one.
    `slowest_worker` is the one that takes longest to its gradients (to the end of its step, where workers go their own
    way), by median; `straggler_ratio` is its time over the median of the others.
    """

    images_per_sec: float | None = None
    images_per_sec_low: float | None = None
    images_per_sec_high: float | None = None
    images_per_sec_per_device: float | None = None
    images_per_sec_jitter: float | None = None
    step_ms_p50: float | None = None
    step_ms_p90: float | None = None
    step_ms_p99: float | None = None
    staleness_mean: float | None = None
    algorithm_bandwidth_gb_per_sec: float | None = None
    bus_bandwidth_gb_per_sec: float | None = None
    input_wait_share: float | None = None
    synthetic_ratio: float | None = None
    slowest_worker: int | None = None
    straggler_ratio: float | None = None


def derive(measurement: Measurement, num_devices: int) -> Derived:
    """Computes the derived numbers from the measured steps of `num_devices` devices."""
    seconds = measurement.step_seconds
    if not seconds:
        return Derived()
    p50, p90, p99 = (1000 * p for p in statistics.percentiles(seconds, (50, 90, 99)))
    return Derived(
        step_ms_p50=p50,
        step_ms_p90=p90,
        step_ms_p99=p99,
        staleness_mean=_staleness_mean(measurement.staleness_counts),
        input_wait_share=_input_wait_share(measurement),
        **_straggler(measurement),
        **_rates(seconds, measurement.images_per_step, num_devices),
        **_bandwidths(seconds, measurement.message_bytes, num_devices),
    )


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
