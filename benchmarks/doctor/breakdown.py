"""The step-time breakdown: what each stage adds to a step, from the rates of runs that do more and more.

Arithmetic only: nothing here starts a run or imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.config.workload import Workload
from benchmarks.process.tensorflow_setup import Devices
from results import intervals
from results.intervals import Interval
from results.record import strict

# A smaller share of a step is never called significant.
_LEAST_DIFFERENCE = 0.02
# A smaller share of a step gets no advice.
WORTH_ADVICE = 0.05


class Part(enum.StrEnum):
    """What a stage adds to the stages before it, in their order."""

    FIXED = "fixed cost"
    COMPUTE = "compute"
    DEVICES = "more devices"
    EXCHANGE = "exchange"
    HOST_COPY = "host copy"
    INPUT = "real input"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What was run, as far as arithmetic and advice depend on it.

    Attributes:
        manager: value of --variable_update.
        photos: whether the model's data are JPEG images.
        in_16_bits: the precision of 16 bits for which the device has tensor cores or instructions; None: none is known.
        takes_xla: whether the device is a GPU for which XLA of this TensorFlow compiles.
        as_matmul: flags that compute some of the model's convolutions as matrix products.
        lacks_onednn: whether TensorFlow does without oneDNN here, and the user has not chosen that.
        data_dir: the user's data; None if images were generated.
        attained: share of the roofline's bound that `compute` reaches; None if unknown.
        disturbing: names of the checks that failed before the first stage.
    """

    workload: Workload
    devices: Devices
    precision: str
    manager: str
    photos: bool
    in_16_bits: str | None = "bf16"
    takes_xla: bool = False
    as_matmul: Sequence[str] = ()
    lacks_onednn: bool = False
    data_dir: str | None = None
    attained: float | None = None
    disturbing: Sequence[str] = ()

    @property
    def at_once(self) -> int:
        """Devices that compute at the same time: 1 if they are logical and share one."""
        return max(1, self.devices.physical_gpus)

    @property
    def is_shared(self) -> bool:
        """Whether its devices are logical and share the hardware."""
        return self.at_once < self.devices.num_devices

    @property
    def images_per_step(self) -> int:
        """Images of a step of all devices."""
        return self.devices.num_devices * self.workload.batch_per_device

    def images_of(self, part: Part) -> float:
        """Returns how many images a stage processes in the time that its part takes in a step of all devices."""
        if part is Part.FIXED:
            return 1.0  # its run has one image per step
        return self.images_per_step / self.at_once if part is Part.COMPUTE else float(self.images_per_step)


class Significance(enum.StrEnum):
    """What the difference between two stages shows."""

    COSTS = "costs"
    SAVES = "saves"
    NOISE = "no measurable cost"
    UNSURE = "too few steps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A run and its result; a stage that neither failed nor has a rate does not apply.

    Attributes:
        part: what it adds to the stages before it.
        what: what it runs, in words.
        images_per_sec: of one process; of several the geometric mean, and no bounds.
        rates: of each process, in images per second, if there were several.
        images: how many images it processes in the time that is compared: that of one step of all devices.
        reason: why it has no rate.
    """

    part: Part
    what: str = ""
    images_per_sec: Interval | None = None
    rates: Sequence[float] = ()
    images: float = 1.0
    failed: bool = False
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a part adds to a step: seconds of a step without it (`below`), that it adds, and with it (`up_to`)."""

    part: Part
    below: Interval
    added: Interval
    up_to: Interval

    @property
    def significance(self) -> Significance:
        """Returns whether the cost can be told from noise."""
        if not self.added.is_known:
            return Significance.UNSURE
        small = abs(self.added.value) < _LEAST_DIFFERENCE * self.up_to.value  # never the fixed cost, which is all
        side = 0 if small else self.added.side_of(0)
        return {1: Significance.COSTS, 0: Significance.NOISE, -1: Significance.SAVES}[side]


class Breakdown:
    """All stages, in the order of `Part`.

    Attributes:
        failed: the first part whose run failed; what it and those after it add is unknown.
        costs: what each part before that adds; nothing for parts that do not apply.
        spread: how much equal processes differ, as a share (standard deviation).
        degrees: repeats from which that is known; 0: nothing was repeated, and the spread is an assumption.
        step: seconds of a step with every part whose cost is known; None if that has no model.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.costs: list[Cost] = []
        self.failed = next((stage.part for stage in stages if stage.failed), None)
        # Not of the fixed cost, which has another kind of step.
        repeated = [stage.rates for stage in stages if len(stage.rates) > 1 and stage.part is not Part.FIXED]
        self.spread, self.degrees = intervals.spread(repeated)
        below = Interval(0.0, 0.0, 0.0)
        for stage in itertools.takewhile(lambda stage: not stage.failed, stages):
            if rate := self.rate_of(stage):
                up_to = rate.inverse(stage.images)
                self.costs.append(Cost(part=stage.part, below=below, added=up_to.minus(below), up_to=up_to))
                below = up_to
        self.step = below if self.costs and self.costs[-1].part is not Part.FIXED else None

    def rate_of(self, stage: Stage) -> Interval | None:
        """Returns images per second of a stage with an interval that holds for other processes, too."""
        rate, processes = stage.images_per_sec, max(1, len(stage.rates))
        if rate is None or processes == 1 and not rate.is_known:
            return rate
        return rate.bounded.widened(self.spread / math.sqrt(processes), self.degrees)

    def cost_of(self, part: Part) -> Cost | None:
        """Returns what a part adds; None if that is unknown."""
        return next((cost for cost in self.costs if cost.part is part), None)

    def share(self, cost: Cost) -> float:
        """Returns a cost as a share of the step; negative if it saves time."""
        assert self.step is not None, "a breakdown with a cost has a step"
        return cost.added.value / self.step.value

    def gain(self, cost: Cost, avoidable: float = 1.0) -> float:
        """Returns by which share the rate rises, at most, without the avoidable share of a cost.

        Takes the upper bound of the cost and the lower bound of the time below it. A later part may save what this one
        costs, but what remains is never less than what is below. Infinite if that is nothing.
        """
        assert self.step is not None, "a breakdown with a cost has a step"
        most = max(0.0, cost.added.bounded.high)
        left = cost.below.bounded.low + max(0.0, self.step.value - cost.up_to.value) + (1 - avoidable) * most
        return avoidable * most / left if left > 0 else math.inf

    @property
    def worth_advice(self) -> list[Cost]:
        """Returns the significant costs with a large share, the largest first."""
        significant = [cost for cost in self.costs if cost.significance is Significance.COSTS]
        large = [cost for cost in significant if self.step and self.share(cost) >= WORTH_ADVICE]
        return sorted(large, key=lambda cost: -cost.added.value)

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers in JSON's types."""
        stages = []
        for stage in self.stages:
            cost, rate = self.cost_of(stage.part), self.rate_of(stage)
            known = {
                "part": stage.part,
                "failed": stage.failed,
                "reason": stage.reason,
                "images_per_sec": rate,
                "processes": rate and max(1, len(stage.rates)),
                "seconds": rate and rate.inverse(stage.images),
                "added_seconds": cost and cost.added,
                "verdict": cost and cost.significance,
                "share": self.share(cost) if cost and self.step else None,
            }
            stages.append(known)
        return dict(strict(msgspec.to_builtins({"step_seconds": self.step, "parts": stages})))
