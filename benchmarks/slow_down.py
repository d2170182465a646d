"""Makes steps slower on purpose, so that tests can see whether a slower build is found."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TypeVar

_VARIABLE = "CNN_BENCH_SLOW_DOWN_FOR_TESTS"
_T = TypeVar("_T")


def share() -> float:
    """Returns the share by which each step is made longer; 0 unless a test has asked for it."""
    return float(os.environ.get(_VARIABLE) or 0)


def slowed(step: Callable[[], _T], sleep: Callable[[float], None] = time.sleep) -> Callable[[], _T]:
    """Returns the step itself, or what takes that share longer for it."""
    longer = share()

    @functools.wraps(step)
    def take() -> _T:
        begin = time.perf_counter()
        result = step()
        sleep(longer * (time.perf_counter() - begin))
        return result

    return take if longer else step


def warnings() -> list[str]:
    """Returns what the record must say of it."""
    said = f"Each step was made {share():.0%} longer on purpose ({_VARIABLE}): this is no measurement of this build."
    return [said] if share() else []


def environment() -> dict[str, float]:
    """Returns what keeps the record from ever being a baseline."""
    return {"slowed_down_by": share()} if share() else {}
