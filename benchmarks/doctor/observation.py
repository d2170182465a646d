"""What was seen of a machine, and whether it disturbs measurements."""

from __future__ import annotations

import dataclasses

UNSEEN = "cannot be seen here"


@dataclasses.dataclass(frozen=True)
class Observation:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        value: what was seen, in words, with its unit; `UNSEEN` where a container, a kernel or a driver hides it.
        is_disturbing: whether it makes measurements differ.
        advice: what to do about it; empty if it does not disturb.
    """

    name: str
    value: str
    is_disturbing: bool = False
    advice: str = ""


def judged(name: str, value: str, is_disturbing: bool, advice: str) -> Observation:
    """Returns an observation, with the advice only if it is needed."""
    return Observation(name, value, is_disturbing, advice if is_disturbing else "")
