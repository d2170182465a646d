"""What the text output says of a run's steps, besides their rate."""

from __future__ import annotations

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
