"""A run as the lines that MLPerf's logging library writes, for tools that read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from results.exchange import step_times
from results.record import Record, Status, strict

_TOKEN = ":::MLLOG"
_POINT, _START, _END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
# Numbers of the record in `tracked_stats`, by their names there.
_STATS = {
    "throughput": "images_per_sec",
    "throughput_low": "images_per_sec_low",
    "throughput_high": "images_per_sec_high",
    "step_ms_p50": "step_ms_p50",
    "step_ms_p90": "step_ms_p90",
    "step_ms_p99": "step_ms_p99",
}


def lines(record: Record) -> Iterator[str]:
    """Yields the `:::MLLOG` lines of a run, with what its record has.

    The format is that of MLPerf's logging library (github.com/mlcommons/logging). The run is no MLPerf submission, and
    the lines do not pass MLPerf's compliance checker: nothing is written that the record does not know, such as the
    submitter or the size of the training set, the benchmark is the model's name, and `run_stop` has the status
    `success` if the run was valid, not if it reached a target.

    `time_ms` is in ms since 1970. It follows from the record's end and the durations of steps and evaluations, as
    `step_times.StepTimes` describes: `init_start` is the start of the process, `init_stop` and `run_start` that of the
    first step, and `run_stop` the end. Throughput is in images/s.
    """
    times, config, taken = step_times.of_record(record), record.config, record.measurement
    trains = config.get("forward_only") is not True
    yield _line(times.began, _START, "init_start")
    facts = {
        "submission_benchmark": config.get("model"),
        "global_batch_size": taken.images_per_step,
        "seed": config.get("seed"),
        "opt_name": config.get("optimizer") if trains else None,
        "opt_base_learning_rate": config.get("learning_rate") if trains else None,
        "opt_weight_decay": config.get("weight_decay") if trains else None,
        "eval_samples": taken.evaluations[-1].get("images") if taken.evaluations else None,
    }
    for key, value in facts.items():
        if value is not None:
            yield _line(times.began, _POINT, key, value)
    yield _line(times.first_step, _END, "init_stop")
    yield _line(times.first_step, _START, "run_start")
    for evaluation, (begin, end) in zip(taken.evaluations, times.evaluations, strict=True):
        where = {"epoch_num": evaluation.get("epochs"), "step_num": evaluation.get("step")}
        where = {name: number for name, number in where.items() if number is not None}
        yield _line(begin, _START, "eval_start", metadata=where)
        if (accuracy := evaluation.get("top_1_accuracy")) is not None:
            yield _line(end, _POINT, "eval_accuracy", accuracy, where)
        yield _line(end, _END, "eval_stop", metadata=where)
    numbers = {name: getattr(record.derived, field) for name, field in _STATS.items()}
    stats = {name: number for name, number in numbers.items() if number is not None}
    if stats:
        step = {"step_num": times.numbers[-1]} if times.numbers else {}
        yield _line(times.ended, _POINT, "tracked_stats", stats, step)
    status = "success" if record.status is Status.OK else "aborted"
    yield _line(times.ended, _END, "run_stop", metadata={"status": status})


def _line(
    seconds: float, event_type: str, key: str, value: Any = None, metadata: Mapping[str, Any] | None = None
) -> str:
    event = {
        "namespace": "",
        "time_ms": round(1000 * seconds),
        "event_type": event_type,
        "key": key,
        "value": value,
        "metadata": metadata or {},
    }
    # MLPerf's parser takes the last token of a line for its beginning, and text of a record may hold one.
    return f"{_TOKEN} {json.dumps(strict(event), allow_nan=False).replace(':::', chr(92) + 'u003a::')}"
