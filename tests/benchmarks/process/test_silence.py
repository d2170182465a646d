"""Processes that do nothing, as another one sees them."""

from __future__ import annotations

import pytest

from benchmarks.process import silence
from benchmarks.process.silence import SILENT_SECONDS, Silence


@pytest.mark.parametrize(
    ("cpu_per_second", "bytes_per_second", "computes", "writes"),
    [(0.0, 0, False, False), (0.001, 0, False, False), (0.05, 0, True, False), (0.0, 1, False, True)],
    ids=["stopped", "threads that look around", "slow start", "lines"],
)
def test_what_counts_as_life(
    monkeypatch: pytest.MonkeyPatch, cpu_per_second: float, bytes_per_second: int, computes: bool, writes: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(silence, "_cpu_seconds", lambda _: 5 + cpu_per_second * now)
    one = Silence(1, lambda: int(bytes_per_second * now), lambda: now)
    for second in range(int(1.5 * SILENT_SECONDS)):
        now = float(second)
        one.look()
    assert (one.computes, one.writes) == (computes, writes)
    monkeypatch.setattr(silence, "_cpu_seconds", lambda _: 900.0)
    now += 10.0
    one.look()
    assert one.computes
