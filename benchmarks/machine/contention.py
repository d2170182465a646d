"""The cores that others take from this process: over any interval, and directly before a run. No TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.machine import linux

# The launcher of a local cluster hands its own value to the tasks, which load the host while each other starts.
_VARIABLE = "CNN_BENCH_CORES_USED_BY_OTHERS"
# The kernel counts hundredths of a second. What was long ago says nothing about a run that begins now.
_LEAST_SECONDS, _MOST_SECONDS = 0.3, 5.0


@dataclasses.dataclass(frozen=True)
class CpuReading:
    """CPU seconds until now; NaN if they are unknown.

    Attributes:
        at_seconds: of a monotonic clock.
        own_seconds: of this process.
        busy_seconds: of all processes on the cores that this process may use.
        stolen_seconds: of other virtual machines on these cores.
        total_seconds: of these cores.
    """

    at_seconds: float
    own_seconds: float
    busy_seconds: float
    stolen_seconds: float = 0.0
    total_seconds: float = 0.0


def read(
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
    own_seconds: Callable[[], float] = time.process_time,
    cpus: frozenset[int] | None = None,
) -> CpuReading:
    """Reads the clocks now; `root` holds `proc`. `cpus` are the cores; None: those that this process may use."""
    # These belong together: what this process does between them would count as work of others.
    at, own, stat = clock(), own_seconds(), linux.text(root / "proc/stat")
    return CpuReading(at, own, *linux.core_seconds(stat or "", cpus or linux.own_cores()))


def cores_used_by_others(before: CpuReading, after: CpuReading) -> float | None:
    """Returns how many cores others used from one reading to the other, on average; None if that is unknown."""
    seconds = after.at_seconds - before.at_seconds
    others, others_before = (one.busy_seconds + one.stolen_seconds - one.own_seconds for one in (after, before))
    others -= others_before
    return None if math.isnan(others) or seconds <= 0 else max(0.0, others) / seconds


_at_start = read()  # a program imports this module first, and what it imports next takes the time of the look


def used_before_run() -> float | None:
    """Returns how many cores others use now, on average since this program started; waits at most 0.3 s for that.

    Of a process that started earlier, such as a notebook's, the last 0.3 s count.
    """
    begun = _at_start
    if time.monotonic() - begun.at_seconds > _MOST_SECONDS:
        begun = read()
    time.sleep(max(0.0, begun.at_seconds + _LEAST_SECONDS - time.monotonic()))
    return cores_used_by_others(begun, read())


def handed_over(cores: float | None) -> dict[str, str]:
    """Returns the environment variables by which tasks of a local cluster know what others used before it."""
    return {} if cores is None else {_VARIABLE: repr(cores)}


def inherited() -> float | None:
    """Returns what the launcher of this task handed over; None if it did not."""
    stated = os.environ.get(_VARIABLE)
    return None if stated is None else float(stated)
