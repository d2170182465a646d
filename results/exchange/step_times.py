"""When the steps of a run were: a record has their durations and its own end."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from results.record import Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
    """When a run did what, in seconds since 1970, and how its steps count in the training.

    A record has no clock times but that of its end. So the last step is taken to have ended then, each step to have
    begun when the one before it ended, and an evaluation to have followed its step at once. What a run does otherwise
    between its steps, such as saving checkpoints, makes earlier times later than they were.

    Attributes:
        began: the start of the process, as far as the time until the first step is known.
        first_step: the start of the first step; of a run without steps, its end.
        step_ends: the end of each step with a time: the first, those of warm-up, the measured ones.
        numbers: of these steps in the training, counted from 1 and with those of earlier runs.
        evaluations: start and end of each evaluation.
        ended: the end of the run.
    """

    began: float
    first_step: float
    step_ends: Sequence[float]
    numbers: Sequence[int]
    evaluations: Sequence[tuple[float, float]]
    ended: float


def of_record(record: Record) -> StepTimes:
    """Returns the times of a run's steps; a record whose time cannot be read is one of 1970."""
    taken = record.measurement
    first = [] if taken.first_step_seconds is None else [taken.first_step_seconds]
    seconds = [*first, *taken.warmup_step_seconds, *taken.step_seconds]
    unmeasured = set(taken.unmeasured_steps)
    counted = (number for number in itertools.count(taken.steps_before + 1) if number not in unmeasured)
    numbers = list(itertools.islice(counted, len(seconds)))
    # Alone, an evaluation consists of the steps themselves.
    within = 0.0 if record.config.get("eval_only") is True else 1.0
    durations = [within * _number(evaluation, "seconds") for evaluation in taken.evaluations]
    ended = _ended(record)
    first_step = at = ended - sum(seconds) - sum(durations)
    ends, spans, waiting = [], [], list(zip(taken.evaluations, durations, strict=True))
    for number, duration in zip(numbers, seconds, strict=True):
        while waiting and _number(waiting[0][0], "step") < number and within:
            spans.append((at, at := at + waiting.pop(0)[1]))
        ends.append(at := at + duration)
    for evaluation, duration in waiting:
        begin = at if within else max(first_step, at - _number(evaluation, "seconds"))
        spans.append((begin, at := at + duration))
    return StepTimes(
        began=first_step - (taken.startup_seconds or 0.0),
        first_step=first_step,
        step_ends=ends,
        numbers=numbers,
        evaluations=spans,
        ended=ended,
    )


def _ended(record: Record) -> float:
    try:
        return datetime.datetime.fromisoformat(record.identity.time_utc).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
