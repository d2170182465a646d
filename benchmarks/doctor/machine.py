"""The verb `doctor` where no cluster is named: is this machine quiet, and where does the time go? No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.console import say
from benchmarks.doctor import host_checks
from benchmarks.doctor.observation import UNSEEN, Observation
from benchmarks.errors import ExitStatus


def run(
    output_format: str,
    look: Callable[[], Sequence[Observation]] = host_checks.look,
    climb: Callable[[Sequence[str]], tuple[Mapping[str, Any], ExitStatus]] | None = None,
) -> ExitStatus:
    """Looks at this machine and says what disturbs measurements on it; then climbs the ladder.

    Args:
        output_format: `text` or `json`.
        look: looks at the machine.
        climb: climbs, given the names of what disturbs, prints what is found if that is to be text, and returns it;
            None to leave it out.

    Returns:
        How the ladder ended, if that is not OK; then OK if the machine is quiet; otherwise UNDECIDED, since what is
        measured on it now decides little.
    """
    observations = look()
    if output_format == "text":
        for line in report(observations):
            say(line)
    disturbing = [observation.name for observation in _disturbing(observations)]
    found, ended = climb(disturbing) if climb else ({}, ExitStatus.OK)
    if output_format == "json":
        say(json.dumps({**to_dict(observations), **found}))
    return ended or (ExitStatus.UNDECIDED if disturbing else ExitStatus.OK)


def to_dict(observations: Sequence[Observation]) -> dict[str, Any]:
    """Returns everything, as JSON can hold it."""
    return {
        "is_quiet": not _disturbing(observations),
        "observations": [dataclasses.asdict(observation) for observation in observations],
    }


def report(observations: Sequence[Observation]) -> list[str]:
    """Returns a table, what to do about each thing that disturbs, and the verdict."""
    disturbing = _disturbing(observations)
    lines = [*_table(observations), ""]
    if disturbing:
        lines += [*(f"{observation.name}: {observation.advice}" for observation in disturbing), ""]
    return [*lines, _verdict(disturbing)]


def _disturbing(observations: Sequence[Observation]) -> list[Observation]:
    return [observation for observation in observations if observation.is_disturbing]


def _table(observations: Sequence[Observation]) -> list[str]:
    rows = [("what", "", "seen"), *((one.name, _state(one), one.value) for one in observations)]
    name_width, state_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [f"{name:{name_width}}  {state:{state_width}}  {value}".rstrip() for name, state, value in rows]


def _state(observation: Observation) -> str:
    if observation.value == UNSEEN:
        return "?"
    return "disturbs" if observation.is_disturbing else "ok"


def _verdict(disturbing: Sequence[Observation]) -> str:
    if not disturbing:
        return "This machine is quiet."
    return f"This machine is not quiet: {', '.join(observation.name for observation in disturbing)}."
