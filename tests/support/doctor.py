"""The verb `doctor` on a machine of which a test decides what is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.config import flag, run_flags
from benchmarks.doctor import breakdown_run, doctor_verb, machine_checks
from benchmarks.doctor.machine_checks import Observation
from benchmarks.errors import ExitStatus
from benchmarks.process import tensorflow_setup

BreakDown = Callable[[Sequence[str]], tuple[dict[str, Any], ExitStatus]]


def examine(
    monkeypatch: pytest.MonkeyPatch,
    output_format: str,
    seen: Sequence[Observation],
    break_down: BreakDown | None = None,
) -> ExitStatus:
    """Runs the verb; `break_down` stands for the breakdown, which there is none of without it."""
    monkeypatch.setattr(machine_checks, "look", lambda: seen)
    monkeypatch.setattr(tensorflow_setup, "prepare", lambda runtime: None)
    if break_down:
        monkeypatch.setattr(
            breakdown_run, "measure_breakdown", lambda plan, command, disturbing: break_down(disturbing)
        )
    words = ["--device=cpu", f"--output_format={output_format}", *([] if break_down else ["--nobreakdown"])]
    values = run_flags.unset(flag.parse(words, doctor_verb.DOCTOR_FLAGS).values)
    return doctor_verb.run_doctor(*doctor_verb.doctor_options(values, lambda: 0), ["doctor"])
