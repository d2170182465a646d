"""Where the time of a step goes, from the rates of runs of which each does a bit more than the one before.

Arithmetic and words only: nothing here runs anything, and nothing imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any

# Fresh processes of one configuration differ by more than the steps of one process show, about a percent on quiet
# machines: a smaller difference is never called one.
BETWEEN_PROCESSES = 0.02


class Part(enum.StrEnum):
    """What a rung adds to those below it, from the bottom."""

    FIXED = "fixed cost"
    COMPUTE = "compute"
    DEVICES = "more devices"
    EXCHANGE = "exchange"
    HOST_COPY = "host copy"
    INPUT = "real input"


# Towers side by side may use a shared device better than one does, and a single copy of the weights may be updated in
# less time than one per tower. Images that come from further away save nothing.
NEVER_SAVE = (Part.COMPUTE, Part.HOST_COPY, Part.INPUT)


class Verdict(enum.StrEnum):
    """What a difference between two rungs says."""

    COSTS = "costs"
    SAVES = "saves"
    NOISE = "no measurable cost"
    UNSURE = "too few steps"


@dataclasses.dataclass(frozen=True)
class Span:
    """A number with its 95 % interval; without bounds where too little was measured for any."""

    value: float
    low: float | None = None
    high: float | None = None

    def minus(self, other: Span) -> Span:
        """Returns the difference of two independent numbers.

        Each bound is as far away as the two that make it, squared and added. Source: Zou and Donner 2008, "Construction
        of confidence limits about effect measures".
        """
        value = self.value - other.value
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Span(value)
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Span(value, value - below, value + above)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """What came of one run.

    Attributes:
        part: what it does beyond the rungs below it.
        images_per_sec: its rate, with interval; None if it has none.
        images: how many it makes in the time that is compared, which is that of one step of all devices.
        failed: whether it should have a rate and has none; otherwise, without a rate, there is nothing of its part.
        reason: why it has no rate.
    """

    part: Part
    images_per_sec: Span | None = None
    images: float = 1.0
    failed: bool = False
    reason: str = ""

    @property
    def seconds(self) -> Span | None:
        """Returns what a step of all devices takes with all parts up to this one."""
        rate = self.images_per_sec
        if rate is None:
            return None
        if rate.low is None or rate.high is None:
            return Span(self.images / rate.value)
        return Span(self.images / rate.value, self.images / rate.high, self.images / rate.low)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a part adds to a step.

    Attributes:
        parts: it, after those below it whose runs failed, so that they cannot be told apart.
        below: seconds of a step with all parts below.
        added: seconds per step.
        up_to: seconds of a step with all parts up to this.
    """

    parts: tuple[Part, ...]
    below: Span
    added: Span
    up_to: Span

    @property
    def name(self) -> str:
        """Returns the parts in words."""
        return " and ".join(filter(None, [", ".join(self.parts[:-1]), self.parts[-1]]))

    @property
    def verdict(self) -> Verdict:
        """Returns whether it costs anything that can be told from noise."""
        if self.added.low is None or self.added.high is None:
            return Verdict.UNSURE
        small = abs(self.added.value) < BETWEEN_PROCESSES * self.up_to.value and Part.FIXED not in self.parts
        if small or self.added.low <= 0 <= self.added.high:
            return Verdict.NOISE
        return Verdict.COSTS if self.added.value > 0 else Verdict.SAVES


@dataclasses.dataclass(frozen=True)
class Ladder:
    """All rungs, from the bottom."""

    rungs: Sequence[Rung]

    @property
    def costs(self) -> list[Cost]:
        """Returns what each part adds; nothing for a part that there is not, nor for what failed at the top."""
        found: list[Cost] = []
        below, unknown = Span(0.0, 0.0, 0.0), list[Part]()
        for rung in self.rungs:
            if rung.seconds is not None:
                added = rung.seconds.minus(below)
                found.append(Cost(parts=(*unknown, rung.part), below=below, added=added, up_to=rung.seconds))
                below, unknown = rung.seconds, []
            elif rung.failed:
                unknown.append(rung.part)
        return found

    @property
    def step(self) -> Span | None:
        """Returns the seconds of a step with everything in it that ran; None if nothing did, or the model did not."""
        costs = self.costs
        return costs[-1].up_to if costs and costs[-1].parts != (Part.FIXED,) else None

    @property
    def unknown(self) -> list[Rung]:
        """Returns the rungs at the top that failed, of which nothing is in the step."""
        reached = [number for number, rung in enumerate(self.rungs) if rung.images_per_sec is not None]
        above = self.rungs[reached[-1] + 1 :] if reached else self.rungs
        return [rung for rung in above if rung.failed]

    def share(self, cost: Cost) -> float:
        """Returns which share of the step a cost is; negative for what saves time."""
        assert self.step is not None, "there is a step where shares are asked for"
        return cost.added.value / self.step.value

    def gain(self, cost: Cost, avoidable: float = 1.0) -> float:
        """Returns by which share the rate rises, at most, without a cost or the avoidable share of it.

        That is if the part costs as much, and what is below takes as little, as their intervals allow. A part above may
        save what this one costs; what is left is never less than what is below. Infinite, if that is nothing.
        """
        assert self.step is not None, "there is a step where gains are asked for"
        most, below = _bound(cost.added, cost.added.high), _bound(cost.below, cost.below.low)
        above = max(0.0, self.step.value - cost.up_to.value)
        saved = avoidable * max(0.0, most)
        left = below + above + (1 - avoidable) * max(0.0, most)
        return saved / left if left > 0 else math.inf

    @property
    def impossible(self) -> Cost | None:
        """Returns the largest saving by what can save nothing: runs differ by so much by chance; None if none saves."""
        savings = [c for c in self.costs if c.parts[-1] in NEVER_SAVE and c.verdict is Verdict.SAVES]
        return min(savings, key=lambda cost: cost.added.value, default=None) if self.step else None

    @property
    def known(self) -> list[Cost]:
        """Returns what costs more than can be noise, the largest first."""
        chance = self.impossible
        least = -chance.added.value if chance else 0.0
        found = [cost for cost in self.costs if cost.verdict is Verdict.COSTS and cost.added.value > least]
        return sorted(found, key=lambda cost: -cost.added.value) if self.step else []


def _bound(span: Span, bound: float | None) -> float:
    return span.value if bound is None else bound


def images_of(part: Part, *, num_devices: int, batch_per_device: int, at_once: int) -> float:
    """Returns how many images of a rung take as long as its part in a step of all devices.

    Args:
        part: that the rung adds.
        num_devices: of the whole step.
        batch_per_device: images.
        at_once: devices that can really compute at the same time: 1 where they are logical and share one.
    """
    if part is Part.FIXED:
        return 1.0  # its run has one image per step
    images = num_devices * batch_per_device
    return images / at_once if part is Part.COMPUTE else float(images)


def to_dict(ladder: Ladder) -> dict[str, Any]:
    """Returns the numbers, as JSON can hold them."""
    cost_of = {cost.parts[-1]: cost for cost in ladder.costs}
    return {
        "step_seconds": dataclasses.asdict(ladder.step) if ladder.step else None,
        "rungs": [_rung_dict(ladder, rung, cost_of.get(rung.part)) for rung in ladder.rungs],
    }


def _rung_dict(ladder: Ladder, rung: Rung, cost: Cost | None) -> dict[str, Any]:
    known = {"part": rung.part, "failed": rung.failed, "reason": rung.reason}
    if cost is None or rung.images_per_sec is None:
        return known
    return known | {
        "images_per_sec": dataclasses.asdict(rung.images_per_sec),
        "seconds": dataclasses.asdict(cost.up_to),
        "added_seconds": dataclasses.asdict(cost.added),
        "added_parts": list(cost.parts),
        "verdict": cost.verdict,
        "share": ladder.share(cost) if ladder.step else None,
    }
