"""Is this machine quiet? What was observed, and how it is printed. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from results.text import Table

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


def report(observations: Sequence[Observation]) -> list[str]:
    """Returns a table of what was seen, then what to do about what disturbs, and the verdict."""
    disturbing = [one for one in observations if one.is_disturbing]
    states = ["?" if one.value == UNSEEN else "disturbs" if one.is_disturbing else "ok" for one in observations]
    rows = [(one.name, state, one.value) for one, state in zip(observations, states, strict=True)]
    lines = [*Table(("what", "", "seen"), rows).text(rule=False), ""]
    if not disturbing:
        return [*lines, "This machine is quiet."]
    names = ", ".join(one.name for one in disturbing)
    return [*lines, *(f"{one.name}: {one.advice}" for one in disturbing), "", f"This machine is not quiet: {names}."]
