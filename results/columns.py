"""The columns of `results.csv`, one line each. A cell is empty if the run has no such value."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
from collections.abc import Callable
from typing import Any

from results.record import Record
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.text import csv_cell
from results.utilisation import of_measured_peak

# The parts of a record that are plain mappings.
_MAPPINGS = ("config", "environment", "model", "placement")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of `results.csv` and of data frames; `docs/reference/columns.md` is generated from it.

    Attributes:
        name: its name, with the unit if that is short.
        meaning: what it is.
        source: the fields that lead to it in a record, or a function.
        kind: str, int, float, bool or datetime.datetime; any value may be missing.
        unit: of numbers; empty for pure numbers.
    """

    name: str
    meaning: str
    source: str | Callable[[Record], Any]
    kind: type = str
    unit: str = ""

    @functools.cached_property
    def of(self) -> Callable[[Record], Any]:
        """Takes the value out of a record; None if it has none."""
        if callable(self.source):
            return self.source
        part, *fields = self.source.split(".")
        if part not in _MAPPINGS:
            return operator.attrgetter(self.source)

        def look_up(record: Record) -> Any:
            value = getattr(record, part)
            for field in fields:
                if value is None:
                    break
                value = value.get(field)
            return value

        return look_up


def _last(field: str) -> Callable[[Record], Any]:
    return lambda record: (getattr(record.measurement, field) or [None])[-1]


def _last_evaluation(field: str) -> Callable[[Record], Any]:
    return lambda record: record.measurement.evaluations[-1].get(field) if record.measurement.evaluations else None


def _loss(which: int) -> Callable[[Record], Any]:
    return lambda record: ([*record.measurement.warmup_losses, *record.measurement.losses] or [None])[which]


def _busiest_ps(record: Record) -> float | None:
    sent = (record.placement.get("sent_per_step") or {}).get("busiest_ps_bytes")
    seconds = record.measurement.step_seconds
    return sent * len(seconds) / sum(seconds) if sent and seconds else None


COLUMNS = (
    Column("run_id", "identifies the run", "identity.run_id"),
    Column("session_id", "shared by the runs of one sweep", "identity.session_id"),
    Column("time_utc", "when the run ended", "identity.time_utc", datetime.datetime),
    Column("kind", "run, allreduce, or input", "kind"),
    Column("status", "ok, or why the rate must not be used", "status"),
    Column("reason", "the status as a sentence", "reason"),
    Column("model", "what is trained", "config.model"),
    Column("variable_update", "variable manager", "config.variable_update"),
    Column("all_reduce_spec", "reduction of the gradients", "config.modifiers.all_reduce_spec"),
    Column("staged_vars", "weights are read one step ahead", "config.modifiers.staged_vars", bool),
    Column(
        "relaxed_consistency",
        "gradients of the previous step are applied",
        "config.modifiers.relaxed_consistency",
        bool,
    ),
    Column(
        "asynchronous", "each tower applies its own gradients without waiting", "config.modifiers.asynchronous", bool
    ),
    Column("fc_model_parallel", "dense layers are divided over the towers", "config.modifiers.fc_model_parallel", bool),
    Column("num_gpus", "devices, one tower each; in a cluster, per worker", "config.num_devices", int, "devices"),
    Column("device", "cpu (logical devices) or gpu", "config.device"),
    Column("batch_per_device", "images per device and step", "config.batch_per_device", int, "images"),
    Column("batch_global", "images per step, over all devices", "measurement.images_per_step", int, "images"),
    Column("data", "synthetic, or the data set's name", "config.data_name"),
    Column("data_format", "NHWC or NCHW", "config.data_format"),
    Column("precision", "precision of the arithmetic", "config.precision"),
    Column("optimizer", "update rule", "config.optimizer"),
    Column("forward_only", "inference, no training", "config.forward_only", bool),
    Column(
        "images_per_sec",
        "all images of the measured steps / sum of their times",
        "derived.images_per_sec",
        float,
        "images/s",
    ),
    Column(
        "images_per_sec_low",
        f"lower bound of its 95 % interval; needs {MIN_STEPS_FOR_INTERVAL} steps",
        "derived.images_per_sec_low",
        float,
        "images/s",
    ),
    Column("images_per_sec_high", "upper bound of its 95 % interval", "derived.images_per_sec_high", float, "images/s"),
    Column(
        "images_per_sec_per_device",
        "images_per_sec / devices of all workers",
        "derived.images_per_sec_per_device",
        float,
        "images/s",
    ),
    Column(
        "images_per_sec_jitter",
        "1.4826 x MAD of the steps' rates, images/s",
        "derived.images_per_sec_jitter",
        float,
        "images/s",
    ),
    Column("step_ms_p50", "median time of a step", "derived.step_ms_p50", float, "ms"),
    Column("step_ms_p90", "90th percentile of the step times", "derived.step_ms_p90", float, "ms"),
    Column("step_ms_p99", "99th percentile of the step times", "derived.step_ms_p99", float, "ms"),
    Column("pipelined_input", "the next batch is copied to the device during a step", "config.pipelined_input", bool),
    Column("message", "what is all-reduced: a size, or the gradients of a model", "config.message"),
    Column("message_bytes", "size of the message of one tower", "measurement.message_bytes", int, "bytes"),
    Column(
        "algbw_gb_per_sec",
        "message_bytes / mean time, in 1e9 bytes/s",
        "derived.algorithm_bandwidth_gb_per_sec",
        float,
        "1e9 bytes/s",
    ),
    Column(
        "busbw_gb_per_sec",
        "algbw x 2(n-1)/n, as in nccl-tests",
        "derived.bus_bandwidth_gb_per_sec",
        float,
        "1e9 bytes/s",
    ),
    Column(
        "largest_error",
        "largest relative difference (absolute below 1) to the mean in NumPy",
        "measurement.largest_error",
        float,
    ),
    Column(
        "staleness_mean_updates",
        "mean staleness of the gradients of asynchronous towers",
        "derived.staleness_mean",
        float,
        "updates",
    ),
    Column("measured_steps", "number of measured steps", lambda r: len(r.measurement.step_seconds), int, "steps"),
    Column(
        "first_step_s", "time of the first step, which is never measured", "measurement.first_step_seconds", float, "s"
    ),
    Column("startup_s", "from the start of the process to the first step", "measurement.startup_seconds", float, "s"),
    Column("loss_first", "loss of the first step, without weight decay", _loss(0), float),
    Column("loss_last", "loss of the last step, without weight decay", _loss(-1), float),
    Column(
        "gflop_per_image",
        "operations of the forward pass, as published, 2 per multiply-add",
        "model.gflop_per_image",
        float,
        "1e9 operations",
    ),
    Column(
        "sent_bytes_per_step",
        "bytes sent between devices (in a cluster: processes), by formula",
        "placement.sent_per_step.total_bytes",
        int,
        "bytes",
    ),
    Column(
        "peak_host_memory_bytes",
        "largest resident set of a process",
        "measurement.peak_host_memory_bytes",
        int,
        "bytes",
    ),
    Column("tf_version", "version of TensorFlow", "environment.tensorflow_version"),
    Column("hardware_key", "equal for equal hardware", "identity.hardware_key"),
    Column("config_key", "equal for equal configuration", "identity.config_key"),
    Column(
        "input_wait_share", "time that steps only waited for images / measured time", "derived.input_wait_share", float
    ),
    Column(
        "synthetic_ratio",
        "images_per_sec / that of the same run with synthetic images",
        "derived.synthetic_ratio",
        float,
    ),
    Column("skipped_records", "bad records that were skipped", "measurement.skipped_records", int, "records"),
    Column(
        "top_1_accuracy",
        "share of the last step's images classified correctly before its update",
        _last("top_1_accuracies"),
        float,
    ),
    Column(
        "top_5_accuracy",
        "the same, with the correct class among the five most likely",
        _last("top_5_accuracies"),
        float,
    ),
    Column(
        "bare_decode_images_per_sec",
        "rate of decoding alone, with the same files",
        "measurement.bare_decode_images_per_sec",
        float,
        "images/s",
    ),
    Column("num_workers", "processes that train", "config.num_workers", int),
    Column("num_ps", "parameter servers", "config.num_ps", int),
    Column("num_hosts", "different hosts in the addresses of the tasks", "config.num_hosts", int),
    Column(
        "slowest_worker",
        "the worker whose gradients take longer than the others' by more than the noise",
        "derived.slowest_worker",
        int,
    ),
    Column("straggler_ratio", "its time / mean of the other workers' times", "derived.straggler_ratio", float),
    Column(
        "busiest_ps_bytes_per_sec",
        "bytes in and out of the busiest parameter server, by formula",
        _busiest_ps,
        float,
        "bytes/s",
    ),
    Column(
        "step_ms_p999", "99.9th percentile of the step times; needs 1,000 steps", "derived.step_ms_p999", float, "ms"
    ),
    Column("xla", "jit: XLA compiles each tower as a whole", "config.xla"),
    Column("compile_s", "with XLA: first step - median step", "derived.compile_seconds", float, "s"),
    Column("conv1x1_as_matmul", "1x1 convolutions are matrix products", "config.conv1x1_as_matmul", bool),
    Column(
        "loss_minus_fp32", "mean loss of the last ten steps - that in fp32", "derived.loss_difference_to_fp32", float
    ),
    Column(
        "power_watts",
        "mean power of the GPUs; in a run on CPUs, of the CPU packages",
        "derived.power_watts",
        float,
        "W",
    ),
    Column(
        "images_per_joule",
        "images of the measured steps / energy from the first to the last of them, including pauses",
        "derived.images_per_joule",
        float,
        "images/J",
    ),
    Column(
        "cpu_cores_used", "CPU time of the measuring processes / elapsed time", "derived.cpu_cores_used", float, "cores"
    ),
    Column(
        "peak_gpu_memory_bytes",
        "most memory that a traced step used on one GPU, or on one part of a split GPU",
        "measurement.peak_gpu_memory_bytes",
        int,
        "bytes",
    ),
    Column(
        "flops_per_image",
        "operations of a step per image, counted in its graph",
        "placement.flops_per_image",
        float,
        "operations",
    ),
    Column(
        "measured_peak_tflops",
        "rate of a large matrix product on all devices",
        "derived.measured_peak_tflops",
        float,
        "1e12 operations/s",
    ),
    Column(
        "mfu_of_measured_peak",
        "images_per_sec x flops_per_image / measured peak; empty above 1",
        of_measured_peak,
        float,
    ),
    Column("onednn", "whether CPUs use oneDNN's kernels; empty: TensorFlow decides", "config.onednn", bool),
    Column(
        "filter_gradients_as_matmul", "filter gradients are matrix products", "config.filter_gradients_as_matmul", bool
    ),
    Column("fused_bn", "batch normalisation in a fused kernel", "config.fused_bn", bool),
    Column("pipeline_stages", "stages of the model, one per device", "config.pipeline.stages", int),
    Column("micro_batches", "micro-batches per step of a pipeline", "config.pipeline.micro_batches", int),
    Column(
        "slowest_tower",
        "the tower that takes longer than the others by more than the noise",
        "derived.slowest_tower",
        int,
    ),
    Column("slowest_tower_ratio", "its time / mean of the other towers' times", "derived.slowest_tower_ratio", float),
    Column("eval_only", "a checkpoint is evaluated and nothing is trained", "config.eval_only", bool),
    Column(
        "eval_top_1_accuracy",
        "share of the validation images classified correctly, in the last evaluation",
        _last_evaluation("top_1_accuracy"),
        float,
    ),
    Column(
        "eval_top_5_accuracy",
        "the same, with the correct class among the five most likely",
        _last_evaluation("top_5_accuracy"),
        float,
    ),
    Column(
        "seconds_to_accuracy",
        "from the first step until an evaluation reached the requested accuracy",
        "measurement.seconds_to_accuracy",
        float,
        "s",
    ),
    Column("restarts", "times that a cluster was started again after a task had died", "measurement.restarts", int),
    Column(
        "gpu_memory_reserved_bytes",
        "largest memory of one GPU that all processes held, as its driver reports it",
        "derived.gpu_memory_reserved_bytes",
        int,
        "bytes",
    ),
    Column("torch_version", "version of PyTorch, if it trained", "config.torch_version"),
)


def row(record: Record) -> dict[str, Any]:
    """Returns the record as one CSV row; what is unknown is empty, and no spreadsheet takes text for a formula."""
    return {column.name: _cell(column.of(record)) for column in COLUMNS}


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return "" if value is None else value
    return csv_cell(str(value))
