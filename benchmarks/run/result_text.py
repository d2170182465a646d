"""What the text output says of a run's steps, besides their rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.measurement import Measurement, named_gpus
from results.record import Record


def step_lines(record: Record) -> list[str]:
    """Returns how long steps took, what compiling took, and what the precision did to loss and gradients."""
    return [_times(record), *_compiling(record), *_loss_scales(record), *_difference_to_fp32(record)]


def _times(record: Record) -> str:
    derived = record.derived
    p50, p90, p99 = derived.step_ms_p50, derived.step_ms_p90, derived.step_ms_p99
    # Where workers go their own way, a step is as many of theirs as there are workers, and no image's latency.
    if not record.config.get("forward_only") or record.measurement.tower_step_seconds:
        return f"step:           {p50:.1f} ms median, {p99:.1f} ms at the 99th percentile"
    rare = "" if derived.step_ms_p999 is None else f", of 99.9 % {derived.step_ms_p999:.1f} ms"
    steps, images = len(record.measurement.step_seconds), record.measurement.images_per_step
    return (
        f"latency:        {p50:.1f} ms median, of 90 % at most {p90:.1f} ms, of 99 % {p99:.1f} ms{rare}; "
        f"{steps} batches of {images}"
    )


def _compiling(record: Record) -> list[str]:
    seconds = record.derived.compile_seconds
    return [] if seconds is None else [f"compiling:      the first step, with XLA's work, took {seconds:.1f} s longer"]


def _loss_scales(record: Record) -> list[str]:
    scales, skipped = record.measurement.loss_scales, record.measurement.skipped_updates
    if not scales:
        return []
    left_out = f"{sum(skipped):.0f} of {len(scales)} updates left out for an overflow"
    return [f"loss scale:     {scales[-1]:g} in the end; {left_out}"]


def _difference_to_fp32(record: Record) -> list[str]:
    difference = record.derived.loss_difference_to_fp32
    if difference is None:
        return []
    return [f"against fp32:   loss {difference:+.4f}, a mean of the last steps, on the same data"]


def resource_lines(record: Record) -> list[str]:
    """Returns power, memory, cores and each GPU's clock, as far as they are known."""
    derived, measurement, lines = record.derived, record.measurement, []
    if derived.power_watts is not None and derived.images_per_joule is not None:
        lines.append(
            f"power:          {derived.power_watts:.0f} W on average, {derived.images_per_joule:.3g} images per joule "
            f"({measurement.telemetry[0]['energy_of']})"
        )
    if measurement.peak_host_memory_bytes:
        of_gpu = derived.peak_gpu_memory_bytes
        lines.append(
            f"memory:         {measurement.peak_host_memory_bytes / 1e9:.2f} GB of a process at most"
            + (f", {of_gpu / 1e9:.2f} GB of a GPU taken" if of_gpu is not None else "")
        )
    if derived.cpu_cores_used is not None:
        lines.append(f"CPU:            {derived.cpu_cores_used:.2f} cores busy on average")
    lines += [f"{name + ':':15} {_of_gpu(gpu)}" for name, gpu in named_gpus(measurement).items()]
    return lines


def _of_gpu(gpu: Mapping[str, Any]) -> str:
    clock, temperature, busy = gpu["clock_mhz"], gpu["temperature_celsius"], gpu["busy_share"]
    words = [f"{clock['mean']:.0f} MHz on average ({clock['min']:.0f} to {clock['max']:.0f})"] if clock else []
    words += [f"{temperature['max']:.0f} °C at most"] if temperature else []
    words += [f"busy {busy['mean']:.0%} of the time"] if busy else []
    words += [f"{share:.0%} held down by {why}" for why, share in gpu["slowed_shares"].items()]
    return ", ".join(words) or "tells nothing"


def startup_line(measurement: Measurement) -> str:
    """Returns how long the start took and what it was made of, and the first step."""
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in measurement.startup_phases_seconds.items())
    made_of = f" ({parts})" if parts else ""
    startup, first = measurement.startup_seconds, measurement.first_step_seconds
    return f"start-up:       {startup:.1f} s{made_of}, then {first:.1f} s for the first step"
