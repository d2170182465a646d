"""The result of a run as lines below its rate, none with `images/sec` or `Accuracy @`: scripts look for these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results import step_statistics
from results.environment import Utilisation
from results.intervals import Interval
from results.measurement import STEPS_FOR_P99, Measurement, named_gpus
from results.record import Record
from results.summary import summarize
from results.text import amount, as_rate, counted
from variable_mgr.transfers import NETWORK


def result_lines(record: Record) -> list[str]:
    """Returns the lines of a run that has a rate, each a name and its value."""
    derived = record.derived
    rate = Interval.of(derived.images_per_sec or 0.0, derived.images_per_sec_low, derived.images_per_sec_high)
    per_device = rate.scaled((derived.images_per_sec_per_device or 0.0) / (derived.images_per_sec or 1.0))
    return [
        *([f"95 % interval:  {rate.range()} images/s (of this process)"] if rate.is_known else []),
        f"per device:     {per_device.rounded()} images/s",
        *step_lines(record),
        *_cluster_lines(record),
        *_asynchronous_lines(record.measurement),
        *_pipeline_lines(record),
        *_input_lines(record),
        *_evaluation_lines(record.measurement),
        *mfu_lines(record),
        *resource_lines(record),
        startup_line(record.measurement),
    ]


def step_lines(record: Record) -> list[str]:
    """Returns the duration of steps and of compiling, and the effects of the precision on loss and gradients."""
    derived, measurement, seconds = record.derived, record.measurement, record.measurement.step_seconds
    p50, p90, p99 = derived.step_ms_p50, derived.step_ms_p90, derived.step_ms_p99
    # A global step of asynchronous towers is as many of their steps as there are towers: no image's latency.
    if not record.config.get("forward_only") or measurement.tower_step_seconds:
        of_all = counted(len(seconds), "step")
        lines = [f"step:           {p50:.1f} ms median, {p99:.1f} ms at the 99th percentile of {of_all}"]
    else:
        rare = f"99 % {p99:.1f} ms" if len(seconds) >= STEPS_FOR_P99 else f"all {1000 * max(seconds):.1f} ms"
        rare += "" if derived.step_ms_p999 is None else f", of 99.9 % {derived.step_ms_p999:.1f} ms"
        lines = [
            f"latency:        {p50:.1f} ms median, of 90 % at most {p90:.1f} ms, of {rare}; "
            f"{len(seconds)} {'batch' if len(seconds) == 1 else 'batches'} of {measurement.images_per_step}"
        ]
    if derived.compile_seconds is not None:
        lines.append(f"compiling:      it made the first step {derived.compile_seconds:.1f} s longer")
    if scales := measurement.loss_scales:
        skipped = f"{sum(measurement.skipped_updates):.0f} of {len(scales)} updates skipped after an overflow"
        lines.append(f"loss scale:     {scales[-1]:g} at the end; {skipped}")
    if derived.loss_difference_to_fp32 is not None:
        lines.append(
            f"against fp32:   loss {derived.loss_difference_to_fp32:+.4f}, mean of the last steps on the same data"
        )
    return lines


def _asynchronous_lines(measurement: Measurement) -> list[str]:
    """Returns the staleness of gradients, and each tower's or worker's share of the steps."""
    counts, towers = measurement.staleness_counts, measurement.tower_step_seconds
    if not counts:
        return []
    steps = sum(counts)
    unit = "worker" if measurement.worker_step_seconds else "tower"
    stale = ", ".join(f"{count / steps:.0%} {staleness}" for staleness, count in enumerate(counts) if count)
    shares = ", ".join(f"{len(seconds) / steps:.0%}" for seconds in towers)
    return [f"staleness:      {stale} updates behind", f"{unit + ' steps:':15} {shares} per {unit}"]


def _pipeline_lines(record: Record) -> list[str]:
    """Returns the share of a step in which each device of a pipeline was idle."""
    facts = record.placement.get("pipeline") or {}
    if "idle_shares" not in facts:
        return []
    if facts["idle_shares"] is None:
        return ["idle:           unknown: the passes of a micro-batch are too short to be timed"]
    measured = ", ".join(f"{share:.0%}" for share in facts["idle_shares"])
    sharing = "; logical devices share the cores" if record.config["device"] == "cpu" else ""
    return [f"idle:           {measured} of a step after the run, per stage{sharing}"]


def _cluster_lines(record: Record) -> list[str]:
    """Returns each worker's own rate, the slowest worker, and the network traffic."""
    lines, derived, measurement = [], record.derived, record.measurement
    workers = measurement.worker_step_seconds
    if len(workers) > 1:
        images = (measurement.images_per_step or 0) // len(workers)
        rates = ", ".join(as_rate(step_statistics.rate(seconds, images)) for seconds in workers if seconds)
        lines.append(f"workers:        {rates} images/s")
    slowest = {"worker": (derived.slowest_worker, derived.straggler_ratio)}
    slowest["tower"] = (derived.slowest_tower, derived.slowest_tower_ratio)
    for member, (number, ratio) in slowest.items():
        if ratio is not None:
            what = "a step" if measurement.tower_step_seconds else "its gradients"
            lines.append(f"slowest:        {member} {number} needs {ratio:.2f} x as long for {what} as the others")
    sent = record.placement.get("sent_per_step") or {}
    number, size = (record.placement.get("measured_per_step") or {}).get("by_kind", {}).get(NETWORK, (None, 0))
    if record.config.get("cluster") and (sent.get("total_bytes") or number is not None):
        total = sent.get("total_bytes")
        line = f"network:        {'unknown' if total is None else f'{total / 1e6:.1f} MB'} between processes per step"
        if sent.get("busiest_ps_bytes") and derived.step_ms_p50:
            mean_seconds = sum(measurement.step_seconds) / len(measurement.step_seconds)
            line += f", {sent['busiest_ps_bytes'] / mean_seconds / 1e6:.0f} MB/s at the busiest parameter server"
        if number is not None:
            line += f"; measured {size / 1e6:.1f} MB in {counted(number, 'transfer')}"
        lines.append(line)
    return lines


def _input_lines(record: Record) -> list[str]:
    """Returns the wait for input, the ratio to synthetic images, and the accuracies."""
    derived, measurement, lines = record.derived, record.measurement, []
    if derived.input_wait_share is not None:
        lines.append(f"input:          {derived.input_wait_share:.1%} of the time was spent waiting for images")
    if derived.synthetic_ratio is not None:
        lines.append(f"real/synthetic: {derived.synthetic_ratio:.3f}")
    if measurement.top_1_accuracies:
        top_1, top_5 = measurement.top_1_accuracies[-1], measurement.top_5_accuracies[-1]
        lines.append(f"accuracy:       {top_1:.3f} top 1, {top_5:.3f} top 5, of the last step's images")
    return lines


def accuracy_line(result: Mapping[str, Any]) -> str:
    """Returns an evaluation in tf_cnn_benchmarks' format."""
    top_1, top_5 = result["top_1_accuracy"], result["top_5_accuracy"]
    return f"Accuracy @ 1 = {top_1:.4f} Accuracy @ 5 = {top_5:.4f} [{result['images']} examples]"


def _evaluation_lines(measurement: Measurement) -> list[str]:
    """Returns the last evaluation, and the time to the requested accuracy."""
    if not measurement.evaluations:
        return []
    last = measurement.evaluations[-1]
    rate = last["images"] / last["seconds"]
    loss = "not finite" if last["loss"] is None else f"{last['loss']:.4f}"
    lines = [
        f"evaluation:     {last['top_1_accuracy']:.4f} top 1, {last['top_5_accuracy']:.4f} top 5, of {last['images']} "
        f"images after {last['step']} steps ({last['epochs']:.4g} epochs), loss {loss}, {rate:.0f} images/s"
    ]
    if measurement.seconds_to_accuracy is not None:
        lines.append(
            f"to accuracy:    {measurement.seconds_to_accuracy:.1f} s from the first step of this run, with everything"
        )
    return lines


def mfu_lines(record: Record) -> list[str]:
    """Returns the model FLOP utilisation with the source of each peak, or why it is unknown on a GPU."""
    lines, share, tflops = list[str](), record.derived.mfu_of_measured_peak, record.derived.measured_peak_tflops
    if share is not None and tflops is not None:
        peak, precision = amount(1e12 * tflops, "FLOP/s"), record.config["precision"]
        lines = [f"{100 * share:.0f} % of the {peak} that a matrix product reaches here ({precision})"]
    data_sheet = summarize([record])[0].data_sheet
    if isinstance(data_sheet, Utilisation):
        lines.insert(0, data_sheet.text)
    elif data_sheet and not lines:
        lines = [f"unknown: {data_sheet}; 'run_bench.py doctor' measures a peak"]
    return [f"MFU:            {line}" for line in lines]


def resource_lines(record: Record) -> list[str]:
    """Returns power, memory, cores and each GPU's clock, as far as they are known."""
    derived, measurement, lines = record.derived, record.measurement, []
    if derived.power_watts is not None and derived.images_per_joule is not None:
        lines.append(
            f"power:          {derived.power_watts:.0f} W on average, {derived.images_per_joule:.3g} images per joule "
            "(GPU only)"
        )
    if measurement.peak_host_memory_bytes:
        of_gpu, reserved = measurement.peak_gpu_memory_bytes, derived.gpu_memory_reserved_bytes
        lines.append(
            f"memory:         {measurement.peak_host_memory_bytes / 1e9:.2f} GB peak of a process"
            + (f", {of_gpu / 1e9:.2f} GB peak of a GPU" if of_gpu is not None else "")
            + (f", {reserved / 1e9:.2f} GB reserved on a GPU" if reserved is not None else "")
        )
    if derived.cpu_cores_used is not None:
        lines.append(f"CPU:            {derived.cpu_cores_used:.2f} cores busy on average")
    return lines + [f"{name + ':':15} {_of_gpu(gpu)}" for name, gpu in named_gpus(measurement).items()]


def _of_gpu(gpu: Mapping[str, Any]) -> str:
    clock, temperature, busy = gpu["clock_mhz"], gpu["temperature_celsius"], gpu["busy_share"]
    parts = [f"{clock['mean']:.0f} MHz on average ({clock['min']:.0f} to {clock['max']:.0f})"] if clock else []
    parts += [f"at most {temperature['max']:.0f} °C"] if temperature else []
    parts += [f"busy {busy['mean']:.0%} of the time"] if busy else []
    parts += [f"slowed {share:.0%} of the time by {cause}" for cause, share in gpu["slowed_shares"].items()]
    return ", ".join(parts) or "no readings"


def startup_line(measurement: Measurement) -> str:
    """Returns the duration of the start-up with its phases, and of the first step."""
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in measurement.startup_phases_seconds.items())
    startup, first = measurement.startup_seconds, measurement.first_step_seconds
    return f"start-up:       {startup:.1f} s{f' ({parts})' if parts else ''}, then {first:.1f} s for the first step"
