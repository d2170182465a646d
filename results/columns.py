"""The columns of `results.csv`, one line each. A cell is empty if the run has no such value."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from results.record import Record
from results.record_parts import PARTS
from results.step_statistics import MIN_STEPS_FOR_INTERVAL
from results.text import csv_cell


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of `results.csv` and of data frames; a table of `docs/reference/record.md` is generated from it.

    Attributes:
        source: the fields that lead to it in a record, or a function.
        meaning: what it is, unless the flag or the field of that name says so.
        kind: str, int, float, bool or datetime.datetime; any value may be missing.
        unit: of numbers; empty for pure numbers.
        name: its name, with the unit if that is short; the last field of the source if it is not given.
    """

    source: str | Callable[[Record], Any]
    meaning: str = ""
    kind: type = str
    unit: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.source, str) and not self.name:
            object.__setattr__(self, "name", self.source.rpartition(".")[2])

    @functools.cached_property
    def of(self) -> Callable[[Record], Any]:
        """Takes the value out of a record; None if it has none."""
        if callable(self.source):
            return self.source
        part, *names = self.source.split(".")
        if part not in PARTS:
            return operator.attrgetter(self.source)
        return lambda record: functools.reduce(_entry, names, getattr(record, part))


def _entry(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else None


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
    Column("identity.run_id"),
    Column("identity.session_id"),
    Column("identity.time_utc", kind=datetime.datetime),
    Column("kind"),
    Column("status"),
    Column("reason"),
    Column("config.model"),
    Column("config.variable_update"),
    Column("config.modifiers.all_reduce_spec"),
    Column("config.modifiers.staged_vars", kind=bool),
    Column("config.modifiers.relaxed_consistency", kind=bool),
    Column("config.modifiers.asynchronous", "each tower applies its own gradients without waiting", bool),
    Column("config.modifiers.fc_model_parallel", kind=bool),
    Column("config.num_devices", "devices, one tower each; in a cluster, per worker", int, "devices", name="num_gpus"),
    Column("config.device"),
    Column("config.batch_per_device", kind=int, unit="images"),
    Column("measurement.images_per_step", kind=int, unit="images", name="batch_global"),
    Column("config.data_name", "synthetic, or the data set's name", name="data"),
    Column("config.data_format"),
    Column("config.precision"),
    Column("config.optimizer"),
    Column("config.forward_only", kind=bool),
    Column("derived.images_per_sec", "all images of the measured steps / sum of their times", float, "images/s"),
    Column(
        "derived.images_per_sec_low",
        f"lower bound of its 95 % interval; needs {MIN_STEPS_FOR_INTERVAL} steps",
        float,
        "images/s",
    ),
    Column("derived.images_per_sec_high", "upper bound of its 95 % interval", float, "images/s"),
    Column("derived.images_per_sec_per_device", "images_per_sec / devices of all workers", float, "images/s"),
    Column("derived.images_per_sec_jitter", "1.4826 x MAD of the steps' rates, images/s", float, "images/s"),
    Column("derived.step_ms_p50", "median time of a step", float, "ms"),
    Column("derived.step_ms_p90", "90th percentile of the step times", float, "ms"),
    Column(
        "derived.step_ms_p99",
        "99th percentile of the step times; of fewer than 100, between the two longest",
        float,
        "ms",
    ),
    Column("config.pipelined_input", kind=bool),
    Column("config.message", "what is all-reduced: a size, or the gradients of a model"),
    Column("measurement.message_bytes", kind=int, unit="bytes"),
    Column(
        "derived.algorithm_bandwidth_gb_per_sec",
        "message_bytes / mean time, in 1e9 bytes/s",
        float,
        "1e9 bytes/s",
        name="algbw_gb_per_sec",
    ),
    Column(
        "derived.bus_bandwidth_gb_per_sec",
        "algbw x 2(n-1)/n, as in nccl-tests",
        float,
        "1e9 bytes/s",
        name="busbw_gb_per_sec",
    ),
    Column("measurement.largest_error", kind=float),
    Column(
        "derived.staleness_mean",
        "mean staleness of the gradients of asynchronous towers",
        float,
        "updates",
        name="staleness_mean_updates",
    ),
    Column(lambda r: len(r.measurement.step_seconds), "number of measured steps", int, "steps", name="measured_steps"),
    Column("measurement.first_step_seconds", kind=float, unit="s", name="first_step_s"),
    Column("measurement.startup_seconds", kind=float, unit="s", name="startup_s"),
    Column(_loss(0), "loss of the first step, without weight decay", float, name="loss_first"),
    Column(_loss(-1), "loss of the last step, without weight decay", float, name="loss_last"),
    Column("model.gflop_per_image", kind=float, unit="1e9 operations"),
    Column("placement.sent_per_step.total_bytes", kind=int, unit="bytes", name="sent_bytes_per_step"),
    Column("measurement.peak_host_memory_bytes", kind=int, unit="bytes"),
    Column("environment.tensorflow_version", name="tf_version"),
    Column("identity.hardware_key"),
    Column("identity.config_key"),
    Column("derived.input_wait_share", "time that steps only waited for images / measured time", float),
    Column("derived.synthetic_ratio", "images_per_sec / that of the same run with synthetic images", float),
    Column("measurement.skipped_records", kind=int, unit="records"),
    Column(
        _last("top_1_accuracies"),
        "share of the last step's images classified correctly before its update",
        float,
        name="top_1_accuracy",
    ),
    Column(
        _last("top_5_accuracies"),
        "the same, with the correct class among the five most likely",
        float,
        name="top_5_accuracy",
    ),
    Column("measurement.bare_decode_images_per_sec", kind=float, unit="images/s"),
    Column("config.num_workers", kind=int),
    Column("config.num_ps", kind=int),
    Column("config.num_hosts", "different hosts in the addresses of the tasks", int),
    Column(
        "derived.slowest_worker", "the worker whose gradients take longer than the others' by more than the noise", int
    ),
    Column("derived.straggler_ratio", "its time / mean of the other workers' times", float),
    Column(
        _busiest_ps,
        "bytes in and out of the busiest parameter server, by formula",
        float,
        "bytes/s",
        name="busiest_ps_bytes_per_sec",
    ),
    Column("derived.step_ms_p999", "99.9th percentile of the step times; needs 1,000 steps", float, "ms"),
    Column("config.xla"),
    Column("derived.compile_seconds", "if it compiled: first step - median step", float, "s", name="compile_s"),
    Column("config.conv1x1_as_matmul", kind=bool),
    Column(
        "derived.loss_difference_to_fp32",
        "mean loss of the last ten steps - that in fp32",
        float,
        name="loss_minus_fp32",
    ),
    Column("derived.power_watts", "mean power of the GPUs", float, "W"),
    Column(
        "derived.images_per_joule",
        "images of the measured steps / energy from the first to the last of them, including pauses",
        float,
        "images/J",
    ),
    Column("derived.cpu_cores_used", "CPU time of the measuring processes / elapsed time", float, "cores"),
    Column("measurement.peak_gpu_memory_bytes", kind=int, unit="bytes"),
    Column("placement.flops_per_image", kind=float, unit="operations"),
    Column("derived.measured_peak_tflops", "rate of a large matrix product on all devices", float, "1e12 operations/s"),
    Column("derived.mfu_of_measured_peak", "images_per_sec x flops_per_image / measured peak", float),
    Column("config.onednn", kind=bool),
    Column("config.filter_gradients_as_matmul", kind=bool),
    Column("config.fused_bn", kind=bool),
    Column("config.pipeline.stages", kind=int, name="pipeline_stages"),
    Column("config.pipeline.micro_batches", kind=int),
    Column("derived.slowest_tower", "the tower that takes longer than the others by more than the noise", int),
    Column("derived.slowest_tower_ratio", "its time / mean of the other towers' times", float),
    Column("config.eval_only", "a checkpoint is evaluated and nothing is trained", bool),
    Column(
        _last_evaluation("top_1_accuracy"),
        "share of the validation images classified correctly, in the last evaluation",
        float,
        name="eval_top_1_accuracy",
    ),
    Column(
        _last_evaluation("top_5_accuracy"),
        "the same, with the correct class among the five most likely",
        float,
        name="eval_top_5_accuracy",
    ),
    Column("measurement.seconds_to_accuracy", kind=float, unit="s"),
    Column("measurement.restarts", kind=int),
    Column(
        "derived.gpu_memory_reserved_bytes",
        "largest memory of one GPU that all processes held, as its driver reports it",
        int,
        "bytes",
    ),
    Column("config.torch_version", "version of PyTorch, if it trained"),
)


def row(record: Record) -> dict[str, Any]:
    """Returns the record as one CSV row; what is unknown is empty, and no spreadsheet takes text for a formula."""
    return {column.name: _cell(column.of(record)) for column in COLUMNS}


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (int, float)):
        return "" if value is None else value
    return csv_cell(str(value))
