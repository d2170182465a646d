"""How traced steps are spread over time; what they find is in tests/verbs/test_placement.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.cluster.member import Alone
from benchmarks.one_run import traced_steps


class TwoWorkers(Alone):
    """The other worker sends the same each time."""

    def __init__(self, other: list[int]) -> None:
        self._other = other

    def meet(self, what: str, message: Any = None, *, patient: bool = False) -> Mapping[str, Any]:
        return {"worker 0": message, "worker 1": self._other}


@pytest.mark.parametrize(
    ("traced", "measured", "other", "agreed"),
    [
        (0.02, [0.01, 0.01], [20, 8], (20, 8)),  # every 0.1 s: one of 0.02 s and eight of 0.01 s
        (0.02, [0.005, 0.015], [20, 99], (20, 8)),
        (0.02, [0.01, 0.01], [7, 3], (7, 3)),
        (0.3, [0.25], [20, 20], (6, 0)),
        (3.0, [2.5], [20, 20], (0, 0)),
    ],
)
def test_traced_steps_are_spread_over_the_budget_and_equally_many_in_all_workers(
    traced: float, measured: list[float], other: list[int], agreed: tuple[int, int]
) -> None:
    assert traced_steps._agreed_steps(2.0, traced, measured, TwoWorkers(other)) == agreed
