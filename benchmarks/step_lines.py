"""What the text output says of a run's steps, besides their rate."""

from __future__ import annotations

import itertools

from results.record import Record


def step_lines(record: Record) -> list[str]:
    """Returns how long steps took, what compiling took, and what the precision did to loss and gradients."""
    return [_times(record), *_compiling(record), *_loss_scales(record), *_difference_to_fp32(record)]


def _times(record: Record) -> str:
    derived = record.derived
    p50, p90, p99 = derived.step_ms_p50, derived.step_ms_p90, derived.step_ms_p99
    if not record.config.get("forward_only"):
        return f"step:           {p50:.1f} ms median, {p99:.1f} ms at the 99th percentile"
    rare = "" if derived.step_ms_p999 is None else f", of 99.9 % {derived.step_ms_p999:.1f} ms"
    steps, images = len(record.measurement.step_seconds), record.measurement.images_per_step
    return (
        f"latency:        {p50:.1f} ms median, of 90 % at most {p90:.1f} ms, of 99 % {p99:.1f} ms{rare}; "
        f"{steps} batches of {images}"
    )


def _compiling(record: Record) -> list[str]:
    seconds = record.derived.compile_seconds
    return [] if seconds is None else [f"compiling:      {seconds:.1f} s by XLA, within the first step"]


def _loss_scales(record: Record) -> list[str]:
    scales = record.measurement.loss_scales
    if not scales:
        return []
    overflows = sum(later < earlier for earlier, later in itertools.pairwise(scales))
    return [f"loss scale:     {scales[-1]:g} in the end; {overflows} of {len(scales)} updates left out for an overflow"]


def _difference_to_fp32(record: Record) -> list[str]:
    difference = record.derived.loss_difference_to_fp32
    if difference is None:
        return []
    loss = record.measurement.fp32_losses[-1]
    return [f"against fp32:   loss {difference:+.4f} on the same data, where fp32 comes to {loss:.4f}"]
