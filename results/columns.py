"""The columns of `results.csv`, one line each. A cell is empty if the run has no such value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from results.record import Record


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its name with the unit, its meaning, and the fields that lead to it in a record, or a function."""

    name: str
    meaning: str
    source: str | Callable[[Record], Any]

    @functools.cached_property
    def value(self) -> Callable[[Record], Any]:
        """Takes the value out of a record; None if it has none."""
        if callable(self.source):
            return self.source
        part, *fields = self.source.split(".")

        def look_up(record: Record) -> Any:
            value = getattr(record, part)
            for field in fields:
                if value is None:
                    break
                value = value.get(field) if isinstance(value, dict) else getattr(value, field)
            return value

        return look_up


def _last(field: str) -> Callable[[Record], Any]:
    return lambda record: (getattr(record.measurement, field) or [None])[-1]


def _loss(which: int) -> Callable[[Record], Any]:
    return lambda record: ([*record.measurement.warmup_losses, *record.measurement.losses] or [None])[which]


def _busiest_ps(record: Record) -> float | None:
    """Returns the bytes per second that the busiest parameter server sends and receives."""
    sent = (record.placement.get("sent_per_step") or {}).get("busiest_ps_bytes")
    seconds = record.measurement.step_seconds
    return sent * len(seconds) / sum(seconds) if sent and seconds else None


COLUMNS = (
    Column("run_id", "identifies the run", "identity.run_id"),
    Column("session_id", "equal for the runs of a sweep", "identity.session_id"),
    Column("time_utc", "when it ended", "identity.time_utc"),
    Column("kind", "run, allreduce, or input", "kind"),
    Column("status", "ok, or why the number must not be used", "status"),
    Column("reason", "the status in words", "reason"),
    Column("model", "what was trained", "config.model"),
    Column("variable_update", "variable manager", "config.variable_update"),
    Column("all_reduce_spec", "reduction of the gradients", "config.modifiers.all_reduce_spec"),
    Column("staged_vars", "weights are fetched one step ahead", "config.modifiers.staged_vars"),
    Column("relaxed_consistency", "gradients of the previous step are applied", "config.modifiers.relaxed_consistency"),
    Column("asynchronous", "each tower applies its own gradients without waiting", "config.modifiers.asynchronous"),
    Column("fc_model_parallel", "dense layers divided over towers", "config.modifiers.fc_model_parallel"),
    Column("num_gpus", "devices, one tower each", "config.num_devices"),
    Column("device", "cpu (logical devices) or gpu", "config.device"),
    Column("batch_per_device", "images per device and step", "config.batch_per_device"),
    Column("batch_global", "images per step", "measurement.images_per_step"),
    Column("data", "synthetic, or the data set's name", "config.data_name"),
    Column("data_format", "NHWC or NCHW", "config.data_format"),
    Column("precision", "of the arithmetic", "config.precision"),
    Column("optimizer", "update rule", "config.optimizer"),
    Column("forward_only", "inference, no training", "config.forward_only"),
    Column("images_per_sec", "all measured images over all measured time", "derived.images_per_sec"),
    Column("images_per_sec_low", "95 % interval, lower bound", "derived.images_per_sec_low"),
    Column("images_per_sec_high", "95 % interval, upper bound", "derived.images_per_sec_high"),
    Column("images_per_sec_per_device", "images_per_sec over devices", "derived.images_per_sec_per_device"),
    Column("images_per_sec_jitter", "1.4826 MAD of the per-step rates", "derived.images_per_sec_jitter"),
    Column("step_ms_p50", "median step, milliseconds", "derived.step_ms_p50"),
    Column("step_ms_p90", "90 % of steps were faster", "derived.step_ms_p90"),
    Column("step_ms_p99", "99 % of steps were faster", "derived.step_ms_p99"),
    Column("pipelined_input", "the next batch is copied to the device during a step", "config.pipelined_input"),
    Column("message", "what was all-reduced: a size, or a model's gradients", "config.message"),
    Column("message_bytes", "its size, of one tower", "measurement.message_bytes"),
    Column("algbw_gb_per_sec", "message over time", "derived.algorithm_bandwidth_gb_per_sec"),
    Column("busbw_gb_per_sec", "that times 2 (n-1)/n", "derived.bus_bandwidth_gb_per_sec"),
    Column("largest_error", "to the mean in NumPy, relative, absolute below 1", "measurement.largest_error"),
    Column("staleness_mean_updates", "of asynchronous towers: mean age of gradients", "derived.staleness_mean"),
    Column("measured_steps", "their number", lambda r: len(r.measurement.step_seconds)),
    Column("first_step_s", "the first step, seconds", "measurement.first_step_seconds"),
    Column("startup_s", "process start to first step", "measurement.startup_seconds"),
    Column("loss_first", "of the first step", _loss(0)),
    Column("loss_last", "of the last step", _loss(-1)),
    Column("gflop_per_image", "forward, 2 per multiply-add", "model.gflop_per_image"),
    Column(
        "sent_bytes_per_step",
        "by formula: between devices, in a cluster between processes",
        "placement.sent_per_step.total_bytes",
    ),
    Column("peak_host_memory_bytes", "largest RSS", "measurement.peak_host_memory_bytes"),
    Column("tf_version", "TensorFlow", "environment.tensorflow_version"),
    Column("hardware_key", "equal on equal hardware", "identity.hardware_key"),
    Column("config_key", "equal for equal configuration", "identity.config_key"),
    Column("input_wait_share", "share of the measured time spent waiting for images", "derived.input_wait_share"),
    Column("synthetic_ratio", "rate over the rate of the same run with synthetic images", "derived.synthetic_ratio"),
    Column("skipped_records", "bad records that were skipped", "measurement.skipped_records"),
    Column("top_1_accuracy", "of the last step's images, before its update", _last("top_1_accuracies")),
    Column("top_5_accuracy", "of the last step's images: class among the five likeliest", _last("top_5_accuracies")),
    Column("bare_decode_images_per_sec", "of decoding alone, same files", "measurement.bare_decode_images_per_sec"),
    Column("num_workers", "processes that train", "config.num_workers"),
    Column("num_ps", "parameter servers", "config.num_ps"),
    Column("num_hosts", "hosts of the processes", "config.num_hosts"),
    Column("slowest_worker", "the worker that takes longest to its gradients", "derived.slowest_worker"),
    Column("straggler_ratio", "the slowest worker's time over the median of the others", "derived.straggler_ratio"),
    Column("busiest_ps_bytes_per_sec", "in and out of the busiest parameter server", _busiest_ps),
    Column("step_ms_p999", "99.9 % of at least 1,000 steps were faster", "derived.step_ms_p999"),
    Column("xla", "jit: each tower compiled as a whole", "config.xla"),
    Column("compile_s", "extra time of the first step for that", "derived.compile_seconds"),
    Column("conv1x1_as_matmul", "1x1 convolutions as matrix products", "config.conv1x1_as_matmul"),
    Column("loss_minus_fp32", "at the end, of --check_precision", "derived.loss_difference_to_fp32"),
    Column("power_watts", "mean, of all GPUs, or of a CPU run's packages", "derived.power_watts"),
    Column("images_per_joule", "rate over that power", "derived.images_per_joule"),
    Column("cpu_cores_used", "CPU time of the measuring processes over time", "derived.cpu_cores_used"),
    Column("peak_gpu_memory_bytes", "largest use of one GPU's memory", "derived.peak_gpu_memory_bytes"),
    Column("flops_per_image", "counted in the graph of a step", "placement.flops_per_image"),
    Column("measured_peak_tflops", "rate of matrix products on the devices", "derived.measured_peak_tflops"),
    Column("mfu_of_measured_peak", "the step's FLOP rate over that", "derived.mfu_of_measured_peak"),
    Column("onednn", "oneDNN's kernels on CPUs, if --onednn is given", "config.onednn"),
    Column("filter_gradients_as_matmul", "of larger filters without strides", "config.filter_gradients_as_matmul"),
)


def row(record: Record) -> dict[str, Any]:
    """Returns the record as one CSV row; what is unknown is empty."""
    values = {column.name: column.value(record) for column in COLUMNS}
    return {name: "" if value is None else value for name, value in values.items()}
