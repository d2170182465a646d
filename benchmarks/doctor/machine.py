"""Is this machine quiet? What was observed, how it is printed, and the exit status. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.console import say
from benchmarks.errors import ExitStatus
from results.text import table

UNSEEN = "cannot be seen here"


@dataclasses.dataclass(frozen=True)
class Observation:
    """The result of one check.

    Attributes:
        name: what was checked.
        value: what was seen, with its unit; `UNSEEN` where a container, a kernel or a driver hides it.
        is_disturbing: whether it makes measurements differ.
        advice: why it matters and what to try; empty if it does not disturb.
    """

    name: str
    value: str
    is_disturbing: bool = False
    advice: str = ""


def observed(name: str, seen: str, is_disturbing: bool = False, advice: str = "") -> Observation:
    """Returns an observation: `UNSEEN` if nothing was seen, and with the advice only if it disturbs."""
    return Observation(name, seen or UNSEEN, is_disturbing, advice if is_disturbing else "")


def run(
    output_format: str,
    look: Callable[[], Sequence[Observation]],
    break_down: Callable[[Sequence[str]], tuple[Mapping[str, Any], ExitStatus]] | None = None,
) -> ExitStatus:
    """Prints what disturbs measurements on this machine, then breaks down the time of a step.

    Args:
        output_format: `text` or `json`.
        look: returns the observations.
        break_down: is given the names of what disturbs; prints its findings itself if the format is `text`, and returns
            them with its exit status. None: no breakdown.

    Returns:
        The breakdown's exit status unless it is OK; else OK on a quiet machine, and UNDECIDED on any other.
    """
    observations = look()
    disturbing = [one for one in observations if one.is_disturbing]
    if output_format == "text":
        for line in _report(observations, disturbing):
            say(line)
    found, status = break_down([one.name for one in disturbing]) if break_down else ({}, ExitStatus.OK)
    if output_format == "json":
        seen = [dataclasses.asdict(one) for one in observations]
        say(json.dumps({"is_quiet": not disturbing, "observations": seen, **found}))
    return status or (ExitStatus.UNDECIDED if disturbing else ExitStatus.OK)


def _report(observations: Sequence[Observation], disturbing: Sequence[Observation]) -> list[str]:
    states = ["?" if one.value == UNSEEN else "disturbs" if one.is_disturbing else "ok" for one in observations]
    rows = [("what", "", "seen")]
    rows += [(one.name, state, one.value) for one, state in zip(observations, states, strict=True)]
    lines = table(rows)
    if not disturbing:
        return [*lines, "", "This machine is quiet."]
    advice = [f"{one.name}: {one.advice}" for one in disturbing]
    names = ", ".join(one.name for one in disturbing)
    return [*lines, "", *advice, "", f"This machine is not quiet: {names}."]
