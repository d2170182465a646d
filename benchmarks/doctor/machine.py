"""Is this machine quiet? What was observed, how it is printed, and the exit status. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.console import say, table
from benchmarks.errors import ExitStatus

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
    observations: Sequence[Observation],
    break_down: Callable[[Sequence[str]], tuple[Mapping[str, Any], ExitStatus]] | None = None,
) -> ExitStatus:
    """Prints what disturbs measurements on this machine, then breaks down the time of a step.

    `break_down` receives the names of what disturbs. It prints its findings itself if the format is `text`, and returns
    them with its exit status. None: no breakdown.

    Returns:
        The breakdown's exit status unless it is OK; else OK on a quiet machine, and UNDECIDED on any other.
    """
    names = [one.name for one in observations if one.is_disturbing]
    if output_format == "text":
        rows = [("what", "", "seen")]
        for one in observations:
            rows.append(
                (one.name, "?" if one.value == UNSEEN else "disturbs" if one.is_disturbing else "ok", one.value)
            )
        advice = [f"{one.name}: {one.advice}" for one in observations if one.is_disturbing]
        verdict = [*advice, "", f"This machine is not quiet: {', '.join(names)}."]
        for line in [*table(rows), "", *(verdict if names else ["This machine is quiet."])]:
            say(line)
    found, status = break_down(names) if break_down else ({}, ExitStatus.OK)
    if output_format == "json":
        seen = [dataclasses.asdict(one) for one in observations]
        say(json.dumps({"is_quiet": not names, "observations": seen, **found}))
    return status or (ExitStatus.UNDECIDED if names else ExitStatus.OK)
