from __future__ import annotations

import os
import types
from pathlib import Path

import pytest

from benchmarks.machine import contention, linux, provenance
from benchmarks.machine.contention import CpuReading, cores_used_by_others

TICKS = os.sysconf("SC_CLK_TCK")


def _stat(root: Path, *, busy: float, stolen: float, idle: float) -> None:
    (root / "proc").mkdir(exist_ok=True)
    user, steal, rest = (round(seconds * TICKS) for seconds in (busy, stolen, idle))
    (root / "proc/stat").write_text(f"cpu  {user} 0 0 {rest} 0 0 0 {steal} 0 0\n")


def test_what_others_used_is_what_was_busy_or_stolen_less_the_own_time(tmp_path: Path) -> None:
    _stat(tmp_path, busy=100.0, stolen=5.0, idle=50.0)
    before = contention.read(tmp_path)
    _stat(tmp_path, busy=103.0, stolen=6.0, idle=50.0)
    after = contention.read(tmp_path)
    assert (after.busy_seconds - before.busy_seconds, after.stolen_seconds - before.stolen_seconds) == (3.0, 1.0)
    begin = CpuReading(at_seconds=10.0, own_seconds=1.0, busy_seconds=100.0)
    end = CpuReading(at_seconds=12.0, own_seconds=2.0, busy_seconds=103.0, stolen_seconds=1.0)
    assert cores_used_by_others(begin, end) == 1.5
    assert cores_used_by_others(begin, CpuReading(at_seconds=12.0, own_seconds=3.1, busy_seconds=102.0)) == 0.0, "noise"


def test_where_the_kernel_hides_it_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores_used_by_others(contention.read(tmp_path), contention.read(tmp_path)) is None
    monkeypatch.setattr(linux, "text", lambda path: None)
    assert contention.used_before_run() is None


@pytest.mark.parametrize(("age", "slept", "cores"), [(0.1, 0.2, 1.0 / 0.3), (1.0, 0.0, 2.0), (1e6, 0.3, 4.0)])
def test_what_others_use_now_is_seen_within_a_third_of_a_second(
    monkeypatch: pytest.MonkeyPatch, age: float, slept: float, cores: float
) -> None:
    """Others have used two cores since the program started, and use four from now on."""
    now = [age]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def read() -> CpuReading:
        busy = 2.0 * now[0] + 2.0 * (now[0] - age)
        return CpuReading(at_seconds=now[0], own_seconds=0.0, busy_seconds=busy)

    monkeypatch.setattr(contention, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(contention, "read", read)
    monkeypatch.setattr(contention, "_at_start", CpuReading(at_seconds=0.0, own_seconds=0.0, busy_seconds=0.0))
    assert contention.used_before_run() == pytest.approx(cores)
    assert now == [pytest.approx(age + slept)]


def test_a_task_of_a_local_cluster_takes_what_its_launcher_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CNN_BENCH_CORES_USED_BY_OTHERS", raising=False)
    assert provenance.of_this_run([], on_gpus=False, starts_alone=False).cores_used_by_others_before is None
    ((name, value),) = contention.handed_over(0.75).items()
    monkeypatch.setenv(name, value)
    task = provenance.of_this_run([], on_gpus=False, starts_alone=False)
    assert task.environment["cores_used_by_others_before"] == 0.75
    assert contention.handed_over(None) == {}


def test_waiting_for_disks_is_no_work_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    stat = "cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 100 200 300 4000 5000 60 70 800 90 10\n"  # the last two are in the first two
    assert linux.core_seconds(stat, frozenset({0})) == pytest.approx((7.3, 8.0, 105.3))
