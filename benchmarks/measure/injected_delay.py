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


def slowed(step: Callable[[], _T], pause: Callable[[float], None] | None = None) -> Callable[[], _T]:
    """Returns the step itself, or what takes that share longer for it.

    Args:
        step: what is done.
        pause: lets so many seconds pass; by default by keeping a core busy, as a slower step would: where time on the
            cores is rationed, who sleeps is given it back.
    """
    longer, pause = share(), pause or busy

    @functools.wraps(step)
    def take() -> _T:
        begin = time.perf_counter()
        result = step()
        pause(longer * (time.perf_counter() - begin))
        return result

    return take if longer else step


def busy(seconds: float) -> None:
    """Keeps a core busy for so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def warnings() -> list[str]:
    """Returns what the record must say of it."""
    said = f"Each step was made {share():.0%} longer on purpose ({_VARIABLE}): this is no measurement of this build."
    return [said] if share() else []


def environment() -> dict[str, float]:
    """Returns what keeps the record from ever being a baseline."""
    return {"slowed_down_by": share()} if share() else {}
