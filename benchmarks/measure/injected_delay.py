"""Makes steps slower on purpose, so that tests can check that a slower build is detected."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.errors import UsageError
from benchmarks.outside_text import shortened

_VARIABLE = "CNN_BENCH_SLOW_DOWN_FOR_TESTS"
_TOWER_VARIABLE = "CNN_BENCH_SLOW_TOWER_FOR_TESTS"  # its number among those of all workers, and seconds: 1:0.05
_T = TypeVar("_T")


def share() -> float:
    """Returns the share by which each step is made longer; 0 outside of tests."""
    return _number(_VARIABLE, os.environ.get(_VARIABLE) or "0")


def of_tower(number: int) -> float:
    """Returns by how many seconds a tower computes its gradients later; 0 outside of tests."""
    tower, _, seconds = os.environ.get(_TOWER_VARIABLE, "").partition(":")
    return _number(_TOWER_VARIABLE, seconds) if tower == str(number) else 0.0


def _number(variable: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise UsageError(f"{variable} has '{shortened(text)}', and needs a number that is not negative: unset it.")
    return number


def busy(seconds: float) -> None:
    """Keeps a core busy for that long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def slowed(step: Callable[[], _T]) -> Callable[[], _T]:
    """Returns the step itself, or a function that takes that share longer.

    It keeps a core busy, as a slower step would: if CPU time is rationed, a process that sleeps gets the time back.
    """
    longer = share()

    def take() -> _T:
        begin = time.perf_counter()
        result = step()
        busy(longer * (time.perf_counter() - begin))
        return result

    return take if longer else step


def warnings() -> list[str]:
    """Returns the warning for the record."""
    found = []
    if share():
        found = [f"Each step was made {share():.0%} longer on purpose ({_VARIABLE}): this does not measure this build."]
    if slow := os.environ.get(_TOWER_VARIABLE):
        found.append(f"A tower was delayed on purpose ({_TOWER_VARIABLE}={slow}): this does not measure this build.")
    return found


def environment() -> dict[str, float | str]:
    """Returns the entry of the record that keeps it from ever being a baseline."""
    slowed_down_by = share() or os.environ.get(_TOWER_VARIABLE)
    return {"slowed_down_by": slowed_down_by} if slowed_down_by else {}
