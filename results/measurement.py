"""What was observed in a run, and the numbers derived from it."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, Literal

import msgspec

from results import step_statistics

# Of fewer steps, the percentile lies between the two longest.
STEPS_FOR_P99, _STEPS_FOR_P999 = 100, 1000
_LAST_STEPS = 10

# The order in which towers start on shared cores makes some take longer in every step; that is no slow device.
_LEAST_RATIO_ON_SHARED_CORES = 2.0

# The usual reason why a GPU lowers its clock under full load.
POWER_LIMIT = "power limit"


# No run measures larger numbers, and sums and products of them overflow.
Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
_Rate = Annotated[float, msgspec.Meta(ge=1e-15, le=1e15)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


def _of_run(workers: Literal["sum", "max"]) -> msgspec.Meta:
    # A number of a run: how those of a cluster's workers combine. Other fields take the first worker's.
    return msgspec.Meta(extra={"of_run": workers})


def _of_step(workers: Literal["mean", "max", "first", "each"]) -> msgspec.Meta:
    # A number that a step may yield besides its time and loss: how those of a cluster's workers combine.
    return msgspec.Meta(extra={"of_step": workers})


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was observed. Lists have one entry per measured step unless stated otherwise; all times are in seconds.

    A new number is one field here; its producer passes it to `RunLog.observe` or, per step, to `Observed`.

    Attributes:
        images_per_step: images of one global step over all devices; None if a step has no images.
        startup_seconds: from the start of the process to the start of the first step.
        startup_phases_seconds: its parts, in order: `Python` (with the suite's modules), `TensorFlow` (its import),
            `cluster` (until all tasks agree), `graph`, `variables` (until the first step). In a cluster, those of the
            slowest worker.
        first_step_seconds: the first step alone, which includes graph optimisation and memory growth.
        warmup_step_seconds: the other steps before measuring.
        step_seconds: the measured steps.
        losses: mean loss over all devices, without the penalty of weight decay; None if it is not finite.
        warmup_losses: the same of the first step and the warm-up steps.
        unmeasured_losses: the same of the steps that were taken between these for a summary or a profile, not measured.
        unmeasured_steps: the number of each of them in the training, counted from 1.
        peak_host_memory_bytes: largest resident set of the process until the end of the measured steps.
        peak_gpu_memory_bytes: most memory that the allocator of TensorFlow or PyTorch had in use on one GPU, or on one
            part of a split GPU, in a step after the measured ones, without the CUDA context; None if unknown.
        replica_drift: largest absolute difference between copies of a variable that must be equal; None if there is
            one copy, or copies may differ.
        tower_step_seconds: the measured steps of each asynchronous tower, or worker; otherwise empty.
        staleness_counts: how many asynchronous tower steps applied a gradient of weights that were 0, 1, 2 ... updates
            old.
        worker_step_seconds: in a cluster, the measured steps of each worker, by its own clock.
        worker_compute_seconds: the same, from the start of a step until the worker has its gradients.
        tower_compute_seconds: of a few traced steps after the measured ones, each synchronous tower's time from its
            first operation until its gradients are ready; in a cluster, the towers of worker 0 first.
        message_bytes: size of the all-reduced message of one tower; None if there is none.
        largest_error: largest relative difference (absolute below 1) of an all-reduce to the mean in NumPy.
        top_1_accuracies: share of a step's images classified correctly before its update; empty unless requested.
        top_5_accuracies: the same, with the correct class among the five most likely.
        loss_scales: factor of the loss; empty unless it follows the gradients.
        skipped_updates: 1 if the step's update was skipped because gradients overflowed; empty as `loss_scales`.
        fp32_losses: losses of the same steps, trained again in fp32 without XLA; empty unless requested.
        input_wait_seconds: time in which the step only waited for images; empty if none are read.
        skipped_records: number of bad records that were skipped; None if skipping is off.
        input_stages: images per second of the input alone, up to each of its stages; empty if not measured.
        input_stage_rounds: the same of each round of the measurement; empty if not measured.
        shuffle_buffer: how full the shuffle buffer was, in records: `capacity`, `at_start` (after the first batch),
            `at_end`, `least`; `fill_seconds` to the first batch; `share_half_full`, the share of batches that found it
            at least half full; empty if not measured.
        bare_decode_images_per_sec: rate of decoding alone with the same files; None if not measured.
        restarts: how often the cluster was started again after a task had died; only the last attempt is measured.
        steps_before: steps of the training that earlier runs took; 0 if it began with this run.
        evaluations: of the validation set, in their order: `step` and `epochs` of the training, number of `images`,
            `top_1_accuracy`, `top_5_accuracy`, mean `loss`, `seconds` that it took; a loss that is not finite is None.
            `background_images` are those with label 0 if that is no class; absent if there are none.
        seconds_to_accuracy: from the first step of this run to the end of the evaluation that reached
            `--stop_at_top_1_accuracy`; None if none did.
        telemetry: for each process that measured, its host and physical GPUs during the measured steps; unknown values
            are None.
    """

    images_per_step: Count | None
    startup_seconds: Number | None = None
    startup_phases_seconds: Mapping[str, Number] = {}
    first_step_seconds: Annotated[Number | None, _of_run("max")] = None
    warmup_step_seconds: Sequence[Number] = []
    step_seconds: Sequence[Number] = []
    losses: Sequence[float | None] = []
    warmup_losses: Sequence[float | None] = []
    unmeasured_losses: Sequence[float | None] = []
    unmeasured_steps: Sequence[Count] = []
    peak_host_memory_bytes: Annotated[Count | None, _of_run("max")] = None
    peak_gpu_memory_bytes: Annotated[Count | None, _of_run("max")] = None
    replica_drift: Annotated[float | None, _of_run("max")] = None
    tower_step_seconds: Sequence[Sequence[Number]] = []
    staleness_counts: Sequence[Count] = []
    worker_step_seconds: Sequence[Sequence[Number]] = []
    worker_compute_seconds: Annotated[Sequence[Sequence[Number]], _of_step("each")] = []
    tower_compute_seconds: Sequence[Sequence[Number]] = []
    message_bytes: Count | None = None
    largest_error: float | None = None
    top_1_accuracies: Annotated[Sequence[float], _of_step("mean")] = []
    top_5_accuracies: Annotated[Sequence[float], _of_step("mean")] = []
    loss_scales: Annotated[Sequence[float], _of_step("first")] = []
    skipped_updates: Annotated[Sequence[float], _of_step("first")] = []
    fp32_losses: Sequence[float | None] = []
    input_wait_seconds: Annotated[Sequence[Number], _of_step("max")] = []
    skipped_records: Annotated[Count | None, _of_run("sum")] = None
    input_stages: Mapping[str, _Rate] = {}
    input_stage_rounds: Mapping[str, Sequence[_Rate]] = {}
    shuffle_buffer: Mapping[str, int | float] = {}
    bare_decode_images_per_sec: _Rate | None = None
    restarts: Count = 0
    steps_before: Count = 0
    evaluations: Sequence[Mapping[str, Any]] = []
    seconds_to_accuracy: Number | None = None
    telemetry: Sequence[Mapping[str, Any]] = []


def _rules(kind: str) -> dict[str, str]:
    hints = typing.get_type_hints(Measurement, include_extras=True)
    metas = ((name, meta.extra or {}) for name, hint in hints.items() for meta in getattr(hint, "__metadata__", ()))
    return {name: extra[kind] for name, extra in metas if kind in extra}


# How the numbers of a cluster's workers combine, by the name of the field.
RUN_NUMBERS, STEP_NUMBERS = _rules("of_run"), _rules("of_step")


class Observed(dict[str, Any]):
    """Numbers of one step by the name of their field in `Measurement`: scalar tensors in a graph, floats after it ran.

    Raises:
        TypeError: `Measurement` has no such number of a step.
    """

    def __init__(self, *numbers: Any, **named: Any) -> None:  # as `dict`, which TensorFlow expects
        super().__init__(*numbers, **named)
        unknown = sorted(self.keys() - STEP_NUMBERS.keys())
        if unknown:
            raise TypeError(f"no numbers of a step: {', '.join(unknown)}; see results.measurement.Measurement")


class Derived(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers computed from the measurement; None if it does not support one. `results.columns` states their meaning.

    The time that makes a worker the slowest is that until its gradients are ready, or of asynchronous workers a step.
    `power_watts` is of the GPUs that computed. The `measured_peak_tflops` of logical CPU devices is that of their host.
    """

    images_per_sec: _Rate | None = None
    images_per_sec_low: _Rate | None = None
    images_per_sec_high: _Rate | None = None
    images_per_sec_per_device: Number | None = None
    images_per_sec_jitter: Number | None = None
    step_ms_p50: Number | None = None
    step_ms_p90: Number | None = None
    step_ms_p99: Number | None = None
    step_ms_p999: Number | None = None
    compile_seconds: Number | None = None
    loss_difference_to_fp32: float | None = None
    staleness_mean: Number | None = None
    algorithm_bandwidth_gb_per_sec: Number | None = None
    bus_bandwidth_gb_per_sec: Number | None = None
    input_wait_share: Number | None = None
    synthetic_ratio: Number | None = None
    slowest_worker: Count | None = None
    straggler_ratio: Number | None = None
    slowest_tower: Count | None = None
    slowest_tower_ratio: Number | None = None
    power_watts: Number | None = None
    images_per_joule: Number | None = None
    cpu_cores_used: Number | None = None
    gpu_memory_reserved_bytes: Count | None = None
    measured_peak_tflops: Number | None = None
    mfu_of_measured_peak: _Share | None = None


def named_gpus(measurement: Measurement) -> dict[str, Mapping[str, Any]]:
    """Returns the telemetry of each physical GPU, once, by its name: `GPU 0`, or in a cluster `GPU 0 of worker 1`."""
    by_uuid: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for worker, process in enumerate(measurement.telemetry):
        of_worker = f" of worker {worker}" if len(measurement.telemetry) > 1 else ""
        for gpu in process.get("gpus", ()):
            by_uuid.setdefault(gpu["uuid"], (f"GPU {gpu['index']}{of_worker}", gpu))
    return dict(by_uuid.values())


def derive(
    measurement: Measurement, num_devices: int, *, compiled: bool = False, towers_share_cores: bool = False
) -> Derived:
    """Computes the derived numbers from the measured steps.

    `compiled`: XLA compiled within the first step; `towers_share_cores`: towers are logical CPU devices.
    """
    seconds, stale = measurement.step_seconds, measurement.staleness_counts
    if not seconds:
        return Derived()
    import numpy as np

    p50, p90, p99, p999 = (1000 * float(p) for p in np.percentile(seconds, (50, 90, 99, 99.9)))
    first = measurement.first_step_seconds
    return Derived(
        step_ms_p50=p50,
        step_ms_p90=p90,
        step_ms_p99=p99,
        step_ms_p999=p999 if len(seconds) >= _STEPS_FOR_P999 else None,
        compile_seconds=max(0.0, first - p50 / 1000) if compiled and first else None,
        loss_difference_to_fp32=_loss_difference(measurement),
        staleness_mean=sum(age * count for age, count in enumerate(stale)) / sum(stale) if stale else None,
        input_wait_share=_input_wait_share(measurement),
        **_stragglers(measurement, towers_share_cores=towers_share_cores),
        **_resources(measurement),
        **_rates(seconds, measurement.images_per_step, num_devices),
        **_bandwidths(seconds, measurement.message_bytes, num_devices),
    )


def _loss_difference(measurement: Measurement) -> float | None:
    pairs = list(zip(measurement.losses, measurement.fp32_losses, strict=False))[-_LAST_STEPS:]
    differences = [loss - in_fp32 for loss, in_fp32 in pairs if loss is not None and in_fp32 is not None]
    whole = pairs and len(differences) == len(pairs) and math.isfinite(sum(differences))
    return fmean(differences) if whole else None


def _rates(seconds: Sequence[float], images: int | None, num_devices: int) -> dict[str, Any]:
    if images is None:
        return {}
    rate = step_statistics.rate_interval(seconds, images)
    low, high = rate.bounds
    return {
        "images_per_sec": rate.value,
        "images_per_sec_low": low,
        "images_per_sec_high": high,
        "images_per_sec_per_device": rate.value / num_devices,
        "images_per_sec_jitter": step_statistics.rate_jitter(seconds, images),
    }


def _bandwidths(seconds: Sequence[float], message_bytes: int | None, num_devices: int) -> dict[str, Any]:
    """Returns algbw, bytes of the message over the mean time, and busbw, that times 2 (n-1)/n.

    Each device's link must carry at least busbw, so it compares with the hardware's for any number of devices. Source:
    nccl-tests, doc/PERFORMANCE.md.
    """
    if message_bytes is None:
        return {}
    gb_per_sec = len(seconds) * message_bytes / sum(seconds) / 1e9
    return {
        "algorithm_bandwidth_gb_per_sec": gb_per_sec,
        "bus_bandwidth_gb_per_sec": gb_per_sec * 2 * (num_devices - 1) / num_devices,
    }


def _input_wait_share(measurement: Measurement) -> float | None:
    waits, seconds = measurement.input_wait_seconds, measurement.step_seconds
    if measurement.tower_step_seconds:  # a wait is then a mean over towers, so the time must be one too
        seconds = [s for tower in measurement.tower_step_seconds for s in tower]
        waits = [len(measurement.tower_step_seconds) * wait for wait in waits]
    return sum(waits) / sum(seconds) if waits else None


def _stragglers(measurement: Measurement, *, towers_share_cores: bool) -> dict[str, Any]:
    """Returns which worker and which tower is slower than the others by more than the noise, and how much slower."""
    steps, asynchronous = measurement.step_seconds, measurement.tower_step_seconds
    of_workers = bool(asynchronous and measurement.worker_step_seconds)
    of_towers = bool(asynchronous and not measurement.worker_step_seconds)
    worker, worker_ratio = step_statistics.straggler(
        asynchronous if of_workers else measurement.worker_compute_seconds, steps, asynchronous=of_workers
    ) or (None, None)
    tower, tower_ratio = step_statistics.straggler(
        asynchronous if of_towers else measurement.tower_compute_seconds,
        steps,
        asynchronous=of_towers,
        least_ratio=_LEAST_RATIO_ON_SHARED_CORES if towers_share_cores else step_statistics.LEAST_RATIO,
    ) or (None, None)
    return {
        "slowest_worker": worker,
        "straggler_ratio": worker_ratio,
        "slowest_tower": tower,
        "slowest_tower_ratio": tower_ratio,
    }


def _mean_watts(gpu: Mapping[str, Any], process: Mapping[str, Any]) -> float | None:
    joules, seconds = gpu.get("energy_joules"), process.get("window_seconds")
    return joules / seconds if joules is not None and seconds else None


def _resources(measurement: Measurement) -> dict[str, Any]:
    """Returns power, CPU time and memory of all processes together; a sum is known only if all its parts are."""
    processes = [process for process in measurement.telemetry if "gpus" in process]
    if not processes or len(processes) < len(measurement.telemetry):
        return {}
    # Processes may share a GPU or a host. Each has a name, so it counts once.
    watts = {gpu["uuid"]: _mean_watts(gpu, process) for process in processes for gpu in process["gpus"]}
    used = [gpu["peak_memory_bytes"] for process in processes for gpu in process["gpus"]]
    known = [used for used in watts.values() if used is not None]
    total = sum(known) if watts and len(known) == len(watts) else None
    # The energy of pauses between steps counts, since the power is a mean over them, too. Asynchronous workers end at
    # different times, and images count until the first one does.
    is_until_first = bool(measurement.tower_step_seconds and measurement.worker_step_seconds)
    windows = [] if is_until_first else [process.get("window_seconds", 0.0) for process in processes]
    seconds = max([sum(measurement.step_seconds), *windows])
    images = (measurement.images_per_step or 0) * len(measurement.step_seconds)
    return {
        "power_watts": total,
        "images_per_joule": images / (total * seconds) if total and images else None,
        "cpu_cores_used": sum(process["cpu_cores_used"] for process in processes),
        "gpu_memory_reserved_bytes": max((one for one in used if one is not None), default=None),
    }
