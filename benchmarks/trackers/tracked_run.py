"""What trackers get of a run: computed once from its record, and the same for all of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from results.columns import COLUMNS
from results.exchange.frame import Results
from results.record import Record, Status, flat
from results.text import markdown

# MLflow takes 6,000.
_LONGEST_TEXT = 5000
# A record may come from anywhere; trackers take these in names, and a file system takes the others in an id.
_ODD_IN_NAME, _ODD_IN_ID = re.compile(r"[^\w\-. /]", re.ASCII), re.compile(r"[^\w-]", re.ASCII)
# Of a step, beside its time; the wait for images is that of measured steps alone.
_OF_A_STEP = ("loss", "top_1_accuracy", "top_5_accuracy", "loss_scale", "input_wait_seconds")

Value = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Point:
    """Numbers at a step of the training, by name; `at` is in seconds since 1970."""

    step: int
    at: float
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run for trackers. Names have letters, digits and `_-. /`; texts are of at most 5,000 characters.

    Attributes:
        run_id: of the record; has letters, digits, `_` and `-`.
        name: what is shown.
        group: shared by the runs of one session; empty for a single run.
        is_ok: whether its rate may be used.
        parameters: the configuration, with names such as `input.cycle_length`.
        metrics: the columns of `results.csv` that are numbers, and telemetry such as
            `telemetry/GPU 0/power_watts.mean`.
        tags: status, keys, versions, command and environment.
        notes: reason and warnings, as Markdown.
        labels: words to find it by.
        points: numbers of steps and evaluations, by step.
        began: when the process started, in seconds since 1970, as far as the time until the first step is known.
        ended: when it ended; of a record whose time cannot be read, in 1970.
    """

    run_id: str
    name: str
    group: str
    is_ok: bool
    parameters: Mapping[str, Value]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    notes: str
    labels: Sequence[str]
    points: Sequence[Point]
    began: float
    ended: float


def tracked(record: Record) -> TrackedRun:
    """Returns what trackers get of a record.

    Raises:
        ValueError: the record has no run_id, which identifies it in a tracker.
    """
    if not (run_id := _ODD_IN_ID.sub("_", record.identity.run_id)):
        raise ValueError("the record has no run_id")
    model = str(record.config.get("model") or record.kind)
    first_step, points = _points(record)
    return TrackedRun(
        run_id=run_id,
        name=_text(f"{model} {run_id}"),
        group=_text(record.identity.session_id),
        is_ok=record.status is Status.OK,
        parameters=_named(record.config),
        metrics=_metrics(record),
        tags={name: str(value) for name, value in _named(_facts(record)).items()},
        notes="\n\n".join(markdown(sentence) for sentence in (record.reason, *record.warnings) if sentence),
        labels=[_text(label) for label in dict.fromkeys((str(record.status), str(record.kind), model))],
        points=points,
        began=first_step - (record.measurement.startup_seconds or 0.0),
        ended=record.ended,
    )


def _facts(record: Record) -> Mapping[str, Any]:
    return {
        **msgspec.structs.asdict(record.identity),
        "command": " ".join(record.identity.command),
        "status": str(record.status),
        "kind": str(record.kind),
        "reason": record.reason,
        "warnings": list(record.warnings),
        "environment": record.environment,
    }


def _named(values: Mapping[str, Any]) -> dict[str, Value]:
    """Returns nested values by their names with dots; lists as JSON, and nothing that is empty."""
    found: dict[str, Value] = {}
    for name, value in flat(values).items():
        if value is None or value == [] or value == "":
            continue
        simple = value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)
        found[_name(name)] = _text(simple) if isinstance(simple, str) else simple
    return found


def _metrics(record: Record) -> dict[str, float]:
    found = {column.name: column.of(record) for column in COLUMNS if column.kind in (int, float)}
    several = len(record.measurement.telemetry) > 1
    for row in Results([record]).telemetry().to_dict("records"):
        where = f"worker {row['worker']}/{row['device']}" if several else row["device"]
        found |= {
            _name(f"telemetry/{where}/{name}"): value
            for name, value in row.items()
            if name not in ("run_id", "worker", "device", "index")
        }
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def _points(record: Record) -> tuple[float, list[Point]]:
    """Returns when the first step began, and numbers of steps and evaluations, by step.

    A record has no clock times but that of its end. So the last step is taken to have ended then, each step to have
    begun when the one before it ended, and an evaluation to have followed its step at once. What a run does otherwise
    between its steps, such as saving checkpoints, makes earlier times later than they were.
    """
    # The order of equal steps stays: an evaluation follows its step.
    taken = sorted([*_steps(record), *_evaluations(record)], key=operator.itemgetter(0))
    first_step = at = record.ended - math.fsum(seconds for _, seconds, _ in taken)
    points: dict[int, Point] = {}
    for step, seconds, values in taken:
        at += seconds
        point = points.get(step, Point(step, at, {}))
        points[step] = Point(step, point.at, {**point.values, **dict(_numbers(values))})
    return first_step, list(points.values())


def _steps(record: Record) -> Iterator[tuple[int, float, Mapping[str, Any]]]:
    """Yields each step with its time and its values; one that was not measured has no time of its own."""
    taken = record.measurement
    for step, loss in zip(taken.unmeasured_steps, taken.unmeasured_losses, strict=False):
        yield step, 0.0, {"loss": loss}
    unmeasured = set(taken.unmeasured_steps)
    numbers = (number for number in itertools.count(taken.steps_before + 1) if number not in unmeasured)
    for step, row in zip(numbers, Results([record]).steps().to_dict("records"), strict=False):
        phase, values = row["phase"], {name: row[name] for name in _OF_A_STEP}
        values |= {f"{phase}/step_seconds": row["seconds"], f"{phase}/images_per_sec": row["images_per_sec"]}
        yield step, row["seconds"], values


def _evaluations(record: Record) -> Iterator[tuple[int, float, Mapping[str, Any]]]:
    """Yields each evaluation with the step that it followed, its time and its values."""
    for evaluation in record.measurement.evaluations:
        if isinstance(step := evaluation.get("step"), int):
            # Without training, an evaluation consists of the steps themselves.
            seconds = 0.0 if record.config.get("eval_only") is True else dict(_numbers(evaluation)).get("seconds", 0.0)
            yield step, seconds, {_name(f"evaluation/{name}"): n for name, n in evaluation.items() if name != "step"}


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    return ((name, float(value)) for name, value in values.items() if _is_number(value))


def _is_number(value: Any) -> bool:
    """Returns whether a value is a finite number; pandas' missing values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _name(text: str) -> str:
    return _ODD_IN_NAME.sub("_", text)[:200]


def _text(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ..."
