"""The columns of `results.csv`, one line each. A cell is empty if the run has no such value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from results.record import Record


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name with the unit, its meaning, and the function that reads it from a record."""

    name: str
    meaning: str
    value: Callable[[Record], Any]


def _config(field: str) -> Callable[[Record], Any]:
    return lambda record: record.config.get(field)


def _modifier(field: str) -> Callable[[Record], Any]:
    return lambda record: (record.config.get("modifiers") or {}).get(field)


def _derived(field: str) -> Callable[[Record], Any]:
    return lambda record: getattr(record.derived, field)


def _measured(field: str) -> Callable[[Record], Any]:
    return lambda record: getattr(record.measurement, field)


def _last(field: str) -> Callable[[Record], Any]:
    return lambda record: (getattr(record.measurement, field) or [None])[-1]


def _sent(field: str) -> Callable[[Record], Any]:
    return lambda record: (record.placement.get("sent_per_step") or {}).get(field)


def _loss(which: int) -> Callable[[Record], Any]:
    return lambda record: ([*record.measurement.warmup_losses, *record.measurement.losses] or [None])[which]


def _busiest_ps(record: Record) -> float | None:
    """Returns the bytes per second that the busiest parameter server sends and receives."""
    sent, seconds = _sent("busiest_ps_bytes")(record), record.measurement.step_seconds
    return sent * len(seconds) / sum(seconds) if sent and seconds else None


COLUMNS = (
    Column("run_id", "identifies the run", lambda r: r.identity.run_id),
    Column("session_id", "equal for the runs of a sweep", lambda r: r.identity.session_id),
    Column("time_utc", "when it ended", lambda r: r.identity.time_utc),
    Column("kind", "run, allreduce, or input", lambda r: r.kind),
    Column("status", "ok, or why the number must not be used", lambda r: r.status),
    Column("reason", "the status in words", lambda r: r.reason),
    Column("model", "what was trained", _config("model")),
    Column("variable_update", "variable manager", _config("variable_update")),
    Column("all_reduce_spec", "reduction of the gradients", _modifier("all_reduce_spec")),
    Column("staged_vars", "weights are fetched one step ahead", _modifier("staged_vars")),
    Column("relaxed_consistency", "gradients of the previous step are applied", _modifier("relaxed_consistency")),
    Column("asynchronous", "each tower applies its own gradients without waiting", _modifier("asynchronous")),
    Column("fc_model_parallel", "dense layers divided over towers", _modifier("fc_model_parallel")),
    Column("num_gpus", "devices, one tower each", _config("num_devices")),
    Column("device", "cpu (logical devices) or gpu", _config("device")),
    Column("batch_per_device", "images per device and step", _config("batch_per_device")),
    Column("batch_global", "images per step", lambda r: r.measurement.images_per_step),
    Column("data", "synthetic, or the data set's name", _config("data_name")),
    Column("data_format", "NHWC or NCHW", _config("data_format")),
    Column("precision", "of the arithmetic", _config("precision")),
    Column("optimizer", "update rule", _config("optimizer")),
    Column("forward_only", "inference, no training", _config("forward_only")),
    Column("images_per_sec", "all measured images over all measured time", _derived("images_per_sec")),
    Column("images_per_sec_low", "95 % interval, lower bound", _derived("images_per_sec_low")),
    Column("images_per_sec_high", "95 % interval, upper bound", _derived("images_per_sec_high")),
    Column("images_per_sec_per_device", "images_per_sec over devices", _derived("images_per_sec_per_device")),
    Column("images_per_sec_jitter", "1.4826 MAD of the per-step rates", _derived("images_per_sec_jitter")),
    Column("step_ms_p50", "median step, milliseconds", _derived("step_ms_p50")),
    Column("step_ms_p90", "90 % of steps were faster", _derived("step_ms_p90")),
    Column("step_ms_p99", "99 % of steps were faster", _derived("step_ms_p99")),
    Column("pipelined_input", "the next batch is copied to the device during a step", _config("pipelined_input")),
    Column("message", "what was all-reduced: a size, or a model's gradients", _config("message")),
    Column("message_bytes", "its size, of one tower", _measured("message_bytes")),
    Column("algbw_gb_per_sec", "message over time", _derived("algorithm_bandwidth_gb_per_sec")),
    Column("busbw_gb_per_sec", "that times 2 (n-1)/n", _derived("bus_bandwidth_gb_per_sec")),
    Column("largest_error", "to the mean in NumPy, relative, absolute below 1", _measured("largest_error")),
    Column("staleness_mean_updates", "of asynchronous towers: mean age of gradients", _derived("staleness_mean")),
    Column("measured_steps", "their number", lambda r: len(r.measurement.step_seconds)),
    Column("first_step_s", "the first step, seconds", _measured("first_step_seconds")),
    Column("startup_s", "process start to first step", _measured("startup_seconds")),
    Column("loss_first", "of the first step", _loss(0)),
    Column("loss_last", "of the last step", _loss(-1)),
    Column("gflop_per_image", "forward, 2 per multiply-add", lambda r: r.model.get("gflop_per_image")),
    Column("sent_bytes_per_step", "by formula: between devices, in a cluster between processes", _sent("total_bytes")),
    Column("peak_host_memory_bytes", "largest RSS", _measured("peak_host_memory_bytes")),
    Column("tf_version", "TensorFlow", lambda r: r.environment.get("tensorflow_version")),
    Column("hardware_key", "equal on equal hardware", lambda r: r.identity.hardware_key),
    Column("config_key", "equal for equal configuration", lambda r: r.identity.config_key),
    Column("input_wait_share", "share of the measured time spent waiting for images", _derived("input_wait_share")),
    Column("synthetic_ratio", "rate over the rate of the same run with synthetic images", _derived("synthetic_ratio")),
    Column("skipped_records", "bad records that were skipped", _measured("skipped_records")),
    Column("top_1_accuracy", "of the last step's images, before its update", _last("top_1_accuracies")),
    Column("top_5_accuracy", "of the last step's images: class among the five likeliest", _last("top_5_accuracies")),
    Column("bare_decode_images_per_sec", "of decoding alone, same files", _measured("bare_decode_images_per_sec")),
    Column("num_workers", "processes that train", _config("num_workers")),
    Column("num_ps", "parameter servers", _config("num_ps")),
    Column("num_hosts", "hosts of the processes", _config("num_hosts")),
    Column("slowest_worker", "the worker that takes longest to its gradients", _derived("slowest_worker")),
    Column("straggler_ratio", "the slowest worker's time over the median of the others", _derived("straggler_ratio")),
    Column("busiest_ps_bytes_per_sec", "in and out of the busiest parameter server", _busiest_ps),
    Column("step_ms_p999", "99.9 % of at least 1,000 steps were faster", _derived("step_ms_p999")),
    Column("xla", "jit: each tower compiled as a whole", _config("xla")),
    Column("compile_s", "extra time of the first step for that", _derived("compile_seconds")),
    Column("conv1x1_as_matmul", "1x1 convolutions as matrix products", _config("conv1x1_as_matmul")),
    Column("loss_minus_fp32", "at the end, of --check_precision", _derived("loss_difference_to_fp32")),
    Column("power_watts", "mean, of all GPUs, or of a CPU run's packages", _derived("power_watts")),
    Column("images_per_joule", "rate over that power", _derived("images_per_joule")),
    Column("cpu_cores_used", "CPU time of the measuring processes over time", _derived("cpu_cores_used")),
    Column("peak_gpu_memory_bytes", "largest use of one GPU's memory", _derived("peak_gpu_memory_bytes")),
    Column("flops_per_image", "counted in the graph of a step", lambda r: r.placement.get("flops_per_image")),
    Column("measured_peak_tflops", "rate of matrix products on the devices", _derived("measured_peak_tflops")),
    Column("mfu_of_measured_peak", "the step's FLOP rate over that", _derived("mfu_of_measured_peak")),
    Column("onednn", "oneDNN's kernels on CPUs, if --onednn is given", _config("onednn")),
    Column("filter_gradients_as_matmul", "of larger filters without strides", _config("filter_gradients_as_matmul")),
)


def row(record: Record) -> dict[str, Any]:
    """Returns the record as one CSV row; what is unknown is empty."""
    values = {column.name: column.value(record) for column in COLUMNS}
    return {name: "" if value is None else value for name, value in values.items()}
