"""What a run used, as lines of text: power, memory, clocks, and what its start was made of. Knows no TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.measurement import Measurement, named_gpus
from results.record import Record


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
