"""The columns of `results.csv`: one line each here makes a column. Empty where a run does not know the value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from results.record import Record


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name with unit, what it means, and how it is read off a record."""

    name: str
    meaning: str
    value: Callable[[Record], Any]


def _config(field: str) -> Callable[[Record], Any]:
    return lambda record: record.config.get(field)


def _modifier(field: str) -> Callable[[Record], Any]:
    return lambda record: (record.config.get("modifiers") or {}).get(field)


def _derived(field: str) -> Callable[[Record], Any]:
    return lambda record: getattr(record.derived, field)


def _loss(which: int) -> Callable[[Record], Any]:
    def value(record: Record) -> float | None:
        losses = [*record.measurement.warmup_losses, *record.measurement.losses]
        return losses[which] if losses else None

    return value


def _busiest_ps(record: Record) -> float | None:
    """Returns what the busiest parameter server sends and receives in a second."""
    sent = (record.placement.get("sent_per_step") or {}).get("busiest_ps_bytes")
    seconds = record.measurement.step_seconds
    return sent * len(seconds) / sum(seconds) if sent and seconds else None


def _last(field: str) -> Callable[[Record], Any]:
    def value(record: Record) -> float | None:
        values = getattr(record.measurement, field)
        return values[-1] if values else None

    return value


COLUMNS = (
    Column("run_id", "names the run", lambda r: r.identity.run_id),
    Column("session_id", "equal for the runs of a sweep", lambda r: r.identity.session_id),
    Column("time_utc", "when it ended", lambda r: r.identity.time_utc),
    Column("kind", "run, allreduce, or input", lambda r: r.kind),
    Column("status", "ok, or why the number must not be used", lambda r: r.status),
    Column("reason", "the status in words", lambda r: r.reason),
    Column("model", "what was trained", _config("model")),
    Column("variable_update", "variable manager", _config("variable_update")),
    Column("all_reduce_spec", "reduction of the gradients", _modifier("all_reduce_spec")),
    Column("staged_vars", "weights fetched a step before", _modifier("staged_vars")),
    Column("relaxed_consistency", "gradients of the step before", _modifier("relaxed_consistency")),
    Column("asynchronous", "each tower applies its own gradient at once", _modifier("asynchronous")),
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
    Column("images_per_sec_per_device", "the same, per device", _derived("images_per_sec_per_device")),
    Column("images_per_sec_jitter", "1.4826 MAD of the per-step rates", _derived("images_per_sec_jitter")),
    Column("step_ms_p50", "median step, milliseconds", _derived("step_ms_p50")),
    Column("step_ms_p90", "90 % of steps were faster", _derived("step_ms_p90")),
    Column("step_ms_p99", "99 % of steps were faster", _derived("step_ms_p99")),
    Column("pipelined_input", "the next batch is brought to the device meanwhile", _config("pipelined_input")),
    Column("message", "what was all-reduced: a size, or a model's gradients", _config("message")),
    Column("message_bytes", "its size, of one tower", lambda r: r.measurement.message_bytes),
    Column("algbw_gb_per_sec", "message over time", _derived("algorithm_bandwidth_gb_per_sec")),
    Column("busbw_gb_per_sec", "that times 2 (n-1)/n", _derived("bus_bandwidth_gb_per_sec")),
    Column(
        "largest_error", "against the mean in NumPy, relative, absolute below 1", lambda r: r.measurement.largest_error
    ),
    Column("staleness_mean_updates", "of asynchronous towers: how old gradients were", _derived("staleness_mean")),
    Column("measured_steps", "how many", lambda r: len(r.measurement.step_seconds)),
    Column("first_step_s", "the first step, seconds", lambda r: r.measurement.first_step_seconds),
    Column("startup_s", "process start to first step", lambda r: r.measurement.startup_seconds),
    Column("loss_first", "of the first step", _loss(0)),
    Column("loss_last", "of the last step", _loss(-1)),
    Column("gflop_per_image", "forward, 2 per multiply-add", lambda r: r.model.get("gflop_per_image")),
    Column(
        "sent_bytes_per_step",
        "between devices, in a cluster between processes, by formula, all together",
        lambda r: (r.placement.get("sent_per_step") or {}).get("total_bytes"),
    ),
    Column("peak_host_memory_bytes", "largest RSS", lambda r: r.measurement.peak_host_memory_bytes),
    Column("tf_version", "TensorFlow", lambda r: r.environment.get("tensorflow_version")),
    Column("hardware_key", "equal on equal hardware", lambda r: r.identity.hardware_key),
    Column("config_key", "equal for equal configuration", lambda r: r.identity.config_key),
    Column("input_wait_share", "of the measured time: nothing to compute on", _derived("input_wait_share")),
    Column("synthetic_ratio", "rate over that of the same run with synthetic images", _derived("synthetic_ratio")),
    Column("skipped_records", "bad records that were left out", lambda r: r.measurement.skipped_records),
    Column("top_1_accuracy", "of the last step's images, before its update", _last("top_1_accuracies")),
    Column("top_5_accuracy", "likewise, among the five likeliest", _last("top_5_accuracies")),
    Column(
        "bare_decode_images_per_sec",
        "what decoding alone reaches with the same files",
        lambda r: r.measurement.bare_decode_images_per_sec,
    ),
    Column("num_workers", "processes that train", _config("num_workers")),
    Column("num_ps", "parameter servers", _config("num_ps")),
    Column("num_hosts", "hosts that they are on", _config("num_hosts")),
    Column("slowest_worker", "takes longest to its gradients", _derived("slowest_worker")),
    Column("straggler_ratio", "its time over the median of the others", _derived("straggler_ratio")),
    Column("busiest_ps_bytes_per_sec", "in and out of the busiest parameter server", _busiest_ps),
    Column("step_ms_p999", "99.9 % of at least 1,000 steps were faster", _derived("step_ms_p999")),
    Column("xla", "jit: each tower compiled as a whole", _config("xla")),
    Column("compile_s", "what the first step took longer for that", _derived("compile_seconds")),
    Column("conv1x1_as_matmul", "convolutions of one pixel as matrix products", _config("conv1x1_as_matmul")),
    Column("loss_minus_fp32", "at the end, of --check_precision", _derived("loss_difference_to_fp32")),
    Column("power_watts", "mean, of all GPUs, or of a CPU run's packages", _derived("power_watts")),
    Column("images_per_joule", "rate over that power", _derived("images_per_joule")),
    Column("cpu_cores_used", "CPU time of the measuring processes over time", _derived("cpu_cores_used")),
    Column("peak_gpu_memory_bytes", "most that was taken of one GPU's", _derived("peak_gpu_memory_bytes")),
    Column("flops_per_image", "of a step, as counted in its graph", lambda r: r.placement.get("flops_per_image")),
    Column("measured_peak_tflops", "what matrix products reach on the devices", _derived("measured_peak_tflops")),
    Column("mfu_of_measured_peak", "the step's arithmetic over that", _derived("mfu_of_measured_peak")),
    Column("onednn", "oneDNN's kernels on CPUs, if --onednn says so", _config("onednn")),
    Column(
        "filter_gradients_as_matmul",
        "those of larger filters without strides as matrix products",
        _config("filter_gradients_as_matmul"),
    ),
)


def row(record: Record) -> dict[str, Any]:
    """Returns the record as one CSV row; what is unknown is empty."""
    values = {column.name: column.value(record) for column in COLUMNS}
    return {name: "" if value is None else value for name, value in values.items()}
