"""How long a run will take: from earlier runs of the same configuration, or from a rough guess. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from benchmarks.config.config import Config
from benchmarks.machine.hardware import usable_cores
from models import specs
from results.record import Record, Status, key_of
from results.step_statistics import rate

T = TypeVar("T", bound=Hashable)

_START_SECONDS = 6.0
# Rough rates of CNN training in fp32, in 1e9 operations per second.
_GFLOPS_PER_CORE, _GFLOPS_PER_GPU = 100.0, 15_000.0
_MARGIN = 1.1


def estimate_seconds(config: Config, earlier: Sequence[Record], steps: int | None = None) -> float:
    """Returns how long a run may take, its start included.

    Args:
        config: of the run.
        earlier: records; those of its configuration time a step.
        steps: that are measured; None: as configured.
    """
    key = key_of(config.key_fields())
    alike = [record for record in earlier if record.identity.config_key == key and record.status is Status.OK]
    if alike:
        start = statistics.median((r.measurement.startup_seconds or _START_SECONDS) for r in alike)
        step = statistics.median(statistics.median(r.measurement.step_seconds) for r in alike)
    else:
        gflop = specs.find_model(config.workload.model).gflop_per_image * (1 if config.workload.forward_only else 3)
        at_once = _GFLOPS_PER_CORE * usable_cores()
        if config.devices.on_gpu:
            at_once = _GFLOPS_PER_GPU * config.devices.num_devices
        start, step = _START_SECONDS, gflop * config.batch_global / at_once
    steps = (steps or config.length.num_batches or 100) + config.length.num_warmup_batches + 2
    seconds = start + steps * step
    return min(seconds, config.length.time_limit_seconds) if config.length.time_limit_seconds else seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run, which took `seconds` from the start of the process to its end.

    If it failed, there are no `step_seconds`; `cut_off`: only because its time was up. Images are of all devices.
    """

    seconds: float
    images_per_step: int = 0
    step_seconds: Sequence[float] = ()
    reason: str = ""
    cut_off: bool = False

    @property
    def images_per_sec(self) -> float:
        """Returns the rate of a valid run."""
        return rate(self.step_seconds, self.images_per_step)


class Durations(Generic[T]):
    """Predicts the duration of runs from earlier ones.

    Args:
        guess: rough seconds of a run with that many steps, for candidates that have not been run; it is scaled by its
            error for other candidates.
    """

    def __init__(self, guess: Callable[[T, int], float]) -> None:
        self._guess = guess
        self._corrections: list[float] = []
        self._seen: dict[T, tuple[float, float]] = {}

    def observe(self, candidate: T, outcome: Outcome) -> None:
        """Learns from a run; a failed one is ignored."""
        if not outcome.step_seconds:
            return
        steps, measured = len(outcome.step_seconds), math.fsum(outcome.step_seconds)
        self._corrections.append(outcome.seconds / self._guess(candidate, steps))
        around = max(outcome.seconds - measured, self._seen.get(candidate, (0.0, 0.0))[0])
        self._seen[candidate] = (around, measured / steps)

    def expected(self, candidate: T, steps: int) -> float:
        """Returns the seconds of a run, with a margin; 0 before the first run, so that one is started."""
        if candidate in self._seen:
            around, step_seconds = self._seen[candidate]
            return _MARGIN * (around + steps * step_seconds)
        if not self._corrections:
            return 0.0
        return _MARGIN * statistics.median(self._corrections) * self._guess(candidate, steps)
